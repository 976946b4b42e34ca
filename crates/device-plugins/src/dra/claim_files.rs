//! The checkpoint of prepared claims on disk, and the CDI specs that runtimes read.
//!
//! The checkpoint is written first: a claim in it is prepared, or can be prepared again; the kubelet never received
//! an answer about a claim that is not in it.

use machinist_base::{
    abs_path::{AbsPath, BadPath},
    digest::Digest,
    error_chain::chain,
};
use machinist_device::{
    cdi,
    dra::{
        cdi_edits,
        claim_checkpoint::{CHECKPOINT_VERSION, ClaimCheckpoint, PreparedClaim},
    },
    registry::{boot_id, follow},
};
use machinist_rootfs::{Root, RootError};

/// Kept next to the stored inventory.
const CHECKPOINT_PATH: &str = "/var/lib/machinist/claims.json";
/// A damaged checkpoint is moved to this path.
const BROKEN_CHECKPOINT_PATH: &str = "/var/lib/machinist/claims.json.broken";
/// Bytes. A claim has 32 devices at most and takes a few KiB; a node has 250 pods.
const MAX_CHECKPOINT_BYTES: u64 = 64 * 1024 * 1024;

/// Why a claim could not be stored; the claim then counts as not prepared.
#[derive(Debug, thiserror::Error)]
pub(super) enum CheckpointError {
    /// Reading or writing a file failed.
    #[error(transparent)]
    Root(#[from] RootError),
    /// A name that is not a valid path.
    #[error(transparent)]
    Path(#[from] BadPath),
    /// The device is missing, or its link resolves to another node now.
    #[error("{link} no longer points to {node}, the device node prepared for the claim")]
    Moved {
        /// The link that identifies the device.
        link: AbsPath,
        /// The node that it resolved to when the claim was prepared.
        node: AbsPath,
    },
    /// The checkpoint cannot be encoded.
    #[error("failed to write the claim checkpoint")]
    Text(#[from] serde_json::Error),
}

/// Reads and writes the checkpoint and the specs. Every call blocks.
#[derive(Clone, Debug)]
pub(super) struct CheckpointFile {
    root: Root,
    boot: Option<String>,
}

impl CheckpointFile {
    pub(super) fn new(root: Root) -> Self {
        Self {
            boot: boot_id(&root),
            root,
        }
    }

    /// The boot id; `None` where the root has none.
    pub(super) fn boot(&self) -> Option<&str> {
        self.boot.as_deref()
    }

    /// Whether the claim's allocation is still valid: after a boot nodes may have other names, and so may the
    /// sources' devices.
    pub(super) fn is_of_this_boot(&self, prepared: &PreparedClaim) -> bool {
        prepared.boot.is_none() || self.boot.is_none() || prepared.boot == self.boot
    }

    /// Reads the checkpoint and returns whether it is known to be complete: a new machine has none, and a damaged
    /// one is moved aside.
    pub(super) fn load(&self) -> (ClaimCheckpoint, bool) {
        let read = || -> Result<Option<Vec<u8>>, CheckpointError> {
            match self
                .root
                .read_nofollow(&AbsPath::new(CHECKPOINT_PATH)?, MAX_CHECKPOINT_BYTES)
            {
                Err(error) if error.is_not_found() => Ok(None),
                read => Ok(Some(read?)),
            }
        };
        match read() {
            // A runtime reads the spec again when its container restarts, so existing specs are kept.
            Ok(None) if self.has_specs() => {
                tracing::error!(
                    "{CHECKPOINT_PATH} is missing, starting with an empty checkpoint; CDI specs of prepared claims stay until the machine restarts"
                );
                (ClaimCheckpoint::default(), false)
            }
            Ok(None) => (ClaimCheckpoint::default(), true),
            Ok(Some(bytes)) => match parse(&bytes) {
                Some(checkpoint) => (checkpoint, true),
                None => {
                    self.keep_damaged(&bytes);
                    (ClaimCheckpoint::default(), false)
                }
            },
            Err(error) => {
                tracing::error!(
                    "failed to read the claim checkpoint, starting with an empty one: {}",
                    chain(&error)
                );
                (ClaimCheckpoint::default(), false)
            }
        }
    }

    /// Whether an agent has prepared claims since the machine started. If the directory cannot be listed, assume
    /// so.
    fn has_specs(&self) -> bool {
        let dir = AbsPath::new(cdi::SPEC_DIRS[1]);
        let entries = dir.map(|dir| self.root.list(&dir));
        match entries {
            Ok(Ok(entries)) => entries
                .iter()
                .any(|it| cdi_edits::uid_of(&it.name).is_some()),
            Ok(Err(error)) => !error.is_not_found(),
            Err(_) => false,
        }
    }

    fn keep_damaged(&self, bytes: &[u8]) {
        tracing::error!(
            "{CHECKPOINT_PATH} is damaged, starting with an empty checkpoint; the damaged file is kept as {BROKEN_CHECKPOINT_PATH}. Claims of running pods stay prepared, and are unprepared when the pods end"
        );
        let damaged_copy =
            AbsPath::new(BROKEN_CHECKPOINT_PATH).map(|path| self.root.replace(&path, bytes, 0o600));
        if let Ok(Err(error)) = damaged_copy {
            tracing::warn!("failed to keep the damaged file: {}", chain(&error));
        }
    }

    pub(super) fn save(&self, checkpoint: &ClaimCheckpoint) -> Result<(), CheckpointError> {
        let path = AbsPath::new(CHECKPOINT_PATH)?;
        let text = serde_json::to_vec(checkpoint)?;
        let head = format!("{}\n", Digest::of(&text).hex());
        if let Some(dir) = path.parent() {
            self.root.make_dirs(&dir, 0o755)?;
        }
        let parts = [head.as_bytes(), text.as_slice()];
        Ok(self.root.replace_by(&path, &parts, 0o600)?)
    }

    /// Writes the CDI spec of a claim; a file that is already correct is left alone. If the spec would give the
    /// container another device it is removed instead, so that no container starts with it.
    pub(super) fn write_spec(&self, prepared: &PreparedClaim) -> Result<(), CheckpointError> {
        let path = spec_path(&prepared.claim.uid)?;
        let Some(spec) = &prepared.spec else {
            return self.remove(&path);
        };
        for (link, node) in &prepared.links {
            let found = follow(&self.root, link);
            if !matches!(&found, Ok(Some((found, _))) if found == node) {
                self.remove(&path)?;
                let (link, node) = (link.clone(), node.clone());
                return Err(CheckpointError::Moved { link, node });
            }
        }
        let text = serde_json::to_vec(spec)?;
        let current = self.root.read_nofollow(&path, cdi::MAX_SPEC_BYTES as u64);
        if current.is_ok_and(|current| current == text) {
            return Ok(());
        }
        if let Some(dir) = path.parent() {
            self.root.make_dirs(&dir, 0o755)?;
        }
        // Runtimes read only names that end in .json, so they ignore the temporary file beside it.
        Ok(self.root.replace(&path, &text, 0o644)?)
    }

    pub(super) fn remove_spec(&self, uid: &str) -> Result<(), CheckpointError> {
        self.remove(&spec_path(uid)?)
    }

    fn remove(&self, path: &AbsPath) -> Result<(), CheckpointError> {
        match self.root.remove_file(path) {
            Err(error) if error.is_not_found() => Ok(()),
            removed => Ok(removed?),
        }
    }

    /// Removes specs of claims that are not in the checkpoint.
    pub(super) fn remove_stale_specs(
        &self,
        checkpoint: &ClaimCheckpoint,
    ) -> Result<(), CheckpointError> {
        let dir = AbsPath::new(cdi::SPEC_DIRS[1])?;
        let entries = match self.root.list(&dir) {
            Err(error) if error.is_not_found() => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let uid = cdi_edits::uid_of(&entry.name);
            if let Some(uid) = uid.filter(|uid| !checkpoint.claims.contains_key(*uid)) {
                tracing::info!(
                    "{dir}/{} belongs to a claim that is not prepared; removing it",
                    entry.name
                );
                self.remove_spec(uid)?;
            }
        }
        Ok(())
    }
}

fn parse(bytes: &[u8]) -> Option<ClaimCheckpoint> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let (head, text) = (bytes.get(..end)?, bytes.get(end + 1..)?);
    if head != Digest::of(text).hex().as_bytes() {
        return None;
    }
    let checkpoint: ClaimCheckpoint = serde_json::from_slice(text).ok()?;
    (checkpoint.version == CHECKPOINT_VERSION).then_some(checkpoint)
}

fn spec_path(uid: &str) -> Result<AbsPath, BadPath> {
    AbsPath::new(format!(
        "{}/{}",
        cdi::SPEC_DIRS[1],
        cdi_edits::file_name(uid)
    ))
}

#[cfg(test)]
mod tests;
