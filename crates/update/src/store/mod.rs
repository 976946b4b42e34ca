//! Manages the state directory: the journal, the applied configs, and the lock that admits one writer.

mod backup_name;
mod config_store;
mod content_pack;
pub mod paths;

pub use backup_name::backup_path;
pub use config_store::{cached_config, config, whole_config};

use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
};

use crate::{
    cache::ObservationCache,
    journal::{BadJournal, Direction, Journal, TransactionState},
};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_rootfs::{FileLock, Root, RootError};

/// Maximum size of the journal: far above any journal that machinist writes (5,000 operations take about 2 MB), and
/// small enough to read safely.
pub const MAX_JOURNAL_BYTES: u64 = 64 << 20;

/// Maximum growth of a transaction's record from its commit to the end of its undo: failure reasons of bounded
/// length, phases, boots: twice the maximum seen in tests, and two lists of refusals of the maximum size.
const MAX_RECORD_GROWTH_BYTES: u64 = 32 << 10;
/// Maximum growth per action: the boot and the invocation ID at its start.
const MAX_ACTION_GROWTH_BYTES: u64 = 512;
/// Number of attempts of a reader without the lock, which may read a journal while it is being overwritten.
const MAX_READ_ATTEMPTS: u32 = 3;

/// The state directory of one root, locked by one writer.
#[derive(Debug)]
pub struct StateStore {
    root: Root,
    /// Whether the directory entry of the journal is known to be durable. Until then, a power failure may leave the
    /// spare file under that name, so the journal must not be acted on and the spare must not be overwritten.
    settled: AtomicBool,
    remembered: ObservationCache,
    _lock: FileLock,
}

/// Reasons why the state cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has locked this root.
    #[error("another machinist process uses this root: {} is locked", .lock.display())]
    Locked {
        /// The lock file, with the root.
        lock: PathBuf,
    },
    /// The journal cannot be used.
    #[error("cannot use {}", .path.display())]
    Journal {
        /// The journal's path, with the root.
        path: PathBuf,
        /// The cause.
        #[source]
        source: BadJournal,
    },
    /// A stored config is missing or does not match its digest.
    #[error("the stored copy of config {name} is unusable: provide {name} again, unchanged")]
    Config {
        /// The config's name.
        name: String,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The journal could not be serialised; this is a defect.
    #[error("cannot encode the journal")]
    Encode(#[source] serde_json::Error),
    /// A file system call failed.
    #[error(transparent)]
    Root(#[from] RootError),
}

impl StoreError {
    /// Returns whether a retry may succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Locked { .. } => true,
            Self::Root(error) => error.is_retryable(),
            Self::Journal { .. } | Self::Config { .. } | Self::Encode(_) => false,
        }
    }

    /// Returns the reason code for status and metrics.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Locked { .. } => Reason::Locked,
            Self::Journal { source, .. } => source.reason(),
            Self::Config { .. } => Reason::StoredConfigLost,
            Self::Encode(_) => Reason::Io,
            Self::Root(error) => error.reason(),
        }
    }
}

impl StateStore {
    /// Creates the state directory if necessary and takes the lock, or returns an error if another process holds
    /// it.
    pub fn open(root: &Root) -> Result<Self, StoreError> {
        // Parent directories are shared with other programs, so they get the usual mode, also in an offline root
        // that lacks them.
        if let Some(above) = paths::state_dir().parent() {
            root.make_dirs(&above, 0o755)?;
        }
        root.make_dirs(&paths::state_dir(), 0o700)?;
        root.make_dirs(&paths::configs(), 0o700)?;
        root.make_dirs(&paths::contents(), 0o700)?;
        let lock = root.lock(&paths::lock())?;
        let lock = lock.ok_or_else(|| StoreError::Locked {
            lock: root.host_path(&paths::lock()),
        })?;
        Ok(Self {
            root: root.clone(),
            settled: AtomicBool::new(false),
            remembered: ObservationCache::default(),
            _lock: lock,
        })
    }

    /// Returns the root to which this state belongs.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// Returns this writer's cache.
    pub const fn remembered(&self) -> &ObservationCache {
        &self.remembered
    }

    /// Reads the journal; returns an empty one if there is none.
    ///
    /// A journal of another machine (a cloned image) keeps only what matches the cloned disk: the base, the owned
    /// paths, and the originals. It also keeps open transactions, because the clone may have been made in the
    /// middle of one.
    ///
    /// The result is durable: the process that wrote it may have been killed before it was.
    pub fn load(&self) -> Result<Journal, StoreError> {
        self.settle()?;
        let mut journal = peek(&self.root)?;
        let machine = machine_id(&self.root)?;
        if journal.machine_id != machine {
            journal.history.clear();
            journal.failure = None;
            journal.failed_units.clear();
            journal.devices_before = None;
            journal.machine_before = None;
            journal.machine_id = machine;
        }
        Ok(journal)
    }

    /// Writes the journal durably: nothing that depends on it may happen before this returns.
    ///
    /// Before the journal permits changes to the machine, this reserves space for everything that the journal may
    /// record until these changes are undone, so that an undo needs no free space.
    pub fn save(&self, journal: &Journal) -> Result<(), StoreError> {
        let text = journal.encode().map_err(StoreError::Encode)?;
        if may_begin(journal) {
            if self.root.stat(&paths::journal())?.is_none() {
                let before = Journal {
                    transactions: Vec::new(),
                    ..journal.clone()
                };
                self.write(before.encode().map_err(StoreError::Encode)?, true)?;
            }
            let room = text.len() as u64 + growth(journal);
            self.root.reserve_blocks(&paths::journal(), room)?;
        }
        self.write(text, journal.transactions.is_empty())
    }

    fn settle(&self) -> Result<(), StoreError> {
        if !self.settled.load(Ordering::Relaxed) {
            self.root.sync_dir(&paths::state_dir())?;
            self.settled.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn write(&self, text: Vec<u8>, trim: bool) -> Result<(), StoreError> {
        self.settle()?;
        self.settled.store(false, Ordering::Relaxed);
        let least = text.len() as u64;
        let padded = |length| Journal::padded(text, usize::try_from(length).unwrap_or_default());
        self.root
            .replace_alternating(&paths::journal(), (least, trim), padded, 0o600)?;
        self.settled.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// Returns whether the newest transaction may be about to change the machine.
fn may_begin(journal: &Journal) -> bool {
    let ahead =
        |mark, direction| mark < TransactionState::Committed && direction == Direction::Forward;
    journal.top().is_some_and(|tx| ahead(tx.mark, tx.direction))
}

fn growth(journal: &Journal) -> u64 {
    let open = &journal.transactions;
    let actions = open.iter().map(|tx| tx.actions.len()).sum::<usize>() as u64;
    MAX_RECORD_GROWTH_BYTES * (open.len() as u64 + 1) + MAX_ACTION_GROWTH_BYTES * actions
}

/// Reads the journal without the lock, for readers.
pub fn peek(root: &Root) -> Result<Journal, StoreError> {
    let mut looks = 1;
    loop {
        match read_journal(root) {
            Err(StoreError::Journal { .. }) if looks < MAX_READ_ATTEMPTS => looks += 1,
            read => return read,
        }
    }
}

fn read_journal(root: &Root) -> Result<Journal, StoreError> {
    match root.read_nofollow(&paths::journal(), MAX_JOURNAL_BYTES) {
        Ok(text) => Journal::decode(&text).map_err(|source| StoreError::Journal {
            path: root.host_path(&paths::journal()),
            source,
        }),
        Err(error) if error.is_not_found() => Ok(Journal {
            machine_id: machine_id(root)?,
            ..Journal::default()
        }),
        Err(error) => Err(error.into()),
    }
}

fn machine_id(root: &Root) -> Result<Option<String>, RootError> {
    read_id(root, &paths::machine_id())
}

pub(super) fn read_id(root: &Root, path: &AbsPath) -> Result<Option<String>, RootError> {
    match root.read_text(path, 256) {
        Ok(text) => Ok(Some(text.trim().to_owned()).filter(|id| !id.is_empty())),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}
