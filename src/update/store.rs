//! The state directory: the journal, the applied configs, the lock that makes one writer.

use crate::{
    digest::Digest,
    machine_config::{self, MachineConfig},
    path::AbsPath,
    reason::Reason,
    root::{Lock, Root, RootError},
    update::journal::{BadJournal, ConfigName, Journal},
};

/// Far above any journal we write (5,000 operations take about 2 MB), far below what hurts.
const LARGEST_JOURNAL: u64 = 64 << 20;
/// A MachineConfig in a cluster is at most 1.5 MB; a directory of them may hold more.
const LARGEST_CONFIG: u64 = 256 << 20;

/// The state directory of one root, held by one writer.
#[derive(Debug)]
pub struct Store {
    root: Root,
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
    #[error("cannot read the stored config {digest}")]
    Config {
        /// The config asked for.
        digest: Digest,
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
            Self::Config { .. } | Self::Encode(_) => Reason::Io,
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
    pub fn load(&self) -> Result<Journal, StoreError> {
        let mut journal = peek(&self.root)?;
        let machine = machine_id(&self.root)?;
        if journal.machine_id != machine {
            journal.history.clear();
            journal.failure = None;
            journal.machine_id = machine;
        }
        Ok(journal)
    }

    /// Makes the journal durable: nothing that follows it may happen before this returns.
    pub fn save(&self, journal: &Journal) -> Result<(), StoreError> {
        let text = journal.encode().map_err(StoreError::Encode)?;
        Ok(self.root.replace(&paths::journal(), &text, 0o600)?)
    }

    /// Keeps a config under its digest, once.
    pub fn keep_config(&self, config: &MachineConfig) -> Result<ConfigName, StoreError> {
        let text = machine_config::to_canonical_json(config);
        let digest = Digest::of(&text);
        let place = config_path(&digest)?;
        if self.root.stat(&place)?.is_none() {
            self.root.replace(&place, &text, 0o600)?;
        }
        Ok(ConfigName {
            name: config.name.clone(),
            digest,
        })
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

/// The journal without the lock, for those who only look.
pub fn peek(root: &Root) -> Result<Journal, StoreError> {
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
    let Some(ConfigName { name, digest }) = name else {
        return Ok(MachineConfig::default());
    };
    let text = root.read_nofollow(&config_path(digest)?, LARGEST_CONFIG)?;
    let bad = |source: Box<dyn std::error::Error + Send + Sync>| StoreError::Config {
        digest: *digest,
        source,
    };
    // A config's digest is that of its stored form.
    if Digest::of(&text) != *digest {
        return Err(bad("its content has another digest".into()));
    }
    let mut config =
        machine_config::from_canonical_json(&text).map_err(|error| bad(Box::new(error)))?;
    config.name.clone_from(name);
    Ok(config)
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

fn config_path(digest: &Digest) -> Result<AbsPath, StoreError> {
    paths::configs()
        .join(&digest.hex())
        .map_err(|error| StoreError::Config {
            digest: *digest,
            source: Box::new(error),
        })
}
