//! Stages a deployment, locked, and unlocks it for the next boot.

use std::time::Duration;

use super::{
    OSTREE_TIMEOUT, OstreeProvider, RpmOstree,
    bootc::SWITCH_MARKER,
    deployment_origin,
    error::OstreeError,
    image_download::UNANSWERED,
    new_deployment::NewDeployment,
    repository_images,
    staged::Staged,
    state::OstreeState,
    trial_commands::{NOT_FINALIZED, TrialState},
};
use crate::os::{
    DeploymentId, DesiredDeployment, HostCommand,
    grub::{ChangedFiles, NEXT_ENTRY},
    host_detection::is_there,
};
use machinist_base::error_chain::chain;
use machinist_plan::HostKind;

impl<C: HostCommand + RpmOstree> OstreeProvider<C> {
    /// Stages the deployment, locked. Returns `None` if the machine runs on such a deployment already.
    pub(super) async fn stage_deployment(
        &self,
        wanted: &DesiredDeployment,
        limit: Duration,
    ) -> Result<Option<DeploymentId>, OstreeError> {
        let state = self.settled_state()?;
        self.record_adopted(&state, wanted)?;
        let Some(new) = NewDeployment::of(&self.root, &state, wanted)? else {
            self.remove_trial(&state).await?;
            return Ok(None);
        };
        if let Some(staged) = new.staged {
            return Ok(Some(staged));
        }
        // libostree unlocks a deployment that replaces a staged one.
        self.remove_trial(&state).await?;
        let prepared = self.prepare_image(&state, new, wanted, limit).await;
        if let Err(error) = &prepared {
            // The steps that follow may fail as well.
            tracing::warn!("cannot prepare the OS image: {}", chain(error));
            if error.is_no_answer() {
                self.write_run_file(UNANSWERED, "")?;
            }
            let state = self.settled_state()?;
            self.remove_switched(state.switched()).await?;
        }
        let Some((new, origin)) = prepared? else {
            return Ok(None);
        };
        self.write_custom(&ChangedFiles::read(&self.root)?, &new.custom)
            .await?;
        let command = new.command(&self.root, &state.stateroot, &origin)?;
        let arguments: Vec<&str> = command.iter().map(String::as_str).collect();
        let deployed = async {
            // Preparing takes minutes, in which an administrator may have staged a deployment.
            self.settled_state()?.refuse_staged()?;
            self.admin("deploy", &arguments, limit).await
        };
        if let Err(error) = deployed.await {
            self.remove_failed_staging().await;
            return Err(error);
        }
        let staged =
            Staged::read(&self.root)?.ok_or(OstreeError::NothingStaged("ostree admin deploy"))?;
        if !staged.is_locked {
            self.admin("lock-finalization", &[], OSTREE_TIMEOUT).await?;
        }
        new.check_staged(&staged)?;
        Ok(Some(staged.id))
    }

    /// Removes what staging has written before `ostree admin deploy` failed.
    async fn remove_failed_staging(&self) {
        let removed = async {
            self.remove_stale_lock()?;
            let state = OstreeState::read(&self.root)?;
            self.remove_trial(&state).await
        };
        if let Err(error) = removed.await {
            tracing::warn!("parts of a failed deployment remain: {}", chain(&error));
        }
    }

    /// Returns the deployment with its final commit and arguments, and the file of its origin; `None` if it is equal to
    /// the running one.
    async fn prepare_image(
        &self,
        state: &OstreeState,
        new: NewDeployment,
        wanted: &DesiredDeployment,
        limit: Duration,
    ) -> Result<Option<(NewDeployment, String)>, OstreeError> {
        if let Some(update) = new.packages.clone() {
            let prepared = self.prepare_packages(state, new, &update, wanted, limit);
            return prepared.await;
        }
        let Some(image) = new.image.clone() else {
            return Ok(Some((new, self.write_booted_origin(state)?.to_owned())));
        };
        if self.host != HostKind::Bootc {
            let origin = self.write_origin(&repository_images::origin_text(&self.root, &image))?;
            return Ok(Some((new, origin.to_owned())));
        }
        let switched = self.switch(&image, &state.stateroot, limit).await?;
        let base = &switched.staged.arguments;
        let mut new = new.with_base(&self.root, base, &wanted.kernel_arguments)?;
        new.commit = Some(deployment_origin::commit_of(&switched.staged.id).to_owned());
        let origin = repository_images::with_reference(&self.root, &switched.origin, &image);
        let origin = self.write_origin(&origin)?;
        self.remove_switched(Some(&switched.staged.id)).await?;
        Ok(Some((new, origin.to_owned())))
    }

    /// Writes the origin of the running deployment, for one with the same tree.
    pub(super) fn write_booted_origin(
        &self,
        state: &OstreeState,
    ) -> Result<&'static str, OstreeError> {
        let booted = &state.entries[state.booted].id;
        let origin = deployment_origin::origin_of(&self.root, &state.stateroot, booted)?;
        self.write_origin(&origin)
    }

    /// Removes what bootc or rpm-ostree has staged for machinist, and what it leaves if it fails. Refuses to go on if
    /// something else is staged by now.
    pub(super) async fn remove_switched(
        &self,
        switched: Option<&DeploymentId>,
    ) -> Result<(), OstreeError> {
        if !is_there(&self.root, SWITCH_MARKER) {
            return Ok(());
        }
        let staged = self.settled_state()?.staged.map(|staged| staged.id);
        match staged {
            Some(staged) if Some(&staged) == switched => {
                self.admin("undeploy", &["0"], OSTREE_TIMEOUT).await?;
                self.remove_marker(SWITCH_MARKER).await
            }
            Some(staged) => {
                self.remove_marker(SWITCH_MARKER).await?;
                Err(OstreeError::ForeignStaged(staged))
            }
            None => {
                self.remove_stale_lock()?;
                self.remove_marker(SWITCH_MARKER).await
            }
        }
    }

    /// Lets libostree finalize the staged deployment, and GRUB try it once.
    pub(super) async fn unlock_staged(&self, state: &OstreeState) -> Result<(), OstreeError> {
        if let Some(requested) = state
            .files
            .environment
            .get(NEXT_ENTRY)
            .filter(|id| !id.is_empty())
        {
            tracing::warn!(
                "the next boot enters the new deployment and not {requested}, which was selected by grub-reboot"
            );
        }
        // libostree selects the new menu at shutdown.
        self.name_menu_link().await?;
        self.create_marker(NOT_FINALIZED).await?;
        self.set_trial(TrialState::Unlocked).await?;
        match state.own_staged().is_some_and(|staged| staged.is_locked) {
            true => {
                self.admin("lock-finalization", &["--unlock"], OSTREE_TIMEOUT)
                    .await
            }
            false => Ok(()),
        }
    }
}
