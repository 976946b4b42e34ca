//! Adopts a machine from OpenShift's machine-config-daemon, and releases it to that daemon.
//!
//! Both machinist and machine-config-daemon keep the config of the disk, the originals of paths that a config
//! replaced, and notes that a path had no original. So a handover writes no managed file and needs no reboot: it
//! converts this state. Adoption only reads the daemon's state and leaves it in place; the journal, which makes
//! machinist the owner, is written last and atomically. Release writes the daemon's state first, each file
//! atomically, and ends machinist's ownership last. After a crash in between, the handover is repeated from the
//! start.

mod adopt;
mod mcd_state;
mod release;

pub use adopt::{Adoption, adopt, check_adoption};
pub use mcd_state::{MachineConfigText, McdConfigState, find, parse};
pub use release::{ReleasePlan, ReleasedFiles, check_release, hand_over};

use super::{
    observe::ObserveError, observe_and_plan::LookError, pinned_config::PinError, store::StoreError,
    transaction::TransactionError,
};
use machinist_base::{
    abs_path::{AbsPath, BadPath},
    reason::Reason,
};
use machinist_ignition::Refusal;
use machinist_rootfs::RootError;

/// Reasons why a machine is not handed over.
#[derive(Debug, thiserror::Error)]
pub enum HandoverError {
    /// The daemon has not managed this machine, or its state is missing.
    #[error("{0} not found: machine-config-daemon stores the machine's current config there")]
    NotManaged(AbsPath),
    /// The daemon has unfinished work.
    #[error("{path} exists: {what}")]
    Unfinished {
        /// The file that indicates it.
        path: AbsPath,
        /// The meaning of the file.
        what: &'static str,
    },
    /// The daemon's state cannot be read as a config, or machinist cannot apply that config here.
    #[error("its config is refused: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Refused(Vec<Refusal>),
    /// machinist already owns this machine.
    #[error("this machine is already managed by machinist, current config {0}")]
    Owned(String),
    /// An update is in progress, or waits for a retry.
    #[error("an update is in progress ({0}): wait for it, or cancel it")]
    Open(String),
    /// machinist does not own this machine.
    #[error("this machine is not managed by machinist: nothing to return")]
    NotOwned,
    /// Accessing the state directory failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Accessing the held config failed.
    #[error(transparent)]
    Hold(#[from] PinError),
    /// Observing the machine failed.
    #[error(transparent)]
    Look(#[from] LookError),
    /// Observing drift failed.
    #[error("cannot compare the machine with its config")]
    Observe(#[from] ObserveError),
    /// An original could not be copied.
    #[error("cannot keep the original of {path}")]
    Original {
        /// The path.
        path: AbsPath,
        /// The cause.
        #[source]
        source: TransactionError,
    },
    /// The config could not be serialised; this is a defect.
    #[error("cannot serialise the config as a MachineConfig")]
    Encode(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A path could not be formed.
    #[error(transparent)]
    Path(#[from] BadPath),
    /// A file system call failed.
    #[error(transparent)]
    Root(#[from] RootError),
}

impl HandoverError {
    /// Returns the stable reason code.
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
