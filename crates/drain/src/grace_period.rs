//! The grace period for terminating pods.

use std::{num::NonZeroU32, time::Duration};

use super::Pod;

/// The grace period of a drain.
///
/// Zero is not allowed: it deletes the pod's object while its containers may still run, so that a
/// StatefulSet could start the same member twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Grace {
    /// The pod's own `terminationGracePeriodSeconds`.
    #[default]
    Own,
    /// This many seconds for all pods.
    Seconds(NonZeroU32),
}

/// An invalid grace period.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadGrace {
    /// Zero.
    #[error(
        "a grace period of 0 would remove pods whose containers may still run; the minimum is 1"
    )]
    Zero,
    /// Longer than can be represented.
    #[error("a grace period of {0} seconds is too long")]
    TooLong(i64),
}

impl TryFrom<i64> for Grace {
    type Error = BadGrace;

    /// Converts the command line flag: a negative value means the pod's own.
    fn try_from(seconds: i64) -> Result<Self, BadGrace> {
        if seconds < 0 {
            return Ok(Self::Own);
        }
        let seconds = u32::try_from(seconds).map_err(|_| BadGrace::TooLong(seconds))?;
        NonZeroU32::new(seconds).map_or(Err(BadGrace::Zero), |seconds| Ok(Self::Seconds(seconds)))
    }
}

impl Grace {
    /// The value for the request; none for the pod's own.
    pub fn seconds(self) -> Option<u32> {
        match self {
            Self::Own => None,
            Self::Seconds(seconds) => Some(seconds.get()),
        }
    }

    /// The grace period of this pod.
    pub fn of(self, pod: &Pod) -> Duration {
        match self {
            Self::Own => pod.grace,
            Self::Seconds(seconds) => Duration::from_secs(seconds.get().into()),
        }
    }
}
