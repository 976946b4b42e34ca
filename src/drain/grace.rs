//! How long a pod may take to end.

use std::{num::NonZeroU32, time::Duration};

use super::Pod;

/// The grace period of a drain.
///
/// Zero does not exist: it takes the pod's object away while its containers may still run, and a
/// StatefulSet then starts the same member twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grace {
    /// What each pod says of itself.
    #[default]
    Own,
    /// So many seconds, whatever the pods say.
    Seconds(NonZeroU32),
}

/// A grace period that is not given to anybody.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadGrace {
    /// Zero.
    #[error(
        "a grace period of 0 would remove pods while their containers may still run; the shortest is 1"
    )]
    Zero,
    /// More than can be written down.
    #[error("a grace period of {0} seconds is longer than any pod can have")]
    TooLong(i64),
}

impl TryFrom<i64> for Grace {
    type Error = BadGrace;

    /// As the flag has it: negative is the pod's own.
    fn try_from(seconds: i64) -> Result<Self, BadGrace> {
        if seconds < 0 {
            return Ok(Self::Own);
        }
        let seconds = u32::try_from(seconds).map_err(|_| BadGrace::TooLong(seconds))?;
        NonZeroU32::new(seconds).map_or(Err(BadGrace::Zero), |seconds| Ok(Self::Seconds(seconds)))
    }
}

impl Grace {
    /// What stands in the request; none leaves it to the pod.
    pub fn seconds(self) -> Option<u32> {
        match self {
            Self::Own => None,
            Self::Seconds(seconds) => Some(seconds.get()),
        }
    }

    /// How long this pod may take.
    pub fn of(self, pod: &Pod) -> Duration {
        match self {
            Self::Own => pod.grace,
            Self::Seconds(seconds) => Duration::from_secs(seconds.get().into()),
        }
    }
}
