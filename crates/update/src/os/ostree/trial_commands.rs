//! What makes GRUB try a finalized deployment once: commands in custom.cfg, and a state in the environment block.

use super::error::OstreeError;
use crate::os::{
    grub::{HostFiles, environment_with_next, with_section},
    trial_arguments::without_trial,
};
use machinist_boot_loader::grub::{EnvironmentBlock, SimulatedGrub};
use machinist_ignition::KernelCommandLine;

/// The variable of the environment block that holds the state of the trial.
const TRIAL: &str = "machinist_trial";

/// A file in the directory to which the link /boot/loader points. libostree points the link elsewhere when it changes the
/// menu, so that the file vanishes in the moment in which the new deployment becomes the first of the menu.
pub(super) const NOT_FINALIZED: &str = "/boot/loader/machinist-not-finalized";

/// A file in that directory, which vanishes once the menu changes: the first deployment is removed or kept, or an
/// administrator selects another one.
pub(super) const MENU_UNCHANGED: &str = "/boot/loader/machinist-menu-unchanged";

/// Which deployment of the menu GRUB enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TrialState {
    /// The first one: there is no trial.
    None,
    /// Once the trial is finalized, the first one in the next boot, and the second one from then on.
    Unlocked,
    /// Once the trial is finalized, the second one. GRUB writes it in the boot of the trial.
    Tried,
    /// Until the menu changes, the second one.
    SkipFirst,
}

impl TrialState {
    pub(super) fn of(environment: &EnvironmentBlock) -> Self {
        match environment.get(TRIAL) {
            None | Some("") => Self::None,
            Some("1") => Self::Unlocked,
            Some("2") => Self::SkipFirst,
            Some(_) => Self::Tried,
        }
    }

    /// The environment block with this state, and without a request for the next boot.
    pub(super) fn written_to(self, environment: &EnvironmentBlock) -> EnvironmentBlock {
        let mut environment = environment_with_next(environment, None);
        match self {
            Self::None => environment.unset(TRIAL),
            Self::Unlocked => environment.set(TRIAL, "1"),
            Self::Tried => environment.set(TRIAL, "0"),
            Self::SkipFirst => environment.set(TRIAL, "2"),
        }
        environment
    }
}

/// The commands that GRUB runs after it has made the menu. Without `fallback`, GRUB would wait for a keystroke if the
/// kernel of the trial is missing or damaged; Fedora's GRUB ignores `fallback` and waits.
fn commands() -> String {
    let exists = |file: &str| {
        let file = file.trim_start_matches("/boot/");
        format!("-f \"${{prefix}}/../{file}\"")
    };
    let (not_finalized, unchanged) = (exists(NOT_FINALIZED), exists(MENU_UNCHANGED));
    format!(
        "if [ \"${{{TRIAL}}}\" = \"2\" ]; then\n  \
           if [ {unchanged} ]; then\n    \
             set default=1\n  \
           fi\n\
         elif [ ! {not_finalized} ]; then\n  \
           if [ \"${{{TRIAL}}}\" = \"1\" ]; then\n    \
             set {TRIAL}=0\n    \
             save_env {TRIAL}\n    \
             set default=0\n    \
             set fallback=1\n  \
           elif [ \"${{{TRIAL}}}\" = \"0\" ]; then\n    \
             set default=1\n  \
           fi\n\
         fi\n"
    )
}

/// The text of custom.cfg with the commands, or without them.
pub(super) fn custom_config(custom: &str, has_commands: bool) -> String {
    let commands = commands();
    with_section(custom, has_commands.then_some(&*commands))
}

/// The arguments of the boot that GRUB enters in this state, without those of a trial.
pub(super) fn boot(
    files: &HostFiles<'_>,
    environment: &EnvironmentBlock,
    state: TrialState,
) -> Result<KernelCommandLine, OstreeError> {
    let files = files
        .clone()
        .with_environment(&state.written_to(environment))?;
    let boot = SimulatedGrub::new(&files, files.directory()).boot()?;
    Ok(without_trial(&boot.arguments()).0)
}

/// Checks by simulated boots that the commands have their effect, and none without a finalized trial.
pub(super) fn check(
    files: &HostFiles<'_>,
    environment: &EnvironmentBlock,
    custom: &str,
) -> Result<(), OstreeError> {
    let before = boot(files, environment, TrialState::None)?;
    let files = files.clone();
    let files = files.with_config("custom.cfg", Some(custom.to_owned()));
    let finalized = files.clone().with(NOT_FINALIZED, None);
    let waiting = files.with(NOT_FINALIZED, Some(String::new()));
    for (files, state) in [
        (&finalized, TrialState::None),
        (&waiting, TrialState::Unlocked),
        (&waiting, TrialState::Tried),
        (
            &waiting.clone().with(MENU_UNCHANGED, None),
            TrialState::SkipFirst,
        ),
    ] {
        let found = boot(files, environment, state)?;
        if found != before {
            let [found, wanted] = [&found, &before].map(ToString::to_string);
            return Err(OstreeError::OtherArguments { found, wanted });
        }
    }
    let unchanged = finalized.clone().with(MENU_UNCHANGED, Some(String::new()));
    for (files, state) in [
        (&finalized, TrialState::Tried),
        (&unchanged, TrialState::SkipFirst),
    ] {
        if default_in(files, environment, state)?.0 != "1" {
            return Err(OstreeError::NoCustomConfig);
        }
    }
    // The menu is still the one without the new deployment.
    let first = boot(&finalized, environment, TrialState::Unlocked)?;
    match default_in(&finalized, environment, TrialState::Unlocked)? {
        (entry, TrialState::Tried) if entry == "0" && first == before => Ok(()),
        _ => Err(OstreeError::NoCustomConfig),
    }
}

/// The number of the entry that GRUB enters, and the state that it leaves.
fn default_in(
    files: &HostFiles<'_>,
    environment: &EnvironmentBlock,
    state: TrialState,
) -> Result<(String, TrialState), OstreeError> {
    let files = files
        .clone()
        .with_environment(&state.written_to(environment))?;
    let mut grub = SimulatedGrub::new(&files, files.directory());
    grub.menu()?;
    let left = grub
        .environment
        .as_ref()
        .map_or(TrialState::None, TrialState::of);
    Ok((grub.variable("default").to_owned(), left))
}
