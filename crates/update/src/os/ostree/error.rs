//! Why the deployments of OSTree do not allow a step.

use std::error::Error;

use crate::os::{BackgroundError, DeploymentId, OsError, ProviderStep, grub::GrubError};
use machinist_boot_loader::grub::BootError;
use machinist_plan::ImageRef;
use machinist_rootfs::RootError;

/// Errors of a registry or a repository that does not answer: of skopeo, and of rpm-ostree.
const NO_ANSWER: [&str; 6] = [
    "pinging container registry",
    "dial tcp",
    "i/o timeout",
    "tls handshake timeout",
    "connection reset by peer",
    "curl error",
];

/// How errors of bootc name the images that are bound to an OS image. The download before the drain does not ask their
/// registries, so that an outage of one would be noticed only after each drain.
const BOUND_IMAGES: &str = "bound image";

/// Why the deployments of OSTree do not allow a step.
#[derive(Debug, thiserror::Error)]
pub(super) enum OstreeError {
    #[error(transparent)]
    Root(#[from] RootError),
    #[error(transparent)]
    Grub(#[from] GrubError),
    #[error("GRUB's configuration cannot be used")]
    Boot(#[from] BootError),
    #[error(
        "kernel argument {0}: the deployment has an equal one, and libostree keeps only one of them"
    )]
    Repeated(String),
    #[error(
        "kernel argument {0}: a trial needs it, and a later argument of the deployment overrides it"
    )]
    Overridden(String),
    #[error("the root file system is not a deployment of OSTree")]
    NotBooted,
    #[error("the boot entry of the running deployment {0} is missing in /boot/loader/entries")]
    NoEntry(String),
    #[error("/run/ostree/staged-deployment is unreadable: {0}")]
    Staged(String),
    #[error(
        "another program has staged the deployment {0}: reboot into it, or remove it with \
         ostree admin undeploy 0"
    )]
    ForeignStaged(DeploymentId),
    #[error(
        "the next boot enters another deployment than the running one, {0}: reboot into it, or \
         select the running one with ostree admin set-default"
    )]
    ForeignDefault(DeploymentId),
    #[error(
        "the boot entry of the deployment {0} has a variable of GRUB in a part of an argument, which a new deployment \
         would lose"
    )]
    Variable(DeploymentId),
    #[error(
        "kernel argument {0}: GRUB replaces variables in boot entries, so that $ cannot be passed to the kernel"
    )]
    NewVariable(String),
    #[error("another program has changed the menu, so that the failed deployment is still there")]
    TrialRemains,
    #[error("another program holds the lock of libostree, /ostree/lock")]
    Locked,
    #[error("{0} has reported success and staged no deployment")]
    NothingStaged(&'static str),
    #[error(
        "after a boot into a new deployment that fails, GRUB would not select the previous one: \
         grub.cfg does not source custom.cfg"
    )]
    NoCustomConfig,
    #[error("the deployment would boot with {found:?} instead of {wanted:?}")]
    OtherArguments { found: String, wanted: String },
    #[error(
        "the running image is from {0} as well, which bootc and rpm-ostree take for the same image: put the new one at \
         another path, or give it another tag"
    )]
    SamePath(String),
    #[error("extensions and kernel types need rpm-ostree, which is not installed")]
    Unsupported,
    #[error(
        "the deployment {0} has files in its initial RAM disk (rpm-ostree initramfs-etc), which a new one would lose"
    )]
    InitramfsFiles(DeploymentId),
    #[error("rpm-ostree failed")]
    Layering {
        is_final: bool,
        #[source]
        source: BackgroundError,
    },
    #[error("rpm-ostree has staged a deployment with {found} instead of {wanted}")]
    OtherPackages { found: String, wanted: String },
    #[error("cannot write {file} on a file system that is mounted read-only")]
    Write {
        file: String,
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    #[error("ostree refs {command} failed")]
    Reference {
        command: &'static str,
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    #[error("the image {0} is not in the repository of libostree")]
    NotFetched(ImageRef),
    #[error(
        "skopeo reads the image as the user nobody, who must be able to read its directories and files"
    )]
    Unreadable(#[source] Box<dyn Error + Send + Sync>),
    #[error("the image there has the digest {0} instead")]
    OtherDigest(String),
    #[error("{0:?} is not a commit of libostree")]
    Commit(String),
    #[error("the commit {0} is unreadable: {1}")]
    CommitUnreadable(String, String),
    #[error("with the arguments of the trial, the kernel would truncate the command line")]
    TooLong,
    #[error("ostree container image {command} failed")]
    Container {
        command: &'static str,
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    #[error("the download cannot be stopped")]
    Stop(#[source] Box<dyn Error + Send + Sync>),
    #[error("bootc switch failed, or ostree admin lock-finalization after it")]
    Switch(#[source] BackgroundError),
    #[error(
        "the deployment {0} has packages or overrides of rpm-ostree, which is not installed, so that a new image would \
         lose them"
    )]
    LocalPackages(DeploymentId),
    #[error("the staged deployment has the image {found} instead of {wanted}")]
    OtherImage { found: String, wanted: String },
    #[error("ostree admin {command} failed")]
    Command {
        command: &'static str,
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

impl OstreeError {
    const fn is_retryable(&self) -> bool {
        match self {
            Self::Grub(error) => error.is_retryable(),
            Self::Boot(BootError::Password(_)) => false,
            Self::Layering { is_final, .. } => !*is_final,
            // Another program may hold OSTree's lock or write entries, and an administrator removes what is in the way.
            Self::Root(_)
            | Self::Boot(_)
            | Self::NoEntry(_)
            | Self::NotFetched(_)
            | Self::Container { .. }
            | Self::Reference { .. }
            | Self::Write { .. }
            | Self::Switch(_)
            | Self::Stop(_)
            | Self::TrialRemains
            | Self::Locked
            | Self::ForeignStaged(_)
            | Self::ForeignDefault(_)
            | Self::LocalPackages(_)
            | Self::Command { .. } => true,
            _ => false,
        }
    }

    /// Whether a registry or a repository of packages does not answer bootc or rpm-ostree.
    pub(super) fn is_no_answer(&self) -> bool {
        match self {
            Self::Switch(BackgroundError::Failed(source))
            | Self::Layering {
                source: BackgroundError::Failed(source),
                ..
            } => {
                let output = source.to_string().to_ascii_lowercase();
                !output.contains(BOUND_IMAGES) && NO_ANSWER.iter().any(|text| output.contains(text))
            }
            _ => false,
        }
    }

    pub(super) fn at(self, step: ProviderStep) -> OsError {
        match self {
            _ if self.is_no_answer() => OsError::NoAnswer {
                step,
                source: Box::new(self),
            },
            Self::Locked => OsError::Busy {
                step,
                source: Box::new(self),
            },
            _ => OsError::Failed {
                step,
                retryable: self.is_retryable(),
                source: Box::new(self),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machinist_base::reason::Reason;

    #[test]
    fn a_registry_that_does_not_answer_is_told_from_other_failures() {
        let pinging = "bootc failed: error: Switching: pinging container registry q.io: Get \"https://q.io/v2/\": dial tcp: \
                       lookup q.io: no such host";
        let repository = "rpm-ostree: Updating rpm-md repo 'updates': cannot update repo 'updates': Cannot download \
                          repomd.xml: Curl error (6): Couldn't resolve host name";
        let bound = "bootc failed: error: Switching: Pulling bound images: podman failed: pinging container registry q.io: \
                     dial tcp: lookup q.io: no such host";
        for (output, is_no_answer) in [(pinging, true), (repository, true), (bound, false)] {
            let failed = || BackgroundError::Failed(output.into());
            let layering = OstreeError::Layering {
                is_final: false,
                source: failed(),
            };
            for error in [OstreeError::Switch(failed()), layering] {
                assert_eq!(error.is_no_answer(), is_no_answer, "{output}");
                let reason = match is_no_answer {
                    true => Reason::ImageUnreachable,
                    false => Reason::OSStepFailed,
                };
                assert_eq!(error.at(ProviderStep::Stage).reason(), reason);
            }
        }
    }
}
