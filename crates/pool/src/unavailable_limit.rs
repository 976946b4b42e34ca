//! Computes how many nodes of a pool may be unavailable at once.

use super::PoolKind;
use machinist_kube_api::{IntOrString, PoolView, keys::label};

/// A limit, with a warning if it is risky.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnavailableLimit {
    /// The number of nodes that may be unavailable; at least one.
    pub at_most: usize,
    /// A warning for the author of the limit; `None` if the limit is safe.
    pub warning: Option<String>,
}

/// A limit that cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadLimit {
    /// It is neither a number nor a percentage.
    #[error(
        "maxUnavailable of pool {pool} is {given}; expected a number from 0, or a share from \"0%\" to \"100%\""
    )]
    Malformed {
        /// The pool.
        pool: String,
        /// The value as written in the pool.
        given: String,
    },
    /// The control plane would lose its quorum.
    #[error(
        "maxUnavailable of pool {pool} would allow {given} of {machines} control plane nodes to be \
         unavailable at once, but etcd quorum tolerates only {bears}; expected 1"
    )]
    Quorum {
        /// The pool.
        pool: String,
        /// The number of nodes that the value allows.
        given: usize,
        /// The number of nodes in the quorum.
        machines: usize,
        /// The number of unavailable nodes with which the quorum survives.
        bears: usize,
    },
}

/// Returns the limit of a pool of `machines` nodes. Percentages are rounded down, and the result is at least one.
pub fn max_unavailable(pool: &PoolView, machines: usize) -> Result<UnavailableLimit, BadLimit> {
    max_unavailable_in_quorum(pool, machines, machines)
}

/// Returns the limit of a pool of `machines` nodes whose quorum has `members` nodes, with those of an arbiter pool. A
/// percentage is one of the pool's own nodes, as in OpenShift; the quorum counts all.
pub(super) fn max_unavailable_in_quorum(
    pool: &PoolView,
    machines: usize,
    members: usize,
) -> Result<UnavailableLimit, BadLimit> {
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
    let bears = members.saturating_sub(1) / 2;
    match PoolKind::of(pool) {
        PoolKind::ControlPlane if at_most > 1 && at_most > bears => Err(BadLimit::Quorum {
            pool: pool.name.clone(),
            given: at_most,
            machines: members,
            bears,
        }),
        kind => Ok(UnavailableLimit {
            at_most,
            warning: (kind == PoolKind::ControlPlane && at_most > 1).then(|| {
                format!(
                    "maxUnavailable of pool {} allows {at_most} control plane nodes to be \
                     unavailable at once",
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
