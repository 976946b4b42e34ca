//! Computes the menu entry of a new deployment, without writing it.

use super::{
    error::GrubError,
    host_files::HostFiles,
    kept_entry::KeptEntry,
    menu_source::MenuSource,
    state::{GrubState, boot, environment_with_next, has_arguments, own_arguments},
    trial_entry::{self, with_section},
};
use crate::os::{
    DesiredDeployment, OsError, ProviderStep,
    kept_arguments::joined,
    trial_arguments::{id_of, is_too_long, with_trial, without_trial},
};
use machinist_boot_loader::grub::{SimulatedGrub, as_loaded};
use machinist_ignition::KernelCommandLine;
use machinist_rootfs::Root;

/// The menu entry of a new deployment.
pub(super) struct NewEntry {
    pub(super) id: String,
    /// The text of custom.cfg with the entry; `None` if it is there already.
    pub(super) custom: Option<String>,
}

/// Returns whether the deployment could be staged on the host below `root`; changes nothing.
pub(in crate::os) fn check(root: &Root, wanted: &DesiredDeployment) -> Result<(), OsError> {
    let checked = GrubState::read(root).and_then(|state| {
        let entry = NewEntry::of(root, &state, wanted)?;
        if let (Some(_), MenuSource::BlsConfig) = (entry, state.menu) {
            let host = state.of_host()?;
            let own = own_arguments(state.menu, host, &desired(&state, wanted)?)?;
            // The keep takes them from the running kernel.
            let own = as_loaded(&own)?;
            KeptEntry::of(root, &state, &state.kept.followed_by(host.clone(), own))?;
        }
        Ok(())
    });
    checked.map_err(|error| error.at(ProviderStep::Stage))
}

impl NewEntry {
    /// Returns the entry; `None` if the machine runs on such a deployment already.
    pub(super) fn of(
        root: &Root,
        state: &GrubState,
        wanted: &DesiredDeployment,
    ) -> Result<Option<Self>, GrubError> {
        let has_packages = wanted.packages.as_ref().is_some_and(|all| !all.is_empty());
        if wanted.image.is_some() || has_packages {
            return Err(GrubError::Unsupported);
        }
        let booted = state.booted();
        let arguments = desired(state, wanted)?;
        if arguments == booted.kernel_arguments {
            return Ok(None);
        }
        let host = state.of_host()?;
        // A kept deployment has its arguments in this order.
        let arguments = joined(host, &own_arguments(state.menu, host, &arguments)?);
        let for_init = arguments.iter().find(|one| one.is_for_init());
        if let Some(one) = for_init.filter(|_| state.selected.tries_without_initrd) {
            return Err(GrubError::ForInit(one.as_str().to_owned()));
        }
        let kernel = state.selected.kernel.clone();
        let id = id_of(&arguments);
        if is_too_long(&with_trial(&arguments, &id)) {
            return Err(GrubError::TooLong);
        }
        let same = state.staged(root);
        let same = same.filter(|staged| staged.deployment.id.as_str() == id);
        if same.is_some_and(|staged| staged.deployment.kernel_arguments == arguments) {
            return Ok(Some(Self { id, custom: None }));
        }
        let default = HostFiles::new(root).with_default(&state.environment)?;
        let mut grub = SimulatedGrub::new(&default, default.directory());
        let name = state.selected.entry.join(">");
        let unusual = || GrubError::UnusualEntry(name.clone());
        let body = grub.booted_source()?.ok_or_else(unusual)?;
        let entry = trial_entry::entry(&id, &body, &kernel, &arguments)?.ok_or_else(unusual)?;
        let custom = with_section(&state.custom, Some(&entry));
        check_entry(root, state, &custom, (&id, &arguments))?;
        Ok(Some(Self {
            id,
            custom: Some(custom),
        }))
    }
}

/// The arguments of the deployment. Those that the host has set itself since stay.
fn desired(state: &GrubState, wanted: &DesiredDeployment) -> Result<KernelCommandLine, GrubError> {
    let booted = state.booted().kernel_arguments;
    let mut change = wanted.kernel_arguments.clone();
    if let Ok(own) = own_arguments(state.menu, state.of_host()?, &booted) {
        let remove = change.remove.iter().filter(|one| own.contains(one));
        change.remove = remove.cloned().collect();
    }
    Ok(change.apply_to(&booted))
}

/// Checks by simulated boots that the entry would boot with the arguments, and that other boots do not change.
fn check_entry(
    root: &Root,
    state: &GrubState,
    custom: &str,
    (id, arguments): (&str, &KernelCommandLine),
) -> Result<(), GrubError> {
    let environment = environment_with_next(&state.environment, Some(id));
    let files = HostFiles::new(root).with_environment(&environment)?;
    let files = files.with_config("custom.cfg", Some(custom.to_owned()));
    let boot = boot(&files)?;
    let (found, _) = without_trial(&boot.arguments());
    has_arguments(&found, arguments)?;
    let default = files.with_default(&state.environment)?;
    let default = super::state::boot(&default)?;
    match (&default.entry, &default.command_line)
        == (&state.selected.entry, &state.selected.command_line)
    {
        true => Ok(()),
        false => Err(GrubError::OtherDefault(
            default.entry.join(">"),
            state.selected.entry.join(">"),
        )),
    }
}
