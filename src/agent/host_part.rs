//! The agent's part on the host. In a cluster the agent is a pod, and a bad config can prevent pods
//! from starting. Therefore a copy of its program and two systemd units on the host recover
//! interrupted updates and verify the boot, before the kubelet starts or without it.
//!
//! A host on which the package's own units are enabled is left unchanged.

mod elf;
mod install;
mod remove;
mod units;

use std::{error::Error, fmt, sync::Mutex};

use crate::{
    digest::Digest,
    path::{AbsPath, BadPath},
    plan::{
        UNIT_DIR,
        recovery::{COPY_DIR, GUARD, RECOVER, TARGET},
    },
    reason::Reason,
    root::{Pieces, Root, RootError, Stat},
    update::{host, observe::ObserveError, store::StoreError},
};

pub use self::remove::Installed;

/// Why the host part could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The program is dynamically linked, and the host may lack the libraries.
    #[error(
        "the agent's binary is not statically linked and cannot run on the host: use the image built by packaging/image/build"
    )]
    Dynamic,
    /// The program is not a valid ELF file.
    #[error("the agent's binary is not a valid ELF file")]
    NoProgram,
    /// The path belongs to another program or to the administrator.
    #[error("{path} is not managed by machinist: {why}")]
    Foreign {
        /// The existing path.
        path: AbsPath,
        /// Why it is not recognised as machinist's.
        why: String,
    },
    /// The path is managed by the current config.
    #[error("{0} is part of the config; remove it from the config")]
    OfTheConfig(AbsPath),
    /// An older program must not replace one that can read the journal.
    #[error("cannot read the journal")]
    Journal(#[source] StoreError),
    /// The state of the machine cannot be read.
    #[error(transparent)]
    Look(#[from] ObserveError),
    /// A file system call failed.
    #[error("cannot install the recovery units on the host")]
    Root(#[from] RootError),
    /// A path could not be built.
    #[error(transparent)]
    Path(#[from] BadPath),
}

impl InstallError {
    /// The stable code.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Journal(error) => error.reason(),
            Self::Look(error) => error.reason(),
            Self::Root(error) => error.reason(),
            _ => Reason::RecoveryMissing,
        }
    }
}

/// The paths of the host part.
#[derive(Debug)]
struct Places {
    dir: AbsPath,
    program: AbsPath,
    guard: AbsPath,
    recover: AbsPath,
    wants: AbsPath,
    link: AbsPath,
}

impl Places {
    fn new() -> Result<Self, BadPath> {
        let unit = |name: &str| AbsPath::new(format!("{UNIT_DIR}/{name}"));
        let wants = unit(&format!("{TARGET}.wants"))?;
        Ok(Self {
            dir: AbsPath::new(COPY_DIR)?,
            program: AbsPath::new(units::PROGRAM)?,
            guard: unit(GUARD)?,
            recover: unit(RECOVER)?,
            link: wants.join(RECOVER)?,
            wants,
        })
    }

    /// In order of dependency: each one needs those after it.
    fn all(&self) -> [&AbsPath; 4] {
        [&self.link, &self.recover, &self.guard, &self.program]
    }
}

/// Opens the program to copy.
type Source = Box<dyn Fn() -> Result<Pieces, RootError> + Send + Sync>;

/// Installs the host part of one agent.
pub struct HostPart {
    root: Root,
    source: Source,
    known: Mutex<Known>,
}

/// Cached results.
#[derive(Debug, Default)]
struct Known {
    own: Option<Digest>,
    /// Metadata of the copy when its content was last checked.
    copy: Option<Stat>,
}

impl HostPart {
    /// Installs the program that this process runs.
    pub fn new(root: &Root) -> Self {
        Self::from(root, Pieces::of_this_program)
    }

    /// Installs another program; tests have no statically linked one.
    pub fn from(
        root: &Root,
        source: impl Fn() -> Result<Pieces, RootError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            root: root.clone(),
            source: Box::new(source),
            known: Mutex::default(),
        }
    }
}

impl fmt::Debug for HostPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostPart")
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}

impl host::HostPart for HostPart {
    fn bring(&self) -> Result<bool, Box<dyn Error + Send + Sync>> {
        Ok(self.install()?)
    }
}
