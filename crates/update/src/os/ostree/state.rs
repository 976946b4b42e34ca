//! Reads the deployments from the files of libostree and GRUB.

use super::{
    boot_entries::{self, BootEntry},
    error::OstreeError,
    staged::Staged,
    trial_block::{self, NOT_FINALIZED, NOT_REMOVED, TrialState},
};
use crate::os::{
    Deployment, DeploymentId, Deployments, MAX_COMMAND_LINE_BYTES, StagedDeployment,
    grub::{ChangedFiles, HostFiles, mounts},
    host_detection::is_there,
    trial_arguments::without_trial,
};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::KernelCommandLine;
use machinist_rootfs::Root;

/// The deployments, as the files describe them.
pub(super) struct OstreeState {
    /// The finalized deployments, in the order of the menu.
    pub(super) entries: Vec<BootEntry>,
    /// The deployment that libostree finalizes at shutdown.
    pub(super) staged: Option<Staged>,
    /// The position of the running deployment in the menu.
    pub(super) booted: usize,
    /// The position of the deployment that boots enter, apart from the one boot of a trial.
    pub(super) selected: usize,
    /// The group of deployments to which the running one belongs.
    pub(super) stateroot: String,
    pub(super) files: ChangedFiles,
    trial: TrialState,
    /// The trial is not in the menu.
    is_not_finalized: bool,
    is_not_removed: bool,
    /// The running kernel was started for a trial.
    is_trial_running: bool,
}

impl OstreeState {
    pub(super) fn read(root: &Root) -> Result<Self, OstreeError> {
        let entries = boot_entries::read(root)?;
        let mounts = mounts(root);
        let (stateroot, name) = booted_deployment(&mounts).ok_or(OstreeError::NotBooted)?;
        let files = ChangedFiles::read(root)?;
        let trial = TrialState::of(&files.block);
        let next = match trial {
            TrialState::Unlocked => TrialState::Locked,
            other => other,
        };
        let next = trial_block::boot(&HostFiles::new(root), &files.block, next)?;
        let missing = |what: &str| OstreeError::NoEntry(what.to_owned());
        let booted = entries.iter().position(|one| one.id.as_str() == name);
        let selected = entries.iter().position(|one| one.is_selected_by(&next));
        Ok(Self {
            booted: booted.ok_or_else(|| missing(name))?,
            selected: selected.ok_or_else(|| missing(&next.to_string()))?,
            staged: Staged::read(root)?,
            stateroot: stateroot.to_owned(),
            is_not_finalized: is_there(root, NOT_FINALIZED),
            is_not_removed: is_there(root, NOT_REMOVED),
            is_trial_running: is_trial_running(root)?,
            entries,
            files,
            trial,
        })
    }

    fn deployment(entry: &BootEntry) -> Deployment {
        let (arguments, _) = without_trial(&entry.arguments);
        Deployment::of_arguments(entry.id.as_str(), arguments)
    }

    pub(super) fn booted(&self) -> Deployment {
        Self::deployment(&self.entries[self.booted])
    }

    /// Whether the first deployment of the menu has the arguments of a trial.
    pub(super) fn is_trial_first(&self) -> bool {
        let first = self.entries.first();
        first.is_some_and(|entry| without_trial(&entry.arguments).1)
    }

    /// Whether GRUB enters the second deployment of the menu, or does so after the next boot.
    fn is_trial_finalized(&self) -> bool {
        match self.trial {
            TrialState::None => false,
            TrialState::Removed => self.is_not_removed,
            TrialState::Unlocked | TrialState::Locked => !self.is_not_finalized,
        }
    }

    /// Whether the machine runs on a trial that is not kept.
    pub(super) fn is_trial_booted(&self) -> bool {
        self.booted == 0 && self.is_trial_running && self.is_trial_finalized()
    }

    /// Whether the first deployment of the menu is a trial that the machine has left.
    pub(super) fn is_trial_left(&self) -> bool {
        self.booted != 0 && (self.is_trial_finalized() || self.is_trial_first())
    }

    /// Whether the next boot alone enters the trial, if that is finalized.
    pub(super) fn is_counting(&self) -> bool {
        self.trial == TrialState::Unlocked
    }

    /// The deployment of machinist that libostree finalizes at shutdown.
    pub(super) fn own_staged(&self) -> Option<&Staged> {
        let staged = self.staged.as_ref();
        staged.filter(|staged| without_trial(&staged.arguments).1)
    }

    /// The deployment that another program has staged.
    pub(super) fn foreign_staged(&self) -> Option<&Staged> {
        let staged = self.staged.as_ref();
        staged.filter(|staged| !without_trial(&staged.arguments).1)
    }

    pub(super) fn deployments(&self) -> Deployments {
        let waiting = self.own_staged().map(|staged| StagedDeployment {
            deployment: Deployment::of_arguments(
                staged.id.as_str(),
                without_trial(&staged.arguments).0,
            ),
            locked: staged.is_locked,
        });
        let left = self.entries.first().filter(|_| self.is_trial_left());
        let left = left.map(|entry| StagedDeployment {
            deployment: Self::deployment(entry),
            locked: !self.is_counting(),
        });
        let mut others = self.entries.iter().enumerate();
        let other =
            others.find(|(at, _)| *at != self.booted && !(*at == 0 && self.is_trial_left()));
        let fallback = match self.booted == self.selected {
            true => other.map(|(_, entry)| entry),
            false => self.entries.get(self.selected),
        };
        Deployments {
            booted: self.booted(),
            staged: waiting.or(left),
            fallback: fallback.map(Self::deployment),
            next: self.entries[self.selected].id.clone(),
        }
    }

    /// Refuses a step while another program has staged a deployment.
    pub(super) fn refuse_foreign_staged(&self) -> Result<(), OstreeError> {
        match self.foreign_staged() {
            Some(staged) => Err(OstreeError::ForeignStaged(staged.id.clone())),
            None => Ok(()),
        }
    }

    /// Refuses a step that would replace what the next boot is to enter.
    pub(super) fn refuse_foreign(&self) -> Result<(), OstreeError> {
        self.refuse_foreign_staged()?;
        match self.booted != 0 && self.selected == 0 && !self.is_trial_left() {
            true => Err(OstreeError::ForeignDefault(self.entries[0].id.clone())),
            false => Ok(()),
        }
    }

    /// Checks that this deployment is the first of the menu, with these arguments.
    pub(super) fn check_first(
        &self,
        id: &DeploymentId,
        arguments: &KernelCommandLine,
    ) -> Result<(), OstreeError> {
        let first = self.entries.first();
        let found = first
            .map(|entry| entry.arguments.clone())
            .unwrap_or_default();
        match first.is_some_and(|entry| entry.id == *id) && found == *arguments {
            true => Ok(()),
            false => Err(OstreeError::OtherArguments {
                found: found.to_string(),
                wanted: arguments.to_string(),
            }),
        }
    }

    /// The position of a deployment that stays in the menu.
    pub(super) fn position(&self, id: &DeploymentId) -> Option<usize> {
        self.entries.iter().position(|entry| entry.id == *id)
    }
}

fn is_trial_running(root: &Root) -> Result<bool, OstreeError> {
    let path = AbsPath::new("/proc/cmdline").map_err(|_| OstreeError::NotBooted)?;
    let running = root.read_text(&path, MAX_COMMAND_LINE_BYTES)?;
    Ok(without_trial(&KernelCommandLine::parse(&running)).1)
}

/// The stateroot and the name of the running deployment: the root file system, or /etc where that is a composefs image,
/// is mounted from `/ostree/deploy/STATEROOT/deploy/NAME` (proc_pid_mountinfo(5)).
fn booted_deployment(mounts: &str) -> Option<(&str, &str)> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(3);
        let (source, point) = (fields.next()?, fields.next()?);
        let (_, rest) = source.split_once("/ostree/deploy/")?;
        let (stateroot, rest) = rest.split_once("/deploy/")?;
        let name = rest.split('/').next()?;
        ["/", "/etc"].contains(&point).then_some((stateroot, name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_deployment_is_a_mount() {
        let plain = "22 1 8:2 /ostree/deploy/debian/deploy/ab.0 / rw - ext4 /dev/sda2 rw\n\
                     23 22 8:2 /ostree/deploy/debian/var /var rw - ext4 /dev/sda2 rw\n";
        assert_eq!(booted_deployment(plain), Some(("debian", "ab.0")));
        let composefs = "22 1 0:31 / / ro - overlay composefs ro\n\
                         23 22 0:4 /root/ostree/deploy/os/deploy/cd.1/etc /etc rw - btrfs /dev/sda2 rw\n";
        assert_eq!(booted_deployment(composefs), Some(("os", "cd.1")));
        let other = "22 1 8:2 / / rw - ext4 /dev/sda2 rw\n\
                     40 22 8:2 /ostree/deploy/debian/deploy/ab.0 /mnt rw - ext4 /dev/sda2 rw\n";
        assert_eq!(booted_deployment(other), None);
    }
}
