//! Defines the journal's record of a deployment that an unverified update has staged.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::kernel_of;
use machinist_ignition::KernelCommandLine;
use machinist_plan::{ImageRef, KernelType, OsPackages, OsUpdate};

/// A deployment of the operating system that is tried before it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OsTrial {
    /// The provider's identifier of the deployment.
    pub deployment: String,
    /// The deployment to which a rollback returns.
    pub previous: String,
    /// Its image, if that differs from the image of the previous deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Its progress.
    pub state: OsTrialState,
    /// Its packages besides those of the image, if the host can change them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packages: Option<TrialPackages>,
    /// Kernel arguments of the previous deployment that it does not have.
    pub remove_arguments: String,
    /// Kernel arguments that it has besides those of the host.
    pub append_arguments: String,
    /// It is being kept, or was. This is durable before the first step.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keeps: bool,
    /// Number of reboots that did not try it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bypassed: u32,
    /// ID of the boot that still runs on it, once a reboot to the previous deployment is due. Files are rolled back after
    /// that reboot, because the previous deployment has a /etc of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving_boot: Option<String>,
}

/// The packages that a deployment has besides those of its image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrialPackages {
    /// The name of the kernel type.
    pub kernel_type: String,
    /// The names of the extensions.
    pub extensions: BTreeSet<String>,
    /// The image with the repository of the packages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// Packages that another daemon has added.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub adopted: BTreeSet<String>,
}

impl From<&OsPackages> for TrialPackages {
    fn from(packages: &OsPackages) -> Self {
        Self {
            kernel_type: packages.kernel_type.to_string(),
            extensions: packages.extensions.clone(),
            repository: packages.repository.as_ref().map(ToString::to_string),
            adopted: packages.adopted.clone(),
        }
    }
}

impl TrialPackages {
    fn packages(&self) -> OsPackages {
        let repository = self.repository.as_deref();
        OsPackages {
            kernel_type: KernelType::parse(&self.kernel_type).unwrap_or_default(),
            extensions: self.extensions.clone(),
            repository: repository.and_then(|image| ImageRef::parse(image).ok()),
            adopted: self.adopted.clone(),
        }
    }
}

/// Progress of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OsTrialState {
    /// The deployment is locked: no boot enters it.
    Staged,
    /// It is unlocked for the reboot that is requested next. This is durable before the request, and not before the
    /// unlocking: a boot that could not enter the deployment must not count as an attempt.
    Armed,
    /// The machine has booted into it. It may have been kept.
    Booted,
    /// It has failed and is being discarded or rolled back.
    RollingBack,
}

impl OsTrial {
    /// Records a deployment that was staged for this update.
    pub fn new(deployment: &str, previous: &str, update: &OsUpdate) -> Self {
        Self {
            deployment: deployment.to_owned(),
            previous: previous.to_owned(),
            image: update.image.as_ref().map(ToString::to_string),
            packages: update.packages.as_ref().map(TrialPackages::from),
            state: OsTrialState::Staged,
            remove_arguments: update.remove_arguments.to_string(),
            append_arguments: update.append_arguments.to_string(),
            keeps: false,
            bypassed: 0,
            leaving_boot: None,
        }
    }

    /// Returns what the deployment changes.
    pub fn update(&self) -> OsUpdate {
        let image = self.image.as_deref();
        OsUpdate {
            image: image.and_then(|image| ImageRef::parse(image).ok()),
            remove_arguments: KernelCommandLine::parse(&self.remove_arguments),
            append_arguments: KernelCommandLine::parse(&self.append_arguments),
            packages: self.packages.as_ref().map(TrialPackages::packages),
        }
    }

    /// Returns whether files are rolled back only after the next boot of a kernel: a soft reboot stays in the deployment.
    pub fn is_left_by_next_boot(&self, boot: Option<&str>) -> bool {
        let leaving = self.leaving_boot.as_deref();
        leaving.is_some() && leaving.map(kernel_of) == boot.map(kernel_of)
    }

    /// Returns whether a boot since the commit is an attempt at the deployment.
    pub const fn counts_boots(&self) -> bool {
        matches!(self.state, OsTrialState::Armed)
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_soft_reboot_does_not_leave_the_deployment() {
        let update = OsUpdate::default();
        let mut trial = OsTrial::new("two", "one", &update);
        assert!(!trial.is_left_by_next_boot(None));
        trial.leaving_boot = Some("a".to_owned());
        for (boot, is_left) in [("a", true), ("a+1", true), ("b", false), ("b+1", false)] {
            assert_eq!(trial.is_left_by_next_boot(Some(boot)), is_left, "{boot}");
        }
        assert!(!trial.is_left_by_next_boot(None));
    }
}
