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

use machinist_base::{
    abs_path::{AbsPath, BadPath},
    digest::Digest,
    reason::Reason,
};
use machinist_plan::{
    UNIT_DIR,
    recovery_units::{COPY_DIR, FALLBACK_UNIT, GUARD_UNIT, RECOVER_UNIT, RECOVERY_TARGET},
};
use machinist_rootfs::{ChunkedReader, Root, RootError, Stat};
use machinist_update::{observe::ObserveError, service_port, store::StoreError};

pub use self::remove::InstalledFiles;

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
struct HostPaths {
    dir: AbsPath,
    program: AbsPath,
    guard: AbsPath,
    recover: AbsPath,
    fallback: AbsPath,
    wants: AbsPath,
    link: AbsPath,
}

impl HostPaths {
    fn new() -> Result<Self, BadPath> {
        let unit = |name: &str| AbsPath::new(format!("{UNIT_DIR}/{name}"));
        let wants = unit(&format!("{RECOVERY_TARGET}.wants"))?;
        Ok(Self {
            dir: AbsPath::new(COPY_DIR)?,
            program: AbsPath::new(units::HOST_PROGRAM_PATH)?,
            guard: unit(GUARD_UNIT)?,
            recover: unit(RECOVER_UNIT)?,
            fallback: unit(FALLBACK_UNIT)?,
            link: wants.join(RECOVER_UNIT)?,
            wants,
        })
    }

    /// In order of dependency: each one needs those after it.
    fn all(&self) -> [&AbsPath; 5] {
        let [recover, guard, fallback] = self.units();
        [&self.link, recover, guard, fallback, &self.program]
    }

    fn units(&self) -> [&AbsPath; 3] {
        [&self.recover, &self.guard, &self.fallback]
    }
}

/// Opens the program to copy.
type ProgramSource = Box<dyn Fn() -> Result<ChunkedReader, RootError> + Send + Sync>;

/// Installs the host part of one agent.
pub struct HostInstall {
    root: Root,
    source: ProgramSource,
    known: Mutex<InstallCache>,
}

/// Cached results.
#[derive(Debug, Default)]
struct InstallCache {
    own: Option<Digest>,
    /// Metadata of the copy when its content was last checked.
    copy: Option<Stat>,
}

impl HostInstall {
    /// Installs the program that this process runs.
    pub fn new(root: &Root) -> Self {
        Self::from(root, ChunkedReader::of_this_program)
    }

    /// Installs another program; tests have no statically linked one.
    pub fn from(
        root: &Root,
        source: impl Fn() -> Result<ChunkedReader, RootError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            root: root.clone(),
            source: Box::new(source),
            known: Mutex::default(),
        }
    }
}

impl fmt::Debug for HostInstall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostPart")
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}

impl service_port::RecoveryInstaller for HostInstall {
    fn install(&self) -> Result<bool, Box<dyn Error + Send + Sync>> {
        Ok(self.install()?)
    }
}
