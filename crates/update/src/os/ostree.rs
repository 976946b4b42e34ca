//! Changes the image, the kernel arguments and the packages of a host with OSTree and GRUB.
//!
//! `ostree admin` stages a deployment of an image, or of the running commit, with other arguments. libostree finalizes it
//! at shutdown, unless it is locked: it merges /etc and makes the deployment the first of GRUB's menu, which every boot
//! enters. Commands in custom.cfg make it a trial. In the first boot of the new menu GRUB notes in its environment block
//! that it has entered the deployment, and from then on it enters the second one, which ran before. Once the deployment
//! is kept, the note goes. Commits and the directories of deployments are changed by `ostree admin` only.

mod boot_entries;
mod bootc;
mod booted_deployment;
mod commit_image;
mod deployed_image;
mod deployment_origin;
mod download_progress;
mod error;
mod fetched_images;
mod image_download;
mod layered_packages;
mod layering;
mod menu_link;
mod new_deployment;
mod obstacles;
mod own_packages;
mod package_repository;
mod package_update;
mod read_only_mounts;
mod repository_images;
mod signature_source;
mod space_reserve;
mod staged;
mod staging;
mod state;
mod sysroot_lock;
mod trial_commands;

use std::{error::Error, fmt, time::Duration};

use self::{
    bootc::SWITCH_MARKER,
    error::OstreeError,
    image_download::UNANSWERED,
    new_deployment::argument_words,
    staged::Staged,
    state::OstreeState,
    trial_commands::{MENU_UNCHANGED, NOT_FINALIZED, TrialState, custom_config},
};
pub(super) use self::{
    new_deployment::check,
    obstacles::{capabilities, obstacle},
    repository_images::facts,
};
use super::{
    DeploymentId, Deployments, DesiredDeployment, FetchProgress, FetchedImage, HostCommand,
    OsError, OsProvider, ProviderStep, RpmOstree,
    grub::ChangedFiles,
    host_detection::{host_kind, is_there},
    trial_arguments::without_trial,
};
use machinist_base::{abs_path::AbsPath, error_chain::chain};
use machinist_plan::{HostKind, OsCapabilities};
use machinist_rootfs::Root;

/// The program that changes deployments.
const OSTREE: &str = "/usr/bin/ostree";

/// The commands of `ostree admin` that select another menu, by a rename after libostree has synchronized the file system:
/// a power cut may lose the menu ([`menu_link`]).
const CHANGES_MENU: [&str; 3] = ["undeploy", "set-default", "instutil set-kargs"];

/// Time limit of a command that writes a new menu: libostree synchronizes file systems and runs grub-mkconfig, which
/// needs 12 s on an emulated machine.
const OSTREE_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// The provider of hosts with OSTree and GRUB.
pub struct OstreeProvider<C> {
    root: Root,
    /// With bootc, with rpm-ostree, or with neither.
    host: HostKind,
    commands: C,
}

impl<C> fmt::Debug for OstreeProvider<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OstreeProvider").finish_non_exhaustive()
    }
}

impl<C: HostCommand + RpmOstree> OstreeProvider<C> {
    /// The provider of the host below `root`.
    pub fn new(root: Root, commands: C) -> Self {
        Self {
            host: host_kind(&root),
            root,
            commands,
        }
    }

    /// The image of a deployment, if nothing of it must be downloaded.
    fn find_fetched(
        &self,
        wanted: &DesiredDeployment,
    ) -> Result<Option<FetchedImage>, OstreeError> {
        let image = match &wanted.image {
            Some(_) if is_there(&self.root, UNANSWERED) => None,
            Some(image) => repository_images::find_complete(&self.root, image)?,
            None => Some(FetchedImage::default()),
        };
        let packages = self.package_update(wanted)?;
        Ok(image.filter(|_| packages.is_none_or(|update| self.are_downloaded(&update))))
    }

    async fn stop_fetch(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.commands.stop_background().await?;
        self.commands.cancel_change().await?;
        Ok(package_repository::select(&self.root, None)?)
    }

    async fn admin(
        &self,
        command: &'static str,
        arguments: &[&str],
        limit: Duration,
    ) -> Result<(), OstreeError> {
        let changes_menu = CHANGES_MENU.contains(&command);
        if changes_menu && let Err(error) = self.name_menu_link().await {
            tracing::warn!(
                "if the power fails during ostree admin {command}, GRUB may find no menu: {}",
                chain(&error)
            );
        }
        let mut all = vec!["admin"];
        all.extend(command.split(' '));
        all.extend(arguments);
        let done = self.commands.run(OSTREE, &all, limit).await;
        done.map_err(|source| OstreeError::Command { command, source })?;
        match changes_menu {
            true => self.flush_boot().await,
            false => Ok(()),
        }
    }

    /// Writes which deployment of the menu GRUB enters.
    async fn set_trial(&self, trial: TrialState) -> Result<(), OstreeError> {
        // Programs such as greenboot write other variables at any moment.
        let files = ChangedFiles::read(&self.root)?;
        let environment = trial.written_to(&files.environment);
        let environment = ChangedFiles::new_environment(&self.root, &environment)?;
        self.write_grub_file(&environment).await
    }

    async fn write_custom(&self, files: &ChangedFiles, custom: &str) -> Result<(), OstreeError> {
        match files.new_custom(&self.root, custom) {
            Some(custom) => self.write_grub_file(&custom).await,
            None => Ok(()),
        }
    }

    /// Removes what a trial leaves beside its deployment. No boot depends on it any more.
    async fn end_trial(&self, state: &OstreeState) -> Result<(), OstreeError> {
        if state.trial != TrialState::None {
            self.set_trial(TrialState::None).await?;
        }
        for file in [NOT_FINALIZED, MENU_UNCHANGED] {
            self.remove_marker(file).await?;
        }
        self.remove_menu_link_name().await?;
        let custom = custom_config(&state.files.custom, false);
        self.write_custom(&state.files, &custom).await?;
        for file in ChangedFiles::paths(&self.root) {
            self.remove_interrupted_write(&file).await?;
        }
        self.try_remove_reference().await;
        Ok(())
    }

    /// Removes a deployment that another program, such as an automatic update, has staged with the arguments of a trial. The
    /// next boot would enter it whatever the verdict about the trial is, and no boot loader would leave it if it fails.
    async fn remove_copy_of_trial(&self, staged: &Staged) -> Result<(), OstreeError> {
        tracing::warn!(
            "removing the deployment {}, which another program has staged with the arguments of a trial that is not kept; stage \
             it again when machinist's update has ended",
            staged.id
        );
        self.admin("undeploy", &["0"], OSTREE_TIMEOUT).await
    }

    /// Removes the staged deployment, and one that the machine has left.
    async fn remove_trial(&self, state: &OstreeState) -> Result<(), OstreeError> {
        if let Some(staged) = state.copy_of_trial() {
            self.remove_copy_of_trial(staged).await?;
        } else if state.own_staged().is_some() {
            // The staged one comes before those of the menu.
            self.admin("undeploy", &["0"], OSTREE_TIMEOUT).await?;
        }
        self.remove_marker(SWITCH_MARKER).await?;
        if state.is_trial_booted() {
            // The next boot still has to leave it.
            return Ok(());
        }
        if let Some(position) = state.abandoned_trial() {
            self.remove_abandoned(state, position).await?;
        }
        self.end_trial(&OstreeState::read(&self.root)?).await
    }

    async fn remove_abandoned(
        &self,
        state: &OstreeState,
        position: usize,
    ) -> Result<(), OstreeError> {
        match position {
            0 => self.skip_first(state).await?,
            _ => self.set_trial(TrialState::None).await?,
        }
        let staged = usize::from(state.foreign_staged().is_some());
        let index = (position + staged).to_string();
        self.admin("undeploy", &[&index], OSTREE_TIMEOUT).await?;
        // Another program may have changed the positions meanwhile.
        match OstreeState::read(&self.root)?.abandoned_trial() {
            Some(_) => Err(OstreeError::TrialRemains),
            None => Ok(()),
        }
    }

    /// Lets GRUB enter the second deployment until the menu changes.
    async fn skip_first(&self, state: &OstreeState) -> Result<(), OstreeError> {
        // The commands may be those of another version, such as before an update of the image.
        let custom = custom_config(&state.files.custom, true);
        self.write_custom(&state.files, &custom).await?;
        self.create_marker(MENU_UNCHANGED).await?;
        self.set_trial(TrialState::SkipFirst).await
    }

    async fn lock_trial(&self, state: &OstreeState) -> Result<(), OstreeError> {
        if state.own_staged().is_some_and(|staged| !staged.is_locked) {
            self.admin("lock-finalization", &[], OSTREE_TIMEOUT).await?;
        }
        match state.trial {
            TrialState::None => Ok(()),
            TrialState::SkipFirst if is_there(&self.root, MENU_UNCHANGED) => Ok(()),
            _ if state.is_trial_first() => self.skip_first(state).await,
            _ => {
                self.set_trial(TrialState::None).await?;
                self.remove_marker(NOT_FINALIZED).await
            }
        }
    }

    /// Makes the running deployment the first of the menu, without the arguments of the trial.
    async fn keep_booted(&self, state: &OstreeState) -> Result<(), OstreeError> {
        state.refuse_foreign()?;
        // Otherwise a boot after the change of the menu would enter the second deployment.
        self.lock_trial(state).await?;
        self.select(state, state.booted).await?;
        self.end_trial(&OstreeState::read(&self.root)?).await
    }

    /// Makes a deployment the first of the menu, without the arguments of a trial.
    async fn select(&self, state: &OstreeState, position: usize) -> Result<(), OstreeError> {
        // The command changes the arguments of the first deployment, which would be a staged one.
        state.refuse_staged()?;
        if position != 0 {
            let position = position.to_string();
            self.admin("set-default", &[&position], OSTREE_TIMEOUT)
                .await?;
        }
        let entry = &state.entries[position];
        let (arguments, is_trial) = without_trial(&entry.arguments);
        if is_trial {
            let words = argument_words(&self.root, &arguments)?;
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            // This command takes no lock itself, changes the first deployment, and removes what no deployment needs.
            let lock = self.lock_sysroot()?;
            let present = OstreeState::read(&self.root)?;
            present.refuse_staged()?;
            present.check_first(&entry.id, &entry.arguments)?;
            self.admin("instutil set-kargs", &words, OSTREE_TIMEOUT)
                .await?;
            drop(lock);
        }
        OstreeState::read(&self.root)?.check_first(&entry.id, &arguments)
    }
}

#[async_trait::async_trait]
impl<C: HostCommand + RpmOstree> OsProvider for OstreeProvider<C> {
    fn capabilities(&self) -> OsCapabilities {
        capabilities(&self.root)
    }

    fn has_etc_per_deployment(&self) -> bool {
        true
    }

    async fn observe(&self) -> Result<Deployments, OsError> {
        let state = OstreeState::read(&self.root);
        let state = state.map_err(|error| error.at(ProviderStep::Observe))?;
        Ok(state.deployments())
    }

    async fn fetched(&self, wanted: &DesiredDeployment) -> Result<Option<FetchedImage>, OsError> {
        let fetched = self.find_fetched(wanted);
        fetched.map_err(|error| error.at(ProviderStep::Fetch))
    }

    async fn fetch(
        &self,
        wanted: &DesiredDeployment,
        limit: Duration,
    ) -> Result<FetchedImage, OsError> {
        let begun = self.begin_progress().map_err(OstreeError::from);
        begun.map_err(|error| error.at(ProviderStep::Fetch))?;
        let fetched = match &wanted.image {
            Some(image) => self.download(image, limit).await?,
            None => FetchedImage::default(),
        };
        self.download_packages(wanted, limit).await?;
        let removed = self.remove_marker(UNANSWERED).await;
        removed.map_err(|error| error.at(ProviderStep::Fetch))?;
        Ok(fetched)
    }

    async fn fetch_progress(&self) -> Option<FetchProgress> {
        Some(self.download_progress().await)
    }

    async fn check_fetch(&self) -> Result<(), OsError> {
        let Err(error) = self.check_reserve() else {
            return Ok(());
        };
        self.cancel_fetch().await?;
        self.try_remove_layers().await;
        Err(self.no_space(error.into()))
    }

    async fn cancel_fetch(&self) -> Result<(), OsError> {
        let stopped = self.stop_fetch().await.map_err(OstreeError::Stop);
        stopped.map_err(|error| error.at(ProviderStep::Fetch))
    }

    async fn clean_up(&self) -> Result<(), OsError> {
        let at = |error: OstreeError| error.at(ProviderStep::CleanUp);
        // A process that was killed may have left a download.
        let stopped = self.commands.stop_background().await;
        stopped.map_err(|error| at(OstreeError::Stop(error)))?;
        package_repository::remove_all(&self.root).map_err(|error| at(error.into()))?;
        self.try_remove_reference().await;
        self.try_prune_own();
        self.remove_unneeded_menu_link_name().await.map_err(at)?;
        self.remove_images(None).await.map_err(at)
    }

    async fn stage(
        &self,
        wanted: &DesiredDeployment,
        limit: Duration,
    ) -> Result<Option<DeploymentId>, OsError> {
        let staged = self.stage_deployment(wanted, limit).await;
        staged.map_err(|error| error.at(ProviderStep::Stage))
    }

    /// A deployment that was finalized for an earlier boot has the /etc of that time: unless the machine runs on it, this
    /// fails and the caller stages it again.
    async fn unlock(&self, staged: &DeploymentId) -> Result<(), OsError> {
        let at = |error: OstreeError| error.at(ProviderStep::Unlock);
        let state = OstreeState::read(&self.root).map_err(at)?;
        match state.own_staged() {
            Some(there) if there.id == *staged => self.unlock_staged(&state).await.map_err(at),
            _ if state.is_trial_booted() && state.booted().id == *staged => {
                self.remove_copy().await?;
                let state = OstreeState::read(&self.root).map_err(at)?;
                state.refuse_staged().map_err(at)?;
                state.refuse_foreign().map_err(at)?;
                let unlocked = self.set_trial(TrialState::Unlocked).await;
                unlocked.map_err(at)
            }
            _ => Err(missing(ProviderStep::Unlock, staged)),
        }
    }

    fn staging_directory(&self) -> Option<AbsPath> {
        AbsPath::new(staged::STAGING_DIRECTORY).ok()
    }

    async fn remove_copy(&self) -> Result<(), OsError> {
        let at = |error: OstreeError| error.at(ProviderStep::Discard);
        let state = OstreeState::read(&self.root).map_err(at)?;
        if state.copy_of_trial().is_none() {
            return Ok(());
        }
        match self.settled_state().map_err(at)?.copy_of_trial() {
            Some(staged) => self.remove_copy_of_trial(staged).await.map_err(at),
            None => Ok(()),
        }
    }

    async fn lock(&self) -> Result<(), OsError> {
        let at = |error: OstreeError| error.at(ProviderStep::Lock);
        let state = OstreeState::read(&self.root).map_err(at)?;
        self.lock_trial(&state).await.map_err(at)
    }

    async fn keep(&self, booted: &DeploymentId) -> Result<(), OsError> {
        let at = |error: OstreeError| error.at(ProviderStep::Keep);
        let mut state = self.settled_state().map_err(at)?;
        if state.booted().id != *booted {
            return Err(missing(ProviderStep::Keep, booted));
        }
        if let Some(staged) = state.copy_of_trial() {
            self.remove_copy_of_trial(staged).await.map_err(at)?;
            state = OstreeState::read(&self.root).map_err(at)?;
        }
        match state.selected == state.booted && !state.is_trial_first() {
            // It is kept already, and the next trial, which is staged, needs what this would remove.
            true if state.own_staged().is_some() => Ok(()),
            // An earlier process may have ended before it removed what the trial leaves.
            true => self.end_trial(&state).await.map_err(at),
            false => self.keep_booted(&state).await.map_err(at),
        }
    }

    async fn discard(&self) -> Result<(), OsError> {
        let at = |error: OstreeError| error.at(ProviderStep::Discard);
        let state = self.settled_state().map_err(at)?;
        self.remove_trial(&state).await.map_err(at)?;
        self.remove_stale_lock().map_err(at)?;
        package_repository::select(&self.root, None).map_err(|error| at(error.into()))?;
        self.try_remove_images(None).await;
        Ok(())
    }

    async fn roll_back(&self, to: &DeploymentId) -> Result<(), OsError> {
        let at = |error: OstreeError| error.at(ProviderStep::RollBack);
        let state = self.settled_state().map_err(at)?;
        let is_next = state.entries[state.selected].id == *to;
        if !is_next && state.position(to).is_none() {
            return Err(missing(ProviderStep::RollBack, to));
        }
        self.remove_trial(&state).await.map_err(at)?;
        let state = OstreeState::read(&self.root).map_err(at)?;
        match state.position(to) {
            Some(position) if position == state.selected => return Ok(()),
            Some(position) => self.select(&state, position).await.map_err(at)?,
            None => return Err(missing(ProviderStep::RollBack, to)),
        }
        self.remove_menu_link_name().await.map_err(at)
    }
}

fn missing(step: ProviderStep, id: &DeploymentId) -> OsError {
    OsError::DeploymentMissing {
        step,
        id: id.clone(),
    }
}
