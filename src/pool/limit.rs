//! How many nodes of a pool may be unavailable at once.

use super::Kind;
use crate::crd::{IntOrString, PoolView, names::label};

/// A limit, and what speaks against it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// So many nodes may be unavailable; at least one.
    pub at_most: usize,
    /// What to tell whoever set it; none where nothing speaks against it.
    pub warning: Option<String>,
}

/// A limit that cannot be kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadLimit {
    /// It is no number and no share.
    #[error(
        "maxUnavailable of pool {pool} is {given}; expected a number from 0, or a share from \"0%\" to \"100%\""
    )]
    Malformed {
        /// The pool.
        pool: String,
        /// As it was written.
        given: String,
    },
    /// The control plane would lose its quorum.
    #[error(
        "maxUnavailable of pool {pool} would let {given} of {machines} control plane nodes be away at once, and the quorum bears {bears}; expected 1"
    )]
    Quorum {
        /// The pool.
        pool: String,
        /// What it comes to.
        given: usize,
        /// How many nodes there are.
        machines: usize,
        /// How many may be away.
        bears: usize,
    },
}

/// The limit of a pool of so many machines: shares are rounded down, nothing is less than one.
pub fn max_unavailable(pool: &PoolView, machines: usize) -> Result<Limit, BadLimit> {
    let at_most = match &pool.spec.max_unavailable {
        None => 1,
        Some(given) => written(given, machines).ok_or_else(|| BadLimit::Malformed {
            pool: pool.name.clone(),
            given: match given {
                IntOrString::Int(number) => number.to_string(),
                IntOrString::Text(text) => format!("{text:?}"),
            },
        })?,
    };
    let at_most = match pool.name == label::ROLE_ARBITER {
        true => 1,
        false => at_most.max(1),
    };
    let bears = machines.saturating_sub(1) / 2;
    match Kind::of(pool) {
        Kind::ControlPlane if at_most > 1 && at_most > bears => Err(BadLimit::Quorum {
            pool: pool.name.clone(),
            given: at_most,
            machines,
            bears,
        }),
        kind => Ok(Limit {
            at_most,
            warning: (kind == Kind::ControlPlane && at_most > 1).then(|| {
                format!(
                    "maxUnavailable of pool {} lets {at_most} control plane nodes be away at once",
                    pool.name
                )
            }),
        }),
    }
}

fn written(given: &IntOrString, machines: usize) -> Option<usize> {
    match given {
        IntOrString::Int(number) => usize::try_from(*number).ok(),
        IntOrString::Text(text) => {
            let share = text.strip_suffix('%')?;
            let digits = !share.is_empty() && share.bytes().all(|byte| byte.is_ascii_digit());
            let share: usize = share.parse().ok().filter(|share| digits && *share <= 100)?;
            Some(machines.saturating_mul(share) / 100)
        }
    }
}
