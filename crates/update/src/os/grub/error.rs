//! Why GRUB's configuration does not allow a step.

use std::error::Error;

use crate::os::{OsError, ProviderStep, kernel_install_cmdline::KernelCmdlineError};
use machinist_base::abs_path::AbsPath;
use machinist_boot_loader::grub::{ArgumentFault, BootError};
use machinist_ignition::KernelArgument;
use machinist_rootfs::RootError;

/// Why GRUB's configuration does not allow a step.
#[derive(Debug, thiserror::Error)]
pub(in crate::os) enum GrubError {
    #[error(transparent)]
    Root(#[from] RootError),
    #[error("GRUB's configuration cannot be used")]
    Boot(#[from] BootError),
    #[error("kernel argument {argument}: {fault}")]
    Argument {
        argument: String,
        fault: ArgumentFault,
    },
    #[error("kernel arguments {arguments}: GRUB would read them in a boot entry as commands")]
    EntryCommands {
        arguments: String,
        source: BootError,
    },
    #[error(
        "kernel argument {0}: it is for init, and GRUB_FORCE_PARTUUID appends panic=-1 after it, so that the kernel would not \
         restart without its initial RAM disk"
    )]
    ForInit(String),
    #[error("the menu entry {0:?} does not have exactly one command linux")]
    UnusualEntry(String),
    #[error("the file {0} of the default menu entry does not exist")]
    EntryMissing(String),
    #[error("the entry would boot with {found:?} instead of {wanted:?}")]
    OtherArguments { found: String, wanted: String },
    #[error(
        "the arguments {0:?} of a boot do not contain those of the host followed by those of machinist"
    )]
    ForeignArguments(String),
    #[error("only kernel arguments can be changed on this host")]
    Unsupported,
    #[error("{0} is not UTF-8 text")]
    NotUtf8(AbsPath),
    #[error("the section of machinist in custom.cfg does not end")]
    UnterminatedSection,
    #[error("another program has changed {0}")]
    FileChanged(AbsPath),
    #[error("another program is writing grub.cfg (grub.cfg.new)")]
    ConfigBeingWritten,
    #[error("another program keeps changing grub.cfg")]
    ConfigChanged,
    #[error("with the entry of the trial, GRUB would enter {0:?} by default instead of {1:?}")]
    OtherDefault(String, String),
    #[error("with the arguments of the trial, the kernel would truncate the command line")]
    TooLong,
    #[error(transparent)]
    Cmdline(#[from] KernelCmdlineError),
    #[error(
        "the default entry of GRUB, {0}, does not depend on saved_entry: set GRUB_DEFAULT=saved in /etc/default/grub and run \
         grub2-mkconfig -o /boot/grub2/grub.cfg"
    )]
    NotSaved(String),
    #[error("grub-mkconfig has made a default entry with {found:?} instead of {wanted:?}")]
    ConfigDiffers { found: String, wanted: String },
    #[error("grub-mkconfig has made a default entry for {0} without an initial RAM disk")]
    NoInitrd(String),
    #[error("grub-mkconfig is not installed")]
    NoMkconfig,
    #[error("grub-mkconfig failed")]
    Mkconfig(#[source] Box<dyn Error + Send + Sync>),
}

impl GrubError {
    pub(in crate::os) const fn is_retryable(&self) -> bool {
        match self {
            Self::Boot(BootError::Password(_)) => false,
            // Package managers rewrite grub.cfg and kernels while the machine runs.
            Self::Root(_)
            | Self::Cmdline(KernelCmdlineError::Root(_))
            | Self::Mkconfig(_)
            | Self::ConfigDiffers { .. }
            | Self::NoInitrd(_)
            | Self::Boot(_)
            | Self::ConfigBeingWritten
            | Self::ConfigChanged
            | Self::FileChanged(_) => true,
            _ => false,
        }
    }

    /// Whether a package manager may be installing or removing a kernel. GRUB's own update may have run meanwhile, with
    /// another `root=` for a kernel that has no initial RAM disk yet.
    pub(super) const fn is_busy(&self) -> bool {
        matches!(
            self,
            Self::ConfigDiffers { .. }
                | Self::NoInitrd(_)
                | Self::ConfigBeingWritten
                | Self::ConfigChanged
                | Self::FileChanged(_)
                | Self::ForeignArguments(_)
                | Self::Boot(BootError::Missing(_))
        )
    }

    pub(super) fn at(self, step: ProviderStep) -> OsError {
        let is_busy = match self {
            Self::ConfigBeingWritten => true,
            _ => step == ProviderStep::Keep && self.is_busy(),
        };
        match is_busy {
            true => OsError::Busy {
                step,
                source: Box::new(self),
            },
            false => OsError::Failed {
                step,
                retryable: self.is_retryable(),
                source: Box::new(self),
            },
        }
    }
}

impl From<(KernelArgument, ArgumentFault)> for GrubError {
    fn from((argument, fault): (KernelArgument, ArgumentFault)) -> Self {
        Self::Argument {
            argument: argument.as_str().to_owned(),
            fault,
        }
    }
}
