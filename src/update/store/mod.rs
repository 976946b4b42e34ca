//! The state directory: the journal, the applied configs, the lock that makes one writer.

mod aside;
mod configs;
mod contents;

pub use aside::aside;
pub use configs::{config, whole_config};

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{
    path::AbsPath,
    reason::Reason,
    root::{Lock, Root, RootError},
    update::{
        journal::{BadJournal, Direction, Journal, Mark},
        remembered::Remembered,
        userspace,
    },
};

/// Far above any journal we write (5,000 operations take about 2 MB), far below what hurts.
pub const LARGEST_JOURNAL: u64 = 64 << 20;

/// What a transaction's record may grow by from its commit to the end of its undo: the reasons, each
/// of a bounded length, the phases, the boots. Twice what was seen in tests.
const GROWTH: u64 = 16 << 10;
/// The same for each action: the boot and the invocation it was begun with.
const ACTION_GROWTH: u64 = 512;
/// A reader without the lock may meet a journal that is being written over; it looks again.
const LOOKS: u32 = 3;

/// The state directory of one root, held by one writer.
#[derive(Debug)]
pub struct Store {
    root: Root,
    /// Whether the journal's name is known to be durable. Until then a power cut may leave the spare
    /// under that name: neither may the journal be acted on, nor the spare be written over.
    settled: AtomicBool,
    remembered: Remembered,
    _lock: Lock,
}

/// Why the state cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process works on this root.
    #[error("another machinist works on this root: {lock} is held")]
    Locked {
        /// The lock file.
        lock: AbsPath,
    },
    /// The journal is not to be trusted.
    #[error("cannot use {path}")]
    Journal {
        /// The journal's path.
        path: AbsPath,
        /// What is wrong with it.
        #[source]
        source: BadJournal,
    },
    /// A stored config is not what its name says.
    #[error(
        "the stored copy of config {name} cannot be used: give the machine {name} once more, unchanged"
    )]
    Config {
        /// The config asked for, by name and digest.
        name: String,
        /// What is wrong with it.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The journal could not be put into words; a defect.
    #[error("cannot encode the journal")]
    Encode(#[source] serde_json::Error),
    /// A file system call failed.
    #[error(transparent)]
    Root(#[from] RootError),
}

impl StoreError {
    /// Whether the same may succeed later.
    pub fn again(&self) -> bool {
        match self {
            Self::Locked { .. } => true,
            Self::Root(error) => error.again(),
            Self::Journal { .. } | Self::Config { .. } | Self::Encode(_) => false,
        }
    }

    /// The code that status and metrics carry.
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

/// Paths below the state directory.
pub mod paths {
    use crate::path::AbsPath;

    fn state(below: &str) -> AbsPath {
        AbsPath::root()
            .join(&format!("var/lib/machinist{below}"))
            .unwrap_or_else(|_| AbsPath::root())
    }

    /// `/var/lib/machinist`.
    pub fn state_dir() -> AbsPath {
        state("")
    }

    /// The journal.
    pub fn journal() -> AbsPath {
        state("/journal")
    }

    /// The config that a person holds the machine on.
    pub fn held() -> AbsPath {
        state("/held")
    }

    /// The pool that the node was known to be in.
    pub fn pool() -> AbsPath {
        state("/pool")
    }

    /// The units that were stopped for a shutdown that somebody else ordered.
    pub fn quiesced() -> AbsPath {
        state("/quiesced.json")
    }

    /// What updates stage on the file system of the state directory.
    pub fn staging() -> AbsPath {
        state("/tx")
    }

    /// The lock of the one writer.
    pub fn lock() -> AbsPath {
        state("/lock")
    }

    /// Applied configs by digest.
    pub fn configs() -> AbsPath {
        state("/configs")
    }

    /// What the files of applied configs hold.
    pub fn contents() -> AbsPath {
        state("/contents")
    }

    /// The boot id of the running system, below the root like everything else.
    pub fn boot_id() -> AbsPath {
        AbsPath::root()
            .join("proc/sys/kernel/random/boot_id")
            .unwrap_or_else(|_| AbsPath::root())
    }

    /// The machine's identity.
    pub fn machine_id() -> AbsPath {
        AbsPath::root()
            .join("etc/machine-id")
            .unwrap_or_else(|_| AbsPath::root())
    }
}

impl Store {
    /// Makes the state directory where it is missing and takes the lock, or says who cannot.
    pub fn open(root: &Root) -> Result<Self, StoreError> {
        // What is above it belongs to everybody, also where an offline root does not have it yet.
        if let Some(above) = paths::state_dir().parent() {
            root.make_dirs(&above, 0o755)?;
        }
        root.make_dirs(&paths::state_dir(), 0o700)?;
        root.make_dirs(&paths::configs(), 0o700)?;
        root.make_dirs(&paths::contents(), 0o700)?;
        let lock = root.lock(&paths::lock())?;
        let lock = lock.ok_or_else(|| StoreError::Locked {
            lock: paths::lock(),
        })?;
        Ok(Self {
            root: root.clone(),
            settled: AtomicBool::new(false),
            remembered: Remembered::default(),
            _lock: lock,
        })
    }

    /// The root this state belongs to.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// What this writer need not read twice.
    pub const fn remembered(&self) -> &Remembered {
        &self.remembered
    }

    /// The journal as it stands; an empty one where there is none.
    ///
    /// The journal of another machine (a cloned image) keeps nothing but what lies on the disk with
    /// it: the base, what is owned and where originals are. Open transactions are kept too, because
    /// the clone may have been taken in the middle of one.
    ///
    /// What is read is durable: whoever wrote it may have been killed before it was.
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

    /// Makes the journal durable: nothing that follows it may happen before this returns.
    ///
    /// Before the journal says that anything of the machine may change, there is room for everything
    /// that it may have to say until that is undone: going back needs no space.
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
            self.root.keep_room(&paths::journal(), room)?;
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
            .take_turns(&paths::journal(), (least, trim), padded, 0o600)?;
        self.settled.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// Whether the newest transaction has not touched the machine yet and may be about to.
fn may_begin(journal: &Journal) -> bool {
    let ahead = |mark, direction| mark < Mark::Committed && direction == Direction::Forward;
    journal.top().is_some_and(|tx| ahead(tx.mark, tx.direction))
}

fn growth(journal: &Journal) -> u64 {
    let open = &journal.transactions;
    let actions = open.iter().map(|tx| tx.actions.len()).sum::<usize>() as u64;
    GROWTH * (open.len() as u64 + 1) + ACTION_GROWTH * actions
}

/// The journal without the lock, for those who only look.
pub fn peek(root: &Root) -> Result<Journal, StoreError> {
    let mut looks = 1;
    loop {
        match read_journal(root) {
            Err(StoreError::Journal { .. }) if looks < LOOKS => looks += 1,
            read => return read,
        }
    }
}

fn read_journal(root: &Root) -> Result<Journal, StoreError> {
    match root.read_nofollow(&paths::journal(), LARGEST_JOURNAL) {
        Ok(text) => Journal::decode(&text).map_err(|source| StoreError::Journal {
            path: paths::journal(),
            source,
        }),
        Err(error) if error.is_not_found() => Ok(Journal {
            machine_id: machine_id(root)?,
            ..Journal::default()
        }),
        Err(error) => Err(error.into()),
    }
}

/// What the running boot is called: the boot id, and after a soft reboot its number; none where no kernel
/// runs for the root (offline, in a sandbox).
pub fn boot_id(root: &Root) -> Result<Option<String>, RootError> {
    let kernel = kernel_boot_id(root)?;
    kernel.map(|id| userspace::name(root, id)).transpose()
}

/// The kernel's own boot id.
pub(super) fn kernel_boot_id(root: &Root) -> Result<Option<String>, RootError> {
    read_id(root, &paths::boot_id())
}

fn machine_id(root: &Root) -> Result<Option<String>, RootError> {
    read_id(root, &paths::machine_id())
}

fn read_id(root: &Root, path: &AbsPath) -> Result<Option<String>, RootError> {
    match root.read_text(path, 256) {
        Ok(text) => Ok(Some(text.trim().to_owned()).filter(|id| !id.is_empty())),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}
