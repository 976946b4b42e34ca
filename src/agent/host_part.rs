//! The part of the agent that lies on the host: in a cluster the agent is a pod, and a bad config can keep
//! pods from starting. So a copy of its program and two units settle what a crash leaves, and judge the
//! boot, before the kubelet or without it.
//!
//! A host that has the package's own units, enabled, is left as it is.

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

/// Why it could not be brought to the host.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// On the host there is nothing that the program could be linked with.
    #[error(
        "the agent's own program is not statically linked, so no copy of it would run on the host: take the image that packaging/image/build makes"
    )]
    Dynamic,
    /// The program is no program.
    #[error("the agent's own program cannot be read as an ELF file")]
    NoProgram,
    /// A person or another program made it.
    #[error("{path} was not made by machinist: {why}")]
    Foreign {
        /// What stands there.
        path: AbsPath,
        /// What is wrong with it.
        why: String,
    },
    /// The config that the machine is on brought it.
    #[error("{0} is the config's own; take it out of the config")]
    OfTheConfig(AbsPath),
    /// An older program must not take the place of one that can read the journal.
    #[error("the journal cannot be read")]
    Journal(#[source] StoreError),
    /// The machine cannot be looked at.
    #[error(transparent)]
    Look(#[from] ObserveError),
    /// A file system call failed.
    #[error("cannot bring the units that settle interrupted updates to the host")]
    Root(#[from] RootError),
    /// A path could not be formed.
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

/// Where its parts are.
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

    /// From what needs all others to what needs none.
    fn all(&self) -> [&AbsPath; 4] {
        [&self.link, &self.recover, &self.guard, &self.program]
    }
}

/// Where the program comes from.
type Source = Box<dyn Fn() -> Result<Pieces, RootError> + Send + Sync>;

/// The host's part of one agent.
pub struct HostPart {
    root: Root,
    source: Source,
    known: Mutex<Known>,
}

/// What need not be read again.
#[derive(Debug, Default)]
struct Known {
    own: Option<Digest>,
    /// The copy as it was when it last held just that.
    copy: Option<Stat>,
}

impl HostPart {
    /// For the program that this process runs.
    pub fn new(root: &Root) -> Self {
        Self::from(root, Pieces::of_this_program)
    }

    /// For another one; tests have none that is linked statically.
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
