//! Changes the kernel arguments of a host with packages and GRUB.
//!
//! A deployment is staged as an entry in a section of custom.cfg, and unlocked by `next_entry` in GRUB's environment
//! block, which GRUB clears when it enters the entry.
//!
//! On Debian, it is kept by a file below /etc/default/grub.d and a new grub.cfg, which grub-mkconfig writes beside the
//! present one, and which replaces that only after a simulated boot of it had the arguments. update-grub is not called: it
//! truncates grub.cfg and writes it without a sync. Where GRUB reads boot entries (Fedora), it is kept by an entry of its
//! own, which the variable `saved_entry` selects.

mod boot_file_system;
mod boot_file_writer;
mod changed_files;
mod error;
mod foreign_mkconfig;
mod host_files;
mod host_mounts;
mod kept_entries;
mod kept_entry;
mod menu_source;
mod new_entry;
mod obstacles;
mod state;
mod trial_entry;

use std::{fmt, time::Duration};

pub(super) use self::{
    boot_file_system::flush,
    boot_file_writer::NEW_SUFFIX,
    changed_files::{ChangedFiles, NewGrubFile},
    error::GrubError,
    host_files::{HostFiles, in_grub_directory},
    host_mounts::{mount_of, mounts, real_path},
    menu_source::MenuSource,
    new_entry::check,
    obstacles::{loader_obstacle, loads_kexec, obstacle},
    state::{NEXT_ENTRY, environment_with_next},
    trial_entry::with_section,
};
use self::{
    foreign_mkconfig::check_no_other_mkconfig,
    host_files::path,
    kept_entry::KeptEntry,
    new_entry::NewEntry,
    obstacles::grub_mkconfig,
    state::{DEFAULT_FILE, GrubState, boot, own_arguments},
    trial_entry::{loads_initrd, staged_id},
};
use super::{
    DeploymentId, Deployments, DesiredDeployment, HostCommand, OsError, OsProvider, ProviderStep,
    kept_arguments::{KeptArguments, joined},
    kernel_install_cmdline,
    trial_arguments::is_trial_id,
};
use machinist_base::abs_path::AbsPath;
use machinist_boot_loader::grub::{BootError, EnvironmentBlock, GrubFiles as _, default_file};
use machinist_ignition::KernelCommandLine;
use machinist_plan::{HostKind, OsCapabilities};
use machinist_rootfs::Root;

/// What the provider can change.
pub(super) const CAPABILITIES: OsCapabilities = OsCapabilities {
    kernel_arguments: true,
    repeated_arguments: true,
    ..OsCapabilities::without_provider(HostKind::Packages)
};

/// Where grub-mkconfig writes the new configuration.
const NEW_CONFIG: &str = "/boot/grub/machinist-new.cfg";

/// The mode of boot entries.
const ENTRY_MODE: u32 = 0o644;

/// How often grub-mkconfig runs while another program writes grub.cfg.
const MAX_CONFIG_WRITES: u32 = 3;

/// Time limit of grub-mkconfig. It needs 11 s on an emulated machine, and longer if os-prober looks at many disks.
const MKCONFIG_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// The provider of hosts with packages and GRUB.
pub struct GrubProvider<C> {
    root: Root,
    commands: C,
}

impl<C> fmt::Debug for GrubProvider<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrubProvider").finish_non_exhaustive()
    }
}

impl<C: HostCommand> GrubProvider<C> {
    /// The provider of the host below `root`.
    pub const fn new(root: Root, commands: C) -> Self {
        Self { root, commands }
    }

    fn replace(&self, at: &str, text: &str, mode: u32) -> Result<(), GrubError> {
        boot_file_writer::replace_plain(&self.root, at, text, mode)
    }

    async fn write_custom(&self, text: &str) -> Result<(), GrubError> {
        let file = in_grub_directory(&self.root, "custom.cfg");
        self.write_for_grub(&path(&file)?, text, 0o600).await
    }

    async fn set_next_entry(
        &self,
        environment: &EnvironmentBlock,
        id: Option<&str>,
    ) -> Result<(), GrubError> {
        self.write_environment(&environment_with_next(environment, id))
            .await
    }

    async fn write_environment(&self, environment: &EnvironmentBlock) -> Result<(), GrubError> {
        let text = environment.to_text().map_err(BootError::from)?;
        let file = in_grub_directory(&self.root, "grubenv");
        self.write_for_grub(&path(&file)?, &text, 0o600).await
    }

    /// Writes a file that GRUB reads.
    async fn write_for_grub(&self, file: &AbsPath, text: &str, mode: u32) -> Result<(), GrubError> {
        boot_file_writer::write(&self.root, &self.commands, file, text, mode).await
    }

    /// Removes machinist's request for the next boot.
    async fn lock_entry(&self, state: &GrubState) -> Result<(), GrubError> {
        let own = state.environment.get(NEXT_ENTRY);
        match own.is_some_and(is_trial_id) {
            true => self.set_next_entry(&state.environment, None).await,
            false => Ok(()),
        }
    }

    /// The state after an interrupted keep was undone, and an entry whose kernel was removed was replaced.
    async fn recovered_state(&self) -> Result<GrubState, GrubError> {
        let state = self.state_before_keep().await?;
        let before = match &state.unfinished {
            Some(before) => before,
            None if state.is_interrupted && state.menu == MenuSource::GrubConfig => &state.kept,
            None => return Ok(state),
        };
        match &state.host {
            // The distribution's grub-mkconfig has read the file of kept arguments, and written them to grub.cfg.
            Some(host) if !state.is_interrupted => {
                let before = KeptArguments {
                    host: host.clone(),
                    ..before.clone()
                };
                self.select_by_config(&state, &before).await?;
            }
            _ => self.replace(DEFAULT_FILE, &default_text(before)?, 0o644)?,
        }
        GrubState::read(&self.root)
    }

    /// Like [`Self::recovered_state`], for a keep that continues: the file of kept arguments stays. A grub-mkconfig of the
    /// distribution may have read it already, and would write arguments to grub.cfg that no file has.
    async fn state_before_keep(&self) -> Result<GrubState, GrubError> {
        let state = GrubState::read(&self.root)?;
        if state.is_diverted {
            tracing::warn!("a new kernel has the arguments of a trial; selecting the kept entry");
            self.write_environment(&state.environment).await?;
        }
        match (&state.dead, state.is_interrupted, state.menu) {
            (Some(dead), ..) => {
                tracing::info!("replacing {}, whose kernel was removed", dead.file);
                self.select_by_entry(&state, &dead.kept).await?;
            }
            (None, false, _) | (None, true, MenuSource::GrubConfig) => return Ok(state),
            (None, true, MenuSource::BlsConfig) => kept_entries::remove_newest(&self.root)?,
        }
        GrubState::read(&self.root)
    }

    /// Locks the staged deployment, then removes it.
    async fn remove_entry(&self, state: &GrubState) -> Result<(), GrubError> {
        self.lock_entry(state).await?;
        // The entry of the trial is removed last: while it exists, an interrupted keep is continued.
        if state.menu == MenuSource::BlsConfig && !state.is_interrupted {
            kept_entries::remove_older(&self.root)?;
            kernel_install_cmdline::follow(&self.root, &state.kept)?;
        }
        match staged_id(&state.custom) {
            Some(_) => self.write_custom(&with_section(&state.custom, None)).await,
            None => Ok(()),
        }
    }

    async fn stage_entry(
        &self,
        wanted: &DesiredDeployment,
    ) -> Result<Option<DeploymentId>, GrubError> {
        let state = self.recovered_state().await?;
        let state = self.with_kept_entry(state, wanted).await?;
        let Some(entry) = NewEntry::of(&self.root, &state, wanted)? else {
            self.remove_entry(&state).await?;
            return Ok(None);
        };
        if let Some(custom) = entry.custom {
            self.lock_entry(&state).await?;
            if state.menu == MenuSource::BlsConfig {
                let options = state.without_tuned(&state.selected().kernel_arguments);
                kernel_install_cmdline::create_if_missing(&self.root, &options.to_string())?;
            }
            self.write_custom(&custom).await?;
        }
        Ok(Some(DeploymentId::new(entry.id)))
    }

    /// Makes these arguments those of every boot.
    async fn select(&self, state: &GrubState, kept: &KeptArguments) -> Result<(), GrubError> {
        match state.menu {
            MenuSource::GrubConfig => self.select_by_config(state, kept).await,
            MenuSource::BlsConfig => self.select_by_entry(state, kept).await,
        }
    }

    /// Writes a menu entry with these arguments, and makes it the saved one.
    async fn select_by_entry(
        &self,
        state: &GrubState,
        kept: &KeptArguments,
    ) -> Result<(), GrubError> {
        let entry = KeptEntry::of(&self.root, state, kept)?;
        self.write_for_grub(&entry.file, &entry.text, ENTRY_MODE)
            .await?;
        self.write_environment(&entry.environment).await?;
        self.remove_entry(&GrubState::read(&self.root)?).await
    }

    /// Writes the file and a new grub.cfg for these arguments.
    async fn select_by_config(
        &self,
        state: &GrubState,
        kept: &KeptArguments,
    ) -> Result<(), GrubError> {
        let wanted = joined(&kept.host, &kept.current);
        let before = HostFiles::new(&self.root).text(DEFAULT_FILE);
        self.replace(DEFAULT_FILE, &default_text(kept)?, 0o644)?;
        if let Err(error) = self.write_config(state, &wanted).await {
            // It may have failed after it had replaced grub.cfg.
            let now = GrubState::read(&self.root);
            let is_selected = now.is_ok_and(|now| now.selected().kernel_arguments == wanted);
            if is_selected || error.is_busy() {
                return Err(error);
            }
            match before {
                Some(before) => self.replace(DEFAULT_FILE, &before, 0o644)?,
                None => self.root.remove_file(&path(DEFAULT_FILE)?)?,
            }
            return Err(error);
        }
        // grub-mkconfig takes long enough for others to change these files.
        self.remove_entry(&GrubState::read(&self.root)?).await
    }

    /// Replaces grub.cfg by one with these arguments; on an error it is unchanged.
    async fn write_config(
        &self,
        state: &GrubState,
        wanted: &KernelCommandLine,
    ) -> Result<(), GrubError> {
        let config = path(&in_grub_directory(&self.root, "grub.cfg"))?;
        let config = real_path(&self.root, &config).unwrap_or(config);
        let current = || HostFiles::new(&self.root).text(config.as_str());
        for _ in 0..MAX_CONFIG_WRITES {
            let before = current();
            let made = self.make_config(state, wanted).await;
            let made = made.and_then(|()| check_no_other_mkconfig(&self.root, NEW_CONFIG));
            if let Err(error) = made {
                self.remove_new_config()?;
                return Err(error);
            }
            // A package with another kernel may have written it meanwhile.
            if current() != before {
                continue;
            }
            let new = path(NEW_CONFIG)?;
            match boot_file_writer::replace(&self.root, &self.commands, &new, &config).await {
                Err(GrubError::FileChanged(_)) => {}
                replaced => return replaced,
            }
        }
        self.remove_new_config()?;
        Err(GrubError::ConfigChanged)
    }

    /// Lets grub-mkconfig write the new file, and checks it by a simulated boot.
    async fn make_config(
        &self,
        state: &GrubState,
        wanted: &KernelCommandLine,
    ) -> Result<(), GrubError> {
        self.remove_new_config()?;
        let program = grub_mkconfig(&self.root).ok_or(GrubError::NoMkconfig)?;
        let arguments = ["-o", NEW_CONFIG];
        let made = self.commands.run(&program, &arguments, MKCONFIG_TIMEOUT);
        made.await.map_err(GrubError::Mkconfig)?;
        let text = HostFiles::new(&self.root).text(NEW_CONFIG);
        let files = HostFiles::new(&self.root).with_default(&state.environment)?;
        let files = files.with_config("grub.cfg", text);
        let made = boot(&files)?;
        if made.arguments() != *wanted {
            let [found, wanted] = [&made.arguments(), wanted].map(ToString::to_string);
            return Err(GrubError::ConfigDiffers { found, wanted });
        }
        // The package of a kernel makes the initial RAM disk minutes after it has installed the kernel.
        let lacks_initrd = made.initrds.is_empty() && !made.tries_without_initrd;
        match lacks_initrd && loads_initrd(&state.custom) {
            true => Err(GrubError::NoInitrd(made.kernel)),
            false => Ok(()),
        }
    }

    /// The state with a kept entry, if one will be needed: a kernel that is installed during the first trial becomes the
    /// default with the arguments of the trial, and the kept entry is then selected instead.
    async fn with_kept_entry(
        &self,
        state: GrubState,
        wanted: &DesiredDeployment,
    ) -> Result<GrubState, GrubError> {
        let is_first = state.menu == MenuSource::BlsConfig && !state.has_kept_entry;
        if !is_first || NewEntry::of(&self.root, &state, wanted)?.is_none() {
            return Ok(state);
        }
        let kept = KeptArguments {
            host: state.of_host()?.clone(),
            ..KeptArguments::default()
        };
        self.select_by_entry(&state, &kept).await?;
        GrubState::read(&self.root)
    }

    /// Removes the new file, also the one that grub-mkconfig writes first.
    fn remove_new_config(&self) -> Result<(), GrubError> {
        self.root.remove_tree(&path(NEW_CONFIG)?)?;
        Ok(self
            .root
            .remove_tree(&path(&format!("{NEW_CONFIG}.new"))?)?)
    }
}

#[async_trait::async_trait]
impl<C: HostCommand> OsProvider for GrubProvider<C> {
    fn capabilities(&self) -> OsCapabilities {
        CAPABILITIES
    }

    async fn observe(&self) -> Result<Deployments, OsError> {
        let state = GrubState::read(&self.root);
        let state = state.map_err(|error| error.at(ProviderStep::Observe))?;
        let (booted, selected) = (state.booted(), state.selected());
        let fallback = match booted.id == selected.id {
            true => state.previous(),
            false => Some(selected.clone()),
        };
        let staged = state.staged_or_stale(&self.root);
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
        let at = |error: GrubError| error.at(ProviderStep::Unlock);
        let state = GrubState::read(&self.root).map_err(at)?;
        let there = state.staged(&self.root);
        if there.is_none_or(|there| there.deployment.id != *staged) {
            return Err(missing(ProviderStep::Unlock, staged));
        }
        let requested = state.environment.get(NEXT_ENTRY).unwrap_or_default();
        if !requested.is_empty() && requested != staged.as_str() {
            tracing::warn!(
                "the next boot enters {staged} and not {requested}, which was selected by grub-reboot"
            );
        }
        let set = self.set_next_entry(&state.environment, Some(staged.as_str()));
        set.await.map_err(at)
    }

    async fn lock(&self) -> Result<(), OsError> {
        let at = |error: GrubError| error.at(ProviderStep::Lock);
        let state = GrubState::read(&self.root).map_err(at)?;
        self.lock_entry(&state).await.map_err(at)
    }

    async fn keep(&self, booted: &DeploymentId) -> Result<(), OsError> {
        let at = |error: GrubError| error.at(ProviderStep::Keep);
        let state = self.state_before_keep().await.map_err(at)?;
        let now = state.booted();
        if now.id != *booted {
            return Err(missing(ProviderStep::Keep, booted));
        }
        if state.selected().id == now.id {
            // An earlier process may have ended before it removed the entry of the trial.
            return match staged_id(&state.custom) == Some(booted.as_str()) {
                true => self.remove_entry(&state).await.map_err(at),
                false => Ok(()),
            };
        }
        let host = state.of_host().map_err(at)?;
        let own = own_arguments(state.menu, host, &now.kernel_arguments).map_err(at)?;
        let kept = state.kept.followed_by(host.clone(), own);
        self.select(&state, &kept).await.map_err(at)
    }

    async fn discard(&self) -> Result<(), OsError> {
        let at = |error: GrubError| error.at(ProviderStep::Discard);
        let state = self.recovered_state().await.map_err(at)?;
        self.remove_entry(&state).await.map_err(at)
    }

    async fn clean_up(&self) -> Result<(), OsError> {
        let at = |error: GrubError| error.at(ProviderStep::CleanUp);
        let mut state = match GrubState::read(&self.root) {
            // No deployment can be staged on such a host.
            Err(GrubError::Boot(BootError::Password(_))) => return Ok(()),
            state => state.map_err(at)?,
        };
        if state.dead.is_some() || state.is_diverted {
            state = self.recovered_state().await.map_err(at)?;
        }
        let is_free = !state.is_trial_running() && staged_id(&state.custom).is_none();
        match &state.host {
            Some(host) if is_free && state.menu == MenuSource::BlsConfig => {
                let host = state.without_tuned(host);
                let removed =
                    kernel_install_cmdline::remove_created(&self.root, &state.kept, &host);
                removed.map_err(|error| at(error.into()))
            }
            _ => Ok(()),
        }
    }

    async fn roll_back(&self, to: &DeploymentId) -> Result<(), OsError> {
        let at = |error: GrubError| error.at(ProviderStep::RollBack);
        let state = self.recovered_state().await.map_err(at)?;
        if state.selected().id == *to {
            return self.remove_entry(&state).await.map_err(at);
        }
        let previous = state.previous().filter(|previous| previous.id == *to);
        let (Some(_), Some(current)) = (previous, state.kept.previous.clone()) else {
            return Err(missing(ProviderStep::RollBack, to));
        };
        let host = state.of_host().map_err(at)?.clone();
        let kept = state.kept.followed_by(host, current);
        self.select(&state, &kept).await.map_err(at)
    }
}

/// The text of the file of kept arguments.
fn default_text(kept: &KeptArguments) -> Result<String, GrubError> {
    Ok(default_file(&kept.current)? + &kept.to_comments())
}

fn missing(step: ProviderStep, id: &DeploymentId) -> OsError {
    OsError::DeploymentMissing {
        step,
        id: id.clone(),
    }
}
