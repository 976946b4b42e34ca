//! Changes the kernel arguments of a host with packages and systemd-boot.
//!
//! A deployment is staged as a menu entry that sorts last, and unlocked by the EFI variable `LoaderEntryOneShot`, which
//! systemd-boot clears before it starts the entry. Boot counters (`+1` in the name of an entry) are not used, because
//! systemd-bless-boot.service makes such an entry permanent before the boot is judged. A deployment is kept by a menu
//! entry that sorts before the present default, and so hides the host's own entry of its kernel. Once it has no
//! arguments of machinist, it is removed if the host's own entry boots the same. Entries of the host, `loader.conf` and
//! kernels are never changed: the EFI system partition has no journal.

mod efi_variables;
mod error;
mod kept_entry;
mod menu_files;
mod new_entry;
mod obstacles;
mod state;

use std::{fmt, time::Duration};

pub(super) use self::{efi_variables::is_booted, new_entry::check, obstacles::obstacle};
use self::{
    efi_variables::one_shot,
    error::SystemdBootError,
    kept_entry::KeptEntry,
    new_entry::NewEntry,
    state::{SystemdBootState, TRIAL_FILE},
};
use super::{
    DeploymentId, Deployments, DesiredDeployment, HostCommand, OsError, OsProvider, ProviderStep,
    kept_arguments::KeptArguments, kernel_install_cmdline,
};
use machinist_plan::{HostKind, OsCapabilities};
use machinist_rootfs::Root;

/// What the provider can change.
pub(super) const CAPABILITIES: OsCapabilities = OsCapabilities {
    kernel_arguments: true,
    repeated_arguments: true,
    ..OsCapabilities::without_provider(HostKind::Packages)
};

/// The program that sets `LoaderEntryOneShot`.
const BOOTCTL: &str = "/usr/bin/bootctl";

/// Time limit of bootctl, which writes one EFI variable.
const BOOTCTL_TIMEOUT: Duration = Duration::from_secs(60);

/// The provider of hosts with packages and systemd-boot.
pub struct SystemdBootProvider<C> {
    root: Root,
    commands: C,
}

impl<C> fmt::Debug for SystemdBootProvider<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SystemdBootProvider")
            .finish_non_exhaustive()
    }
}

impl<C: HostCommand> SystemdBootProvider<C> {
    /// The provider of the host below `root`.
    pub const fn new(root: Root, commands: C) -> Self {
        Self { root, commands }
    }

    /// Selects the entry of the next boot; an empty name removes the request.
    async fn set_one_shot(&self, file: &str) -> Result<(), SystemdBootError> {
        let arguments = ["set-oneshot", file];
        let done = self.commands.run(BOOTCTL, &arguments, BOOTCTL_TIMEOUT);
        done.await.map_err(SystemdBootError::Bootctl)?;
        match one_shot(&self.root).unwrap_or_default() == file {
            true => Ok(()),
            false => Err(SystemdBootError::NotStored),
        }
    }

    /// Removes machinist's request for the next boot.
    async fn lock_entry(&self, state: &SystemdBootState) -> Result<(), SystemdBootError> {
        match state.is_unlocked() {
            true => self.set_one_shot("").await,
            false => Ok(()),
        }
    }

    /// Locks the staged deployment, then removes it and what an interrupted step left.
    async fn remove_entry(&self, state: &SystemdBootState) -> Result<(), SystemdBootError> {
        self.lock_entry(state).await?;
        // The entry of the trial is removed last: while it exists, an interrupted keep is continued.
        kernel_install_cmdline::follow(&self.root, &state.kept)?;
        for file in state.files.leftovers() {
            self.root.remove_file(&file)?;
        }
        Ok(())
    }

    async fn stage_entry(
        &self,
        wanted: &DesiredDeployment,
    ) -> Result<Option<DeploymentId>, SystemdBootError> {
        let state = SystemdBootState::read(&self.root)?;
        let Some(entry) = NewEntry::of(&state, wanted)? else {
            self.remove_entry(&state).await?;
            return Ok(None);
        };
        if let Some(text) = entry.text {
            self.remove_entry(&state).await?;
            kernel_install_cmdline::create_if_missing(&self.root, &state.default.options)?;
            state.files.write(&self.root, TRIAL_FILE, &text)?;
        }
        Ok(Some(DeploymentId::new(entry.id)))
    }

    /// Makes these arguments those of every boot.
    async fn select(
        &self,
        state: &SystemdBootState,
        kept: KeptArguments,
    ) -> Result<(), SystemdBootError> {
        let entry = KeptEntry::of(state, &kept)?;
        state.files.write(&self.root, &entry.file, &entry.text)?;
        self.remove_entry(&SystemdBootState::read(&self.root)?)
            .await
    }
}

#[async_trait::async_trait]
impl<C: HostCommand> OsProvider for SystemdBootProvider<C> {
    fn capabilities(&self) -> OsCapabilities {
        CAPABILITIES
    }

    async fn observe(&self) -> Result<Deployments, OsError> {
        let state = SystemdBootState::read(&self.root);
        let state = state.map_err(|error| error.at(ProviderStep::Observe))?;
        let (booted, selected) = (state.booted(), state.selected());
        let fallback = match booted.id == selected.id {
            true => state.previous(),
            false => Some(selected.clone()),
        };
        let staged = state.staged();
        Ok(Deployments {
            staged: staged.filter(|staged| staged.deployment.id != booted.id),
            next: selected.id,
            fallback,
            booted,
        })
    }

    async fn stage(
        &self,
        wanted: &DesiredDeployment,
        _limit: Duration,
    ) -> Result<Option<DeploymentId>, OsError> {
        let staged = self.stage_entry(wanted).await;
        staged.map_err(|error| error.at(ProviderStep::Stage))
    }

    async fn unlock(&self, staged: &DeploymentId) -> Result<(), OsError> {
        let at = |error: SystemdBootError| error.at(ProviderStep::Unlock);
        let state = SystemdBootState::read(&self.root).map_err(at)?;
        let there = state.staged();
        if there.is_none_or(|there| there.deployment.id != *staged) {
            return Err(missing(ProviderStep::Unlock, staged));
        }
        state.check_preferred().map_err(at)?;
        if let Some(requested) = state.one_shot_of_others() {
            tracing::warn!(
                "the next boot enters {staged} and not {requested}, which was selected by bootctl set-oneshot"
            );
        }
        self.set_one_shot(TRIAL_FILE).await.map_err(at)
    }

    async fn lock(&self) -> Result<(), OsError> {
        let at = |error: SystemdBootError| error.at(ProviderStep::Lock);
        let state = SystemdBootState::read(&self.root).map_err(at)?;
        self.lock_entry(&state).await.map_err(at)
    }

    async fn keep(&self, booted: &DeploymentId) -> Result<(), OsError> {
        let at = |error: SystemdBootError| error.at(ProviderStep::Keep);
        let state = SystemdBootState::read(&self.root).map_err(at)?;
        let now = state.booted();
        if now.id != *booted {
            return Err(missing(ProviderStep::Keep, booted));
        }
        state.check_preferred().map_err(at)?;
        if state.selected().id == now.id {
            // An earlier process may have ended before it removed the entry of the trial.
            return match state.staged_id().as_ref() == Some(booted) {
                true => self.remove_entry(&state).await.map_err(at),
                false => Ok(()),
            };
        }
        let own = state.own_arguments(&now.kernel_arguments).map_err(at)?;
        let kept = state.kept.followed_by(state.host.clone(), own);
        self.select(&state, kept).await.map_err(at)
    }

    async fn discard(&self) -> Result<(), OsError> {
        let at = |error: SystemdBootError| error.at(ProviderStep::Discard);
        let state = SystemdBootState::read(&self.root).map_err(at)?;
        self.remove_entry(&state).await.map_err(at)
    }

    async fn clean_up(&self) -> Result<(), OsError> {
        let at = |error: SystemdBootError| error.at(ProviderStep::CleanUp);
        let state = SystemdBootState::read(&self.root).map_err(at)?;
        if state.is_trial_running() || state.staged_id().is_some() {
            return Ok(());
        }
        let removed = kernel_install_cmdline::remove_created(&self.root, &state.kept, &state.host);
        removed.map_err(|error| at(error.into()))?;
        if let Some(file) = state.unneeded_entry() {
            state.files.remove(&self.root, &file).map_err(at)?;
            tracing::info!("removed the boot entry {file}, which has no arguments of a config");
        }
        Ok(())
    }

    async fn roll_back(&self, to: &DeploymentId) -> Result<(), OsError> {
        let at = |error: SystemdBootError| error.at(ProviderStep::RollBack);
        let state = SystemdBootState::read(&self.root).map_err(at)?;
        if state.selected().id == *to {
            return self.remove_entry(&state).await.map_err(at);
        }
        let previous = state.previous().filter(|previous| previous.id == *to);
        let (Some(_), Some(current)) = (previous, state.kept.previous.clone()) else {
            return Err(missing(ProviderStep::RollBack, to));
        };
        let kept = state.kept.followed_by(state.host.clone(), current);
        self.select(&state, kept).await.map_err(at)
    }
}

fn missing(step: ProviderStep, id: &DeploymentId) -> OsError {
    OsError::DeploymentMissing {
        step,
        id: id.clone(),
    }
}

#[cfg(test)]
mod tests;
