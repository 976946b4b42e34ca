//! Reads the deployments from the files of libostree and GRUB.

use std::collections::BTreeMap;

use super::{
    boot_entries::{self, BootEntry},
    bootc::SWITCH_MARKER,
    booted_deployment::booted_deployment,
    deployed_image::DeployedImage,
    deployment_origin,
    error::OstreeError,
    layered_packages::LayeredPackages,
    repository_images,
    staged::Staged,
    trial_commands::{self, TrialState},
};
use crate::os::{
    Deployment, DeploymentId, Deployments, MAX_COMMAND_LINE_BYTES, StagedDeployment,
    grub::{ChangedFiles, HostFiles, mounts},
    trial_arguments::without_trial,
};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::KernelCommandLine;
use machinist_plan::ImageRef;
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
    pub(super) trial: TrialState,
    /// bootc or rpm-ostree has staged this deployment for machinist.
    switched: Option<DeploymentId>,
    /// The images of the deployments.
    images: BTreeMap<DeploymentId, DeployedImage>,
    /// The packages that rpm-ostree has added to each.
    packages: BTreeMap<DeploymentId, LayeredPackages>,
}

impl OstreeState {
    pub(super) fn read(root: &Root) -> Result<Self, OstreeError> {
        let entries = boot_entries::read(root)?;
        let mounts = mounts(root);
        let (stateroot, name) = booted_deployment(&mounts).ok_or(OstreeError::NotBooted)?;
        let files = ChangedFiles::read(root)?;
        let trial = TrialState::of(&files.environment);
        let next = match trial {
            TrialState::Unlocked => TrialState::Tried,
            other => other,
        };
        let next = trial_commands::boot(&HostFiles::new(root), &files.environment, next)?;
        let missing = |what: &str| OstreeError::NoEntry(what.to_owned());
        let booted = entries.iter().position(|one| one.id.as_str() == name);
        let selected = entries.iter().position(|one| one.is_selected_by(&next));
        let staged = Staged::read(root)?;
        let booted = booted.ok_or_else(|| missing(name))?;
        let booted_id = &entries[booted].id;
        let switched = switched_deployment(root, stateroot, staged.as_ref(), booted_id)?;
        let ids = entries.iter().map(|entry| &entry.id);
        let ids = ids.chain(staged.iter().map(|staged| &staged.id));
        let ids: Vec<&DeploymentId> = ids.collect();
        let packages_of = |id: &DeploymentId| repository_images::packages_of(root, stateroot, id);
        let packages = ids.iter().map(|id| ((*id).clone(), packages_of(id)));
        let packages = packages.collect();
        let images = ids
            .into_iter()
            .map(|id| (id.clone(), DeployedImage::of(root, stateroot, id)));
        Ok(Self {
            booted,
            selected: selected.ok_or_else(|| missing(&next.to_string()))?,
            images: images.collect(),
            packages,
            staged,
            stateroot: stateroot.to_owned(),
            switched,
            entries,
            files,
            trial,
        })
    }

    fn deployment(&self, id: &DeploymentId, arguments: &KernelCommandLine) -> Deployment {
        let (arguments, _) = without_trial(arguments);
        let DeployedImage { image, version, .. } = self.images.get(id).cloned().unwrap_or_default();
        let packages = self.packages_of(id);
        Deployment {
            image,
            version,
            kernel_type: packages.kernel_type(),
            extensions: packages.extensions(),
            ..Deployment::of_arguments(id.as_str(), arguments)
        }
    }

    fn of_entry(&self, entry: &BootEntry) -> Deployment {
        self.deployment(&entry.id, &entry.arguments)
    }

    pub(super) fn booted(&self) -> Deployment {
        self.of_entry(&self.entries[self.booted])
    }

    /// Whether a deployment, staged or finalized, has this commit.
    pub(super) fn has_commit(&self, commit: &str) -> bool {
        let mut deployments = self.images.keys();
        deployments.any(|id| deployment_origin::commit_of(id) == commit)
    }

    /// Whether a deployment has this image, or one with the same content; `None` is a tree of no image.
    pub(super) fn has_digest(&self, id: &DeploymentId, image: Option<&ImageRef>) -> bool {
        let found = self.images.get(id);
        match image {
            Some(image) => found.is_some_and(|found| found.is(image)),
            None => found.is_none_or(|found| found.image.is_none()),
        }
    }

    /// Whether a deployment, staged or finalized, was made from this image.
    pub(super) fn has_image(&self, image: &ImageRef) -> bool {
        let mut deployments = self.images.keys();
        deployments.any(|id| self.has_digest(id, Some(image)))
    }

    /// The packages that rpm-ostree has added to a deployment.
    pub(super) fn packages_of(&self, id: &DeploymentId) -> LayeredPackages {
        self.packages.get(id).cloned().unwrap_or_default()
    }

    /// Those of all deployments.
    pub(super) fn packages(&self) -> impl Iterator<Item = &LayeredPackages> {
        self.packages.values()
    }

    /// Whether the first deployment of the menu is a trial.
    pub(super) fn is_trial_first(&self) -> bool {
        self.entries.first().is_some_and(BootEntry::is_trial)
    }

    /// Whether the machine runs on a trial that is not kept.
    pub(super) fn is_trial_booted(&self) -> bool {
        self.entries[self.booted].is_trial()
    }

    /// The position of a trial that the machine has left. It is not the first one if an administrator has selected another
    /// deployment.
    pub(super) fn abandoned_trial(&self) -> Option<usize> {
        let mut trials = self.entries.iter().enumerate();
        let trial = trials.find(|(at, entry)| *at != self.booted && entry.is_trial());
        trial.map(|(at, _)| at)
    }

    /// Whether the next boot alone enters the trial, if that is finalized.
    pub(super) fn next_boot_tries_it(&self) -> bool {
        self.trial == TrialState::Unlocked
    }

    fn is_own(&self, staged: &Staged) -> bool {
        staged.is_trial() || self.switched.as_ref() == Some(&staged.id)
    }

    /// The deployment that bootc or rpm-ostree has staged for machinist.
    pub(super) const fn switched(&self) -> Option<&DeploymentId> {
        self.switched.as_ref()
    }

    /// The deployment of machinist that libostree finalizes at shutdown.
    pub(super) fn own_staged(&self) -> Option<&Staged> {
        let staged = self.staged.as_ref();
        staged.filter(|staged| self.is_own(staged))
    }

    /// The deployment that another program has staged.
    pub(super) fn foreign_staged(&self) -> Option<&Staged> {
        let staged = self.staged.as_ref();
        staged.filter(|staged| !self.is_own(staged) && !self.is_copy_of_trial(staged))
    }

    /// The deployment that another program has staged with the arguments of a trial: rpm-ostree copies those of a staged
    /// deployment, bootc and others those of the running one.
    pub(super) fn copy_of_trial(&self) -> Option<&Staged> {
        let staged = self.staged.as_ref();
        staged.filter(|staged| self.is_copy_of_trial(staged))
    }

    fn is_copy_of_trial(&self, staged: &Staged) -> bool {
        let has_trial_arguments = without_trial(&staged.arguments).1;
        has_trial_arguments && (self.is_trial_booted() || !self.is_own(staged))
    }

    pub(super) fn deployments(&self) -> Deployments {
        let waiting = self.own_staged().map(|staged| StagedDeployment {
            deployment: self.deployment(&staged.id, &staged.arguments),
            locked: staged.is_locked,
            is_deselected: false,
        });
        let abandoned = self.abandoned_trial();
        let left = abandoned.map(|at| StagedDeployment {
            deployment: self.of_entry(&self.entries[at]),
            locked: !self.next_boot_tries_it(),
            // GRUB leaves a trial at the first position.
            is_deselected: at != 0,
        });
        let mut others = self.entries.iter().enumerate();
        let other = others.find(|(at, _)| *at != self.booted && Some(*at) != abandoned);
        let fallback = match self.booted == self.selected {
            true => other.map(|(_, entry)| entry),
            false => self.entries.get(self.selected),
        };
        Deployments {
            booted: self.booted(),
            staged: waiting.or(left),
            fallback: fallback.map(|entry| self.of_entry(entry)),
            next: self.entries[self.selected].id.clone(),
        }
    }

    /// Refuses a step while anything is staged.
    pub(super) fn refuse_staged(&self) -> Result<(), OstreeError> {
        match &self.staged {
            Some(staged) => Err(OstreeError::ForeignStaged(staged.id.clone())),
            None => Ok(()),
        }
    }

    /// Refuses a step while another program has staged a deployment.
    fn refuse_foreign_staged(&self) -> Result<(), OstreeError> {
        match self.foreign_staged() {
            Some(staged) => Err(OstreeError::ForeignStaged(staged.id.clone())),
            None => Ok(()),
        }
    }

    /// Refuses a step that would replace what an administrator selected for the next boot: a staged deployment, or a
    /// first one that neither runs nor is an abandoned trial.
    pub(super) fn refuse_foreign(&self) -> Result<(), OstreeError> {
        self.refuse_foreign_staged()?;
        match self.booted != 0 && self.selected == 0 && self.abandoned_trial() != Some(0) {
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

/// The staged deployment, if it has what bootc or rpm-ostree was asked to stage. The file may be older than the deployment of
/// an administrator. Without another image, rpm-ostree keeps that of the running deployment.
fn switched_deployment(
    root: &Root,
    stateroot: &str,
    staged: Option<&Staged>,
    booted: &DeploymentId,
) -> Result<Option<DeploymentId>, OstreeError> {
    let (Some(staged), Ok(path)) = (staged, AbsPath::new(SWITCH_MARKER)) else {
        return Ok(None);
    };
    let text = match root.read_text(&path, MAX_COMMAND_LINE_BYTES) {
        Err(error) if error.is_not_found() => return Ok(None),
        text => text?,
    };
    let mut lines = text.lines();
    let image = lines.next().and_then(|line| ImageRef::parse(line).ok());
    let packages = lines.next();
    if image.is_none() && packages.is_none() {
        return Ok(None);
    }
    let has_image = match &image {
        // A path may have another image by now.
        Some(image) => {
            repository_images::check_image(root, stateroot, &staged.id, Some(image)).is_ok()
                || repository_images::is_origin(root, stateroot, &staged.id, image)
        }
        None => {
            let image_of = |id: &DeploymentId| DeployedImage::of(root, stateroot, id).image;
            image_of(&staged.id) == image_of(booted)
        }
    };
    let found = repository_images::packages_of(root, stateroot, &staged.id).requested;
    let has_packages = packages.is_none_or(|line| found.iter().eq(line.split_whitespace()));
    Ok((has_image && has_packages).then(|| staged.id.clone()))
}
