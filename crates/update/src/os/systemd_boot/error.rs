//! Why the configuration of systemd-boot does not allow a step.

use std::error::Error;

use crate::os::{OsError, ProviderStep, kernel_install_cmdline::KernelCmdlineError};
use machinist_base::abs_path::AbsPath;
use machinist_rootfs::RootError;

/// Why the configuration of systemd-boot does not allow a step.
#[derive(Debug, thiserror::Error)]
pub(super) enum SystemdBootError {
    #[error(transparent)]
    Root(#[from] RootError),
    #[error(transparent)]
    Cmdline(#[from] KernelCmdlineError),
    #[error("no directory loader/entries in /efi, /boot and /boot/efi has a menu entry")]
    NoEntry,
    #[error("the default entry {0} lacks linux, sort-key or version")]
    UnusualEntry(String),
    #[error("the entry {file} would boot with {found:?} instead of {wanted:?}")]
    OtherArguments {
        file: String,
        found: String,
        wanted: String,
    },
    #[error("the boot loader would enter {found} instead of {wanted}")]
    OtherEntry { found: String, wanted: String },
    #[error(
        "systemd-boot 260 and later enter {0} before the default entry (preferred in loader.conf, or bootctl \
         set-preferred)"
    )]
    Preferred(String),
    #[error(
        "no entry of the menu matches the default {0:?} (default in loader.conf, or bootctl set-default), so that the boot \
         loader may enter one that it finds itself"
    )]
    UnmatchedDefault(String),
    #[error("the boot lacks arguments of the host in the entry {0}")]
    ForeignArguments(String),
    #[error("the default entry {0} lacks a file: a package may be installing its kernel")]
    Incomplete(String),
    #[error("no boot has confirmed the default entry {0} yet, whose name has a boot counter")]
    Unconfirmed(String),
    #[error(
        "kernel argument {0}: kernel-install would replace its tabs and several blanks by one blank in the entries of later \
         kernels"
    )]
    Blanks(String),
    #[error("only kernel arguments can be changed on this host")]
    Unsupported,
    #[error("{0} is not UTF-8 text")]
    NotUtf8(AbsPath),
    #[error("with the arguments of the trial, the kernel would truncate the command line")]
    TooLong,
    #[error("bootctl failed")]
    Bootctl(#[source] Box<dyn Error + Send + Sync>),
    #[error("the firmware has not stored the EFI variable LoaderEntryOneShot")]
    NotStored,
}

impl SystemdBootError {
    const fn is_retryable(&self) -> bool {
        // kernel-install rewrites entries and kernels while the machine runs.
        matches!(
            self,
            Self::Root(_)
                | Self::Cmdline(KernelCmdlineError::Root(_))
                | Self::Bootctl(_)
                | Self::NoEntry
                | Self::UnusualEntry(_)
                | Self::Incomplete(_)
                | Self::Unconfirmed(_)
        )
    }

    pub(super) fn at(self, step: ProviderStep) -> OsError {
        let retryable = self.is_retryable();
        let is_busy = step == ProviderStep::Keep && matches!(self, Self::Incomplete(_));
        let source = Box::new(self);
        match is_busy {
            true => OsError::Busy { step, source },
            false => OsError::Failed {
                step,
                retryable,
                source,
            },
        }
    }
}
