//! Saves the registry's state for the next agent.

use std::{io, time::Duration};

use tokio::task::{JoinError, JoinHandle, spawn_blocking};

use crate::registry_state::{RegistryCheckpoint, RegistryState};
use machinist_base::{
    abs_path::AbsPath,
    digest::{Digest, Digester},
    error_chain::chain,
};
use machinist_rootfs::{Root, RootError};

/// The path of the saved state.
const CHECKPOINT_PATH: &str = "/var/lib/machinist/devices.json";
/// The file with the kernel's boot id.
const BOOT_ID_PATH: &str = "/proc/sys/kernel/random/boot_id";
/// The delay of a save after a change: changes come in bursts, and each save syncs the disk. Changes
/// that a crash loses within this time are found again by a scan.
pub(super) const SAVE_DEBOUNCE: Duration = Duration::from_millis(500);
/// The maximum size in bytes. 10,000 devices of 50 resources take some 100 MiB; machinist writes no
/// larger file.
const MAX_CHECKPOINT_BYTES: u64 = 128 * 1024 * 1024;

/// Writes and restores the saved state.
#[derive(Debug)]
pub(super) struct CheckpointWriter {
    root: Root,
    boot_id: String,
    new_boot: bool,
    /// The digest of the saved content, so that equal content is not written again.
    last: Option<Digest>,
    failed: bool,
    /// The save that is under way.
    writing: Option<JoinHandle<Result<Option<Digest>, RootError>>>,
}

/// The kernel's id of this boot; none if the root has none.
pub fn boot_id(root: &Root) -> Option<String> {
    let read = root
        .read_text(&AbsPath::new(BOOT_ID_PATH).ok()?, 128)
        .ok()?;
    Some(read.trim().to_owned()).filter(|id| !id.is_empty())
}

/// The result of a save.
pub(super) type WriteOutcome = Result<Result<Option<Digest>, RootError>, JoinError>;

impl CheckpointWriter {
    pub(super) fn new(root: Root) -> Self {
        Self {
            boot_id: boot_id(&root).unwrap_or_default(),
            root,
            new_boot: true,
            last: None,
            failed: false,
            writing: None,
        }
    }

    /// The id of this boot; empty if the root has none.
    pub(super) fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// Whether the machine was rebooted since the state was saved.
    pub(super) fn is_new_boot(&self) -> bool {
        self.new_boot
    }

    /// The saved state. An unreadable file does not prevent the start, since the state only speeds it
    /// up.
    pub(super) fn load(&mut self) -> Option<RegistryCheckpoint> {
        let path = AbsPath::new(CHECKPOINT_PATH).ok()?;
        let bytes = match self.root.read_nofollow(&path, MAX_CHECKPOINT_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.is_not_found() => return None,
            Err(error) => {
                tracing::warn!("ignoring the saved device list: {}", chain(&error));
                return None;
            }
        };
        match serde_json::from_slice::<RegistryCheckpoint>(&bytes) {
            Ok(saved) => {
                self.new_boot = saved.boot_id != self.boot_id || self.boot_id.is_empty();
                self.last = Some(Digest::of(&bytes));
                Some(saved)
            }
            Err(error) => {
                tracing::warn!(file = CHECKPOINT_PATH, %error, "ignoring the saved device list");
                None
            }
        }
    }

    /// Saves the registry state if `changed` is set, and waits until it is written: for the shutdown.
    pub(super) async fn save(&mut self, state: &RegistryState, changed: bool) {
        if self.writing.is_some() {
            let end = self.wait_for_save().await;
            self.record_result(end);
        }
        if changed {
            self.start_save(state);
        }
        if self.writing.is_some() {
            let end = self.wait_for_save().await;
            self.record_result(end);
        }
    }

    /// Starts saving the registry state in the background, which writes nothing if the content is the same.
    /// Returns false while an earlier save is under way.
    pub(super) fn start_save(&mut self, state: &RegistryState) -> bool {
        if self.writing.is_some() {
            return false;
        }
        let (root, last, saved) = (self.root.clone(), self.last, state.save(&self.boot_id));
        self.writing = Some(spawn_blocking(move || write(&root, last, &saved)));
        true
    }

    /// Waits for the end of the save that is under way. Cancel-safe.
    pub(super) async fn wait_for_save(&mut self) -> WriteOutcome {
        match &mut self.writing {
            Some(writing) => {
                let end = writing.await;
                self.writing = None;
                end
            }
            None => std::future::pending().await,
        }
    }

    /// Records the result of a save, and returns whether it succeeded. Repeated failures are logged
    /// once.
    pub(super) fn record_result(&mut self, end: WriteOutcome) -> bool {
        let went_well = matches!(end, Ok(Ok(_)));
        match end {
            Ok(Ok(digest)) => (self.last, self.failed) = (digest, false),
            Ok(Err(error)) => {
                if !self.failed {
                    tracing::warn!("failed to save the device list: {}", chain(&error));
                }
                self.failed = true;
            }
            Err(error) => tracing::error!(%error, "saving the device list was aborted"),
        }
        went_well
    }
}

/// Writes the state unless it was already written, and returns the digest of the content on disk.
fn write(
    root: &Root,
    last: Option<Digest>,
    saved: &RegistryCheckpoint,
) -> Result<Option<Digest>, RootError> {
    // Serialize once for the digest only: the text of thousands of devices is megabytes, and most
    // often it is unchanged.
    let mut measured = MeasuringWriter::default();
    let (Ok(()), Ok(path)) = (
        serde_json::to_writer(&mut measured, saved),
        AbsPath::new(CHECKPOINT_PATH),
    ) else {
        return Ok(last);
    };
    let mut bytes = Vec::new();
    let digest = Some(measured.digest.finish());
    if last != digest {
        bytes.reserve_exact(measured.length);
        if serde_json::to_writer(&mut bytes, saved).is_err() {
            return Ok(last);
        }
        if let Some(dir) = path.parent() {
            root.make_dirs(&dir, 0o755)?;
        }
        root.replace(&path, &bytes, 0o600)?;
    }
    Ok(digest)
}

/// A writer that only computes the digest and the length.
#[derive(Default)]
struct MeasuringWriter {
    digest: Digester,
    length: usize,
}

impl io::Write for MeasuringWriter {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        self.digest.add(piece);
        self.length += piece.len();
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
