//! What the registry leaves for the next agent.

use std::time::Duration;

use crate::{
    device::ledger::{Ledger, Saved},
    digest::Digest,
    path::AbsPath,
    root::Root,
    telemetry::chain,
};

/// Where it lies.
const FILE: &str = "/var/lib/machinist/devices.json";
/// The kernel's name for this boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Changes come in bursts, and each save is a sync of the disk. What is lost with a crash within
/// this time is found again by looking.
pub(super) const DELAY: Duration = Duration::from_millis(500);
/// 10,000 devices of 50 resources take some 100 MiB; a larger file is not ours.
const LARGEST: u64 = 128 * 1024 * 1024;

/// Keeps the saved state.
#[derive(Debug)]
pub(super) struct Keeper {
    root: Root,
    boot_id: String,
    new_boot: bool,
    /// So that equal content is not written, and a failure is told once.
    last: Option<Digest>,
    failed: bool,
}

impl Keeper {
    pub(super) fn new(root: Root) -> Self {
        let path = AbsPath::new(BOOT_ID).ok();
        let read = path.and_then(|path| root.read_text(&path, 128).ok());
        Self {
            root,
            boot_id: read.unwrap_or_default().trim().to_owned(),
            new_boot: true,
            last: None,
            failed: false,
        }
    }

    /// This boot's name; empty where the root has none.
    pub(super) fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// Whether the machine was started since the state was saved.
    pub(super) fn is_new_boot(&self) -> bool {
        self.new_boot
    }

    /// What was saved. An unreadable file is no reason not to start: it is only a head start.
    pub(super) fn load(&mut self) -> Option<Saved> {
        let path = AbsPath::new(FILE).ok()?;
        let bytes = match self.root.read_nofollow(&path, LARGEST) {
            Ok(bytes) => bytes,
            Err(error) if error.is_not_found() => return None,
            Err(error) => {
                tracing::warn!("the saved device list is not used: {}", chain(&error));
                return None;
            }
        };
        match serde_json::from_slice::<Saved>(&bytes) {
            Ok(saved) => {
                self.new_boot = saved.boot_id != self.boot_id || self.boot_id.is_empty();
                self.last = Some(Digest::of(&bytes));
                Some(saved)
            }
            Err(error) => {
                tracing::warn!(file = FILE, %error, "the saved device list is not used");
                None
            }
        }
    }

    /// Saves what the ledger knows, when it differs.
    pub(super) async fn save(&mut self, ledger: &Ledger) {
        let (Ok(bytes), Ok(path)) = (
            serde_json::to_vec(&ledger.save(&self.boot_id)),
            AbsPath::new(FILE),
        ) else {
            return;
        };
        let digest = Digest::of(&bytes);
        if self.last.as_ref() == Some(&digest) {
            return;
        }
        let root = self.root.clone();
        let write = move || {
            if let Some(dir) = path.parent() {
                root.make_dirs(&dir, 0o755)?;
            }
            root.replace(&path, &bytes, 0o600)
        };
        match tokio::task::spawn_blocking(write).await {
            Ok(Ok(())) => (self.last, self.failed) = (Some(digest), false),
            Ok(Err(error)) => {
                if !self.failed {
                    tracing::warn!("the device list is not saved: {}", chain(&error));
                }
                self.failed = true;
            }
            Err(error) => tracing::error!(%error, "saving the device list broke off"),
        }
    }
}
