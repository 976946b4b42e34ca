//! Why the trial of a deployment fails.

/// Why the trial of a deployment fails, besides errors of the provider.
#[derive(Debug, thiserror::Error)]
pub(super) enum OsTrialError {
    #[error(
        "the boot into the new deployment failed: the boot loader returned to the previous deployment"
    )]
    BootFailed,
    #[error(
        "the machine restarted on the new deployment before its health was confirmed, and the boot loader returned to the \
         previous deployment"
    )]
    LeftUnconfirmed,
    #[error(
        "the machine rebooted without its boot loader, such as by kexec, and so without the new deployment"
    )]
    LoaderBypassed,
    #[error(
        "no boot has tried the new deployment: its kernel or entry was removed, or the machine went down before libostree had \
         finalized it"
    )]
    NotFinalized,
    #[error("another program selected another deployment while the new one was checked")]
    Deselected,
    #[error(
        "the staged deployment cannot be changed: machinist has no access to the boot loader of this host"
    )]
    NoProvider,
    #[error("the boot loader still selects the deployment {0} after the new one was kept")]
    NotKept(String),
}
