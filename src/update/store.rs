//! The state directory: the journal, the applied configs, the lock that makes one writer.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{
    digest::Digest,
    machine_config::{self, MachineConfig},
    path::AbsPath,
    reason::Reason,
    root::{Lock, Root, RootError},
    update::journal::{BadJournal, ConfigName, Direction, Journal, Mark},
};

/// Far above any journal we write (5,000 operations take about 2 MB), far below what hurts.
pub const LARGEST_JOURNAL: u64 = 64 << 20;
/// A MachineConfig in a cluster is at most 1.5 MB; a directory of them may hold more.
const LARGEST_CONFIG: u64 = 256 << 20;

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
        let lock = root.lock(&paths::lock())?;
        let lock = lock.ok_or_else(|| StoreError::Locked {
            lock: paths::lock(),
        })?;
        Ok(Self {
            root: root.clone(),
            settled: AtomicBool::new(false),
            _lock: lock,
        })
    }

    /// The root this state belongs to.
    pub fn root(&self) -> &Root {
        &self.root
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

    /// Keeps a config under its digest, once.
    pub fn keep_config(&self, config: &MachineConfig) -> Result<ConfigName, StoreError> {
        let text = machine_config::to_canonical_json(config);
        let digest = Digest::of(&text);
        let name = ConfigName {
            name: config.name.clone(),
            digest,
        };
        match config_text(&self.root, &name) {
            Ok(_) => {}
            Err(StoreError::Config { .. }) => {
                self.root.replace(&config_path(&digest), &text, 0o600)?;
            }
            Err(error) => return Err(error),
        }
        Ok(name)
    }

    /// Forgets configs that neither the base, an open transaction nor the history names.
    pub fn forget_configs(&self, journal: &Journal) -> Result<(), StoreError> {
        let open = journal.transactions.iter();
        let open = open.flat_map(|tx| tx.from.iter().chain([&tx.to]).map(|config| config.digest));
        let wanted: Vec<_> = journal
            .base
            .iter()
            .map(|base| base.digest)
            .chain(open)
            .chain(journal.history.iter().map(|update| update.digest))
            .map(|digest| digest.hex())
            .collect();
        for entry in self.root.list(&paths::configs())? {
            if !wanted.contains(&entry.name)
                && let Ok(place) = paths::configs().join(&entry.name)
            {
                self.root.remove_file(&place)?;
            }
        }
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

/// A stored config; the empty one where `name` is none.
pub fn config(root: &Root, name: Option<&ConfigName>) -> Result<MachineConfig, StoreError> {
    let Some(name) = name else {
        return Ok(MachineConfig::default());
    };
    let text = config_text(root, name)?;
    let mut config =
        machine_config::from_canonical_json(&text).map_err(|error| lost(name, error))?;
    config.name.clone_from(&name.name);
    Ok(config)
}

/// The text of a stored config, which is what its digest is the digest of.
fn config_text(root: &Root, name: &ConfigName) -> Result<Vec<u8>, StoreError> {
    let text = match root.read_nofollow(&config_path(&name.digest), LARGEST_CONFIG) {
        Ok(text) => text,
        Err(error @ (RootError::WrongKind { .. } | RootError::TooLarge { .. })) => {
            return Err(lost(name, error));
        }
        Err(error) if error.is_not_found() => return Err(lost(name, error)),
        Err(error) => return Err(error.into()),
    };
    match Digest::of(&text) == name.digest {
        true => Ok(text),
        false => Err(lost(name, OtherContent(name.digest))),
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{}/{} holds something else", paths::configs(), .0.hex())]
struct OtherContent(Digest);

fn lost(name: &ConfigName, source: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::Config {
        name: name.name.clone(),
        source: Box::new(source),
    }
}

/// The boot id below the root; none where no kernel runs for it (offline, in a sandbox).
pub fn boot_id(root: &Root) -> Result<Option<String>, RootError> {
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

fn config_path(digest: &Digest) -> AbsPath {
    let name = digest.hex();
    paths::configs()
        .join(&name)
        .unwrap_or_else(|_| paths::configs())
}
