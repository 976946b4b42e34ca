//! Computes the menu entry of a trial, without writing it.

use super::{
    error::SystemdBootError,
    kept_entry::{KeptEntry, enters},
    state::{SystemdBootState, TRIAL_FILE},
};
use crate::os::{
    DesiredDeployment, OsError, ProviderStep,
    boot_entry::with_lines,
    kept_arguments::joined,
    kernel_install_cmdline::is_squeezed,
    trial_arguments::{id_of, is_too_long, with_trial},
};
use machinist_ignition::KernelCommandLine;
use machinist_rootfs::Root;

/// Sorts after the names of all distributions, so that no boot enters the entry by itself.
const TRIAL_SORT_KEY: &str = "~machinist";

/// The menu entry of a new deployment.
pub(super) struct NewEntry {
    pub(super) id: String,
    /// Its text; `None` if it is there already.
    pub(super) text: Option<String>,
}

/// Returns whether the deployment could be staged on the host below `root`; changes nothing.
pub(in crate::os) fn check(root: &Root, wanted: &DesiredDeployment) -> Result<(), OsError> {
    let checked = SystemdBootState::read(root).and_then(|state| {
        if NewEntry::of(&state, wanted)?.is_some() {
            let own = state.own_arguments(&state.desired(wanted))?;
            KeptEntry::of(&state, &state.kept.followed_by(state.host.clone(), own))?;
        }
        Ok(())
    });
    checked.map_err(|error| error.at(ProviderStep::Stage))
}

impl SystemdBootState {
    /// The arguments of the deployment. Those that the host has set itself since stay.
    fn desired(&self, wanted: &DesiredDeployment) -> KernelCommandLine {
        let booted = self.booted().kernel_arguments;
        let mut change = wanted.kernel_arguments.clone();
        if let Ok(own) = self.own_arguments(&booted) {
            let remove = change.remove.iter().filter(|one| own.contains(one));
            change.remove = remove.cloned().collect();
        }
        change.apply_to(&booted)
    }
}

impl NewEntry {
    /// Returns the entry; `None` if the machine runs on such a deployment already.
    pub(super) fn of(
        state: &SystemdBootState,
        wanted: &DesiredDeployment,
    ) -> Result<Option<Self>, SystemdBootError> {
        let has_packages = wanted.packages.as_ref().is_some_and(|all| !all.is_empty());
        if wanted.image.is_some() || has_packages {
            return Err(SystemdBootError::Unsupported);
        }
        let arguments = state.desired(wanted);
        if arguments == state.booted().kernel_arguments {
            return Ok(None);
        }
        state.check_preferred()?;
        state.check_confirmed()?;
        // A kept deployment has its arguments in this order.
        let own = state.own_arguments(&arguments)?;
        if let Some(one) = own.iter().find(|one| is_squeezed(one)) {
            return Err(SystemdBootError::Blanks(one.as_str().to_owned()));
        }
        let arguments = joined(&state.host, &own);
        let id = id_of(&arguments);
        let all = with_trial(&arguments, &id);
        if is_too_long(&all) {
            return Err(SystemdBootError::TooLong);
        }
        let same = state
            .staged()
            .filter(|staged| staged.deployment.id.as_str() == id);
        if same.is_some_and(|staged| staged.deployment.kernel_arguments == arguments) {
            return Ok(Some(Self { id, text: None }));
        }
        let default = state.files.text(&state.default.file).unwrap_or_default();
        let lines = [
            ("title", "machinist trial".to_owned()),
            ("sort-key", TRIAL_SORT_KEY.to_owned()),
            ("options", all.to_string()),
        ];
        let text = with_lines(default, &lines, &["version", "machine-id"]);
        let files = state.files.with(TRIAL_FILE, &text);
        let entry = state.entry_of(&files, TRIAL_FILE);
        enters(entry, TRIAL_FILE, &all)?;
        let now = KernelCommandLine::parse(&state.default.options);
        enters(state.default_with(&files), &state.default.file, &now)?;
        Ok(Some(Self {
            id,
            text: Some(text),
        }))
    }
}
