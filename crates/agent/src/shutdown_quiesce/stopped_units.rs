//! Records which units were stopped for a shutdown, so that the next process starts exactly these.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use machinist_base::{abs_path::AbsPath, clock::Clock, reason::Reason};
use machinist_rootfs::{Root, RootError};
use machinist_update::store::{backup_path, paths};

/// Maximum size in bytes: sixteen names per declaration, 255 bytes each.
const MAX_RECORD_BYTES: u64 = 1024 * 1024;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct StoppedUnitsRecord {
    pub(super) units: BTreeSet<String>,
}

/// Why the stopped units cannot be determined.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A file system call failed.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The record cannot be parsed.
    #[error("cannot read the list of units stopped for shutdown: {path}")]
    Malformed {
        /// The record.
        path: AbsPath,
        /// The parse error.
        #[source]
        source: serde_json::Error,
    },
}

impl RecordError {
    /// Whether a retry may succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Root(error) => error.is_retryable(),
            Self::Malformed { .. } => false,
        }
    }

    /// The stable code.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Root(error) => error.reason(),
            Self::Malformed { .. } => Reason::Io,
        }
    }
}

/// The units that are to be started again. Blocks.
pub fn units_to_restart(root: &Root) -> Result<BTreeSet<String>, RecordError> {
    Ok(read(root)?.units)
}

pub(super) fn read(root: &Root) -> Result<StoppedUnitsRecord, RecordError> {
    let path = paths::quiesced();
    let bytes = match root.read_nofollow(&path, MAX_RECORD_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.is_not_found() => return Ok(StoppedUnitsRecord::default()),
        Err(error) => return Err(error.into()),
    };
    serde_json::from_slice(&bytes).map_err(|source| RecordError::Malformed { path, source })
}

/// Like [`read`], before adding units: an unreadable record is moved aside for a new one.
pub(super) fn read_to_add(root: &Root) -> Result<StoppedUnitsRecord, RecordError> {
    match read(root) {
        Err(error @ RecordError::Malformed { .. }) => {
            let kept = backup_path(root, &paths::quiesced(), Clock::system().now())?;
            root.move_new(&paths::quiesced(), &kept)?;
            tracing::error!(
                "{}; the file is kept as {kept}, and its units are not started",
                machinist_base::error_chain::chain(&error)
            );
            Ok(StoppedUnitsRecord::default())
        }
        read => read,
    }
}

pub(super) fn write(root: &Root, record: &StoppedUnitsRecord) -> Result<(), RecordError> {
    let path = paths::quiesced();
    if record.units.is_empty() {
        return Ok(root.remove_file(&path)?);
    }
    let encode = |source| RecordError::Malformed {
        path: path.clone(),
        source,
    };
    let bytes = serde_json::to_vec(record).map_err(encode)?;
    root.make_dirs(&paths::state_dir(), 0o700)?;
    Ok(root.replace(&path, &bytes, 0o600)?)
}
