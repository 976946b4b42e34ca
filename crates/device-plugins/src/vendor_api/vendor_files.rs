//! Reads and watches the files that declare vendors.

use std::{collections::BTreeMap, sync::Arc};

use tokio::{
    sync::watch,
    time::{Duration, sleep, timeout},
};

use machinist_base::{abs_path::AbsPath, error_chain::chain, shutdown::Tasks};
use machinist_device::{
    registry::{DirWatch, changed_or_timeout, read_files, watch_for},
    vendor_declaration::{VENDOR_DIRS, VendorFiles, VendorRegistry, Vendors},
};
use machinist_rootfs::{Root, RootError};

/// One save of a file causes several events within a few milliseconds.
const VENDOR_FILES_DEBOUNCE: Duration = Duration::from_millis(50);
/// Stores the last valid content of each file, so that a file that breaks while the agent is not
/// running does not remove its vendor.
const STATE_PATH: &str = "/var/lib/machinist/vendors.json";
/// Bytes: the maximum number of files at their maximum size, with JSON's overhead.
const MAX_STATE_BYTES: u64 = 32 * 1024 * 1024;
/// Retry interval after a failed save, for example on a full disk.
const SAVE_RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// How often the files are read where the kernel does not report all changes.
const UNWATCHED_POLL_INTERVAL: Duration = Duration::from_secs(60);

/// Reads the files, then watches them. The channel holds their current content when this returns.
pub fn follow(root: Root, tasks: &Tasks) -> watch::Receiver<Arc<Vendors>> {
    let mut reader = VendorFileReader {
        watch: DirWatch::new(&root)
            .inspect_err(|error| {
                tracing::warn!(
                    "vendor file watch failed, changes may be noticed late: {}",
                    chain(error)
                );
            })
            .ok(),
        root,
        registry: VendorRegistry::default(),
        saved: BTreeMap::new(),
    };
    reader.restore();
    let (publish, vendors) = watch::channel(Arc::new(reader.read()));
    let stop = tasks.token();
    tasks.spawn("vendors' files", async move {
        tokio::select! {
            // Safe to drop: the next agent reads the files again.
            () = stop.cancelled() => {}
            () = reader.run(publish) => {}
        }
    });
    vendors
}

struct VendorFileReader {
    root: Root,
    watch: Option<DirWatch>,
    registry: VendorRegistry,
    /// The content of [`STATE_PATH`], which the next agent restores.
    saved: ValidFiles,
}

/// File contents by path.
type ValidFiles = BTreeMap<AbsPath, String>;

impl VendorFileReader {
    /// Loads the last valid content of each file.
    fn restore(&mut self) {
        let Ok(path) = AbsPath::new(STATE_PATH) else {
            return;
        };
        let read = match self.root.read_nofollow(&path, MAX_STATE_BYTES) {
            Ok(bytes) => {
                serde_json::from_slice::<ValidFiles>(&bytes).map_err(|error| error.to_string())
            }
            Err(error) if error.is_not_found() => return,
            Err(error) => Err(chain(&error)),
        };
        match read {
            Ok(valid) => {
                self.saved = valid.clone();
                self.registry.restore(valid);
            }
            Err(why) => tracing::warn!("failed to read the saved vendor files: {why}"),
        }
    }

    /// Saves the valid contents for the next agent; unchanged ones are not written twice. Returns
    /// whether they are saved.
    async fn save(&mut self) -> bool {
        let valid = self.registry.valid_files();
        if valid == self.saved {
            return true;
        }
        let (root, texts) = (self.root.clone(), valid.clone());
        match tokio::task::spawn_blocking(move || write(&root, &texts)).await {
            Ok(Ok(())) => {
                self.saved = valid;
                return true;
            }
            Ok(Err(error)) => {
                tracing::warn!(
                    "failed to save the last valid files of the vendors directory: {}",
                    chain(&error)
                );
            }
            Err(error) => tracing::error!(%error, "saving the vendor files was aborted"),
        }
        false
    }

    /// Runs at the start and for a handful of small files only, hence on this thread.
    fn read(&mut self) -> Vendors {
        self.set_watches();
        let files = files(&self.root);
        self.parse(files)
    }

    fn set_watches(&mut self) {
        let root = &self.root;
        if let Some(watch) = &mut self.watch {
            let wanted: BTreeMap<_, _> = dirs().iter().map(|dir| watch_for(root, dir)).collect();
            watch.set(&wanted);
        }
    }

    fn parse(&mut self, files: VendorFiles) -> Vendors {
        let vendors = self.registry.read(files);
        for problem in &vendors.problems {
            tracing::warn!("{problem}");
        }
        vendors
    }

    async fn run(mut self, publish: watch::Sender<Arc<Vendors>>) {
        loop {
            match self.save().await {
                true => self.changed().await,
                // Safe to drop: events stay in the kernel's queue, and the files are read again.
                false => timeout(SAVE_RETRY_INTERVAL, self.changed())
                    .await
                    .unwrap_or(()),
            }
            sleep(VENDOR_FILES_DEBOUNCE).await;
            // Watch directories that were created meanwhile, before they are read.
            self.set_watches();
            let root = self.root.clone();
            let files = match tokio::task::spawn_blocking(move || files(&root)).await {
                Ok(files) => files,
                Err(error) => {
                    tracing::error!(%error, "reading the vendor files was aborted");
                    continue;
                }
            };
            let vendors = self.parse(files);
            publish.send_if_modified(|known| {
                let is_changed = **known != vendors;
                if is_changed {
                    *known = Arc::new(vendors);
                }
                is_changed
            });
        }
    }

    async fn changed(&mut self) {
        if let Err(error) = changed_or_timeout(&mut self.watch, UNWATCHED_POLL_INTERVAL).await {
            tracing::warn!(
                "vendor file watch failed, changes may be noticed late: {}",
                chain(&error)
            );
        }
    }
}

fn write(root: &Root, valid: &ValidFiles) -> Result<(), RootError> {
    let (Ok(path), Ok(bytes)) = (AbsPath::new(STATE_PATH), serde_json::to_vec(valid)) else {
        return Ok(());
    };
    if let Some(dir) = path.parent() {
        root.make_dirs(&dir, 0o755)?;
    }
    root.replace(&path, &bytes, 0o600)
}

fn files(root: &Root) -> VendorFiles {
    read_files(root, &dirs(), nix::unistd::geteuid().as_raw())
}

fn dirs() -> Vec<AbsPath> {
    let dirs = VENDOR_DIRS.iter();
    dirs.filter_map(|dir| AbsPath::new(*dir).ok()).collect()
}
