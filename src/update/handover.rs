//! Taking a machine over from OpenShift's machine-config-daemon, and giving it back.
//!
//! Both sides keep the same three things: the config that the disk is on, what stood at a path before a
//! config first named it, and that there was nothing. So a hand-over writes no managed file and needs no
//! reboot; it translates what is kept. Taking over leaves that daemon's own state where it is: it is read
//! only, and the journal that makes the machine ours is written last, in one piece. Giving back writes
//! that state first, each file whole, and ends ours last. A crash in between is repeated from the start.

mod adopt;
mod found;
mod release;

pub use adopt::{Adoption, adopt, look_before_adoption};
pub use found::{Found, MachineConfigText, find, parse};
pub use release::{Giving, Handed, hand_over, look_before_release};

use super::{
    hold::HoldError, look::LookError, observe::ObserveError, store::StoreError,
    transaction::TransactionError,
};
use crate::{
    machine_config::Refusal,
    path::{AbsPath, BadPath},
    reason::Reason,
    root::RootError,
};

/// Why a machine is not handed over.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// That daemon has not managed this machine, or its state is gone.
    #[error("there is no {0}: machine-config-daemon keeps there the config that the machine is on")]
    NotManaged(AbsPath),
    /// What it began is not at its end.
    #[error("{path} is there: {what}")]
    Unfinished {
        /// The file that says so.
        path: AbsPath,
        /// What it means.
        what: &'static str,
    },
    /// What it keeps cannot be read as a config, or cannot be had here.
    #[error("its config is refused: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Refused(Vec<Refusal>),
    /// The machine is ours.
    #[error("this machine is machinist's already, on {0}")]
    Owned(String),
    /// Something is under way, or waits to be tried again.
    #[error("an update is under way ({0}): let it end, or cancel it, first")]
    Open(String),
    /// The machine is not ours.
    #[error("this machine is not on a config of machinist's: there is nothing to give back")]
    NotOwned,
    /// The state directory.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The config that a person holds the machine on.
    #[error(transparent)]
    Hold(#[from] HoldError),
    /// Looking at the machine.
    #[error(transparent)]
    Look(#[from] LookError),
    /// The same, for what drifted.
    #[error("cannot compare the machine with its config")]
    Observe(#[from] ObserveError),
    /// What stood before.
    #[error("cannot keep what stood at {path} before")]
    Original {
        /// The path.
        path: AbsPath,
        /// Why.
        #[source]
        source: TransactionError,
    },
    /// The config cannot be put into words; a defect.
    #[error("cannot write the config as a MachineConfig")]
    Encode(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A path cannot be formed.
    #[error(transparent)]
    Path(#[from] BadPath),
    /// A file system call failed.
    #[error(transparent)]
    Root(#[from] RootError),
}

impl HandoverError {
    /// The stable code.
    pub fn reason(&self) -> Reason {
        match self {
            Self::NotManaged(_) | Self::NotOwned => Reason::ConfigNotFound,
            Self::Unfinished { .. } | Self::Open(_) => Reason::UpdateInProgress,
            Self::Refused(refusals) => refusals
                .first()
                .map_or(Reason::ConfigRefused, |refusal| refusal.reason),
            Self::Owned(_) => Reason::OtherDaemon,
            Self::Store(error) => error.reason(),
            Self::Hold(error) => error.reason(),
            Self::Look(error) => error.reason(),
            Self::Observe(error) => error.reason(),
            Self::Original { .. } | Self::Encode(_) | Self::Path(_) => Reason::Io,
            Self::Root(error) => error.reason(),
        }
    }
}
