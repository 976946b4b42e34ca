//! Computes a new deployment, without staging it.

use super::{
    boot_entries::kernel_arguments,
    error::OstreeError,
    staged::Staged,
    state::OstreeState,
    trial_block::{self, custom_config},
};
use crate::os::{
    DeploymentId, DesiredDeployment, KernelArguments, KernelType, OsError, ProviderStep,
    grub::{GrubError, HostFiles},
    trial_arguments::{id_of, with_trial, without_trial},
};
use machinist_boot_loader::grub::script_word_list;
use machinist_ignition::KernelCommandLine;
use machinist_rootfs::Root;

/// A new deployment.
pub(super) struct NewDeployment {
    /// Its identifier, if it is staged already.
    pub(super) staged: Option<DeploymentId>,
    /// The text of custom.cfg with the commands of a trial.
    pub(super) custom: String,
    /// The arguments of `ostree admin deploy`.
    pub(super) command: Vec<String>,
    arguments: KernelCommandLine,
}

/// Returns whether the deployment could be staged on the host below `root`; changes nothing.
pub(in crate::os) fn check(root: &Root, wanted: &DesiredDeployment) -> Result<(), OsError> {
    let new = OstreeState::read(root).and_then(|state| NewDeployment::of(root, &state, wanted));
    new.map(drop).map_err(|error| error.at(ProviderStep::Stage))
}

/// The arguments of the deployment. libostree keeps the last of several equal arguments.
fn carried_arguments(
    booted: &KernelCommandLine,
    change: &KernelArguments,
) -> Result<KernelCommandLine, OstreeError> {
    let host = KernelArguments {
        append: KernelCommandLine::default(),
        ..change.clone()
    };
    let mut all = host.over(booted);
    // It would be moved, and later be removed with those of machinist.
    if let Some(equal) = change.append.iter().find(|one| all.contains(one)) {
        return Err(OstreeError::Repeated(equal.as_str().to_owned()));
    }
    let append: Vec<_> = change.append.iter().collect();
    let last = append.iter().enumerate();
    let last = last.filter(|(at, one)| !append[at + 1..].contains(one));
    all.append(&last.map(|(_, one)| (*one).clone()).collect());
    Ok(all)
}

/// The arguments as words of a GRUB script, because libostree writes them into grub.cfg as they are.
pub(super) fn argument_words(arguments: &KernelCommandLine) -> Result<Vec<String>, OstreeError> {
    let words = script_word_list(arguments).map_err(GrubError::from)?;
    match kernel_arguments(&words.join(" ")) {
        Some(found) if found == *arguments => Ok(words),
        found => Err(OstreeError::OtherArguments {
            found: found.unwrap_or_default().to_string(),
            wanted: arguments.to_string(),
        }),
    }
}

impl NewDeployment {
    /// Returns the deployment; `None` if the machine runs on such a deployment already.
    pub(super) fn of(
        root: &Root,
        state: &OstreeState,
        wanted: &DesiredDeployment,
    ) -> Result<Option<Self>, OstreeError> {
        let is_default = wanted.image.is_none() && wanted.extensions.is_empty();
        if !is_default || wanted.kernel_type != KernelType::Default {
            return Err(OstreeError::Unsupported);
        }
        state.refuse_foreign()?;
        let booted = state.booted();
        let arguments = carried_arguments(&booted.kernel_arguments, &wanted.kernel_arguments)?;
        if arguments == booted.kernel_arguments {
            return Ok(None);
        }
        let all = with_trial(&arguments, &id_of(&arguments));
        if all.is_too_long() {
            return Err(OstreeError::TooLong);
        }
        let custom = custom_config(&state.files.custom, true);
        trial_block::check(&HostFiles::new(root), &state.files.block, &custom)?;
        let same = state
            .own_staged()
            .filter(|staged| without_trial(&staged.arguments).0 == arguments);
        Ok(Some(Self {
            staged: same.map(|staged| staged.id.clone()),
            command: deploy_arguments(&state.stateroot, &booted.id, &argument_words(&all)?),
            custom,
            arguments,
        }))
    }

    /// Checks what `ostree admin` has staged.
    pub(super) fn check_staged(&self, staged: &Staged) -> Result<(), OstreeError> {
        let (found, _) = without_trial(&staged.arguments);
        match found == self.arguments {
            true => Ok(()),
            false => Err(OstreeError::OtherArguments {
                found: found.to_string(),
                wanted: self.arguments.to_string(),
            }),
        }
    }
}

/// The arguments of `ostree admin deploy` for the commit and the origin of the running deployment, `COMMIT.SERIAL`.
fn deploy_arguments(stateroot: &str, booted: &DeploymentId, words: &[String]) -> Vec<String> {
    let origin = format!("/ostree/deploy/{stateroot}/deploy/{booted}.origin");
    let commit = booted.as_str().split('.').next().unwrap_or_default();
    let mut all = vec![
        format!("--os={stateroot}"),
        format!("--origin-file={origin}"),
        "--stage".to_owned(),
        "--lock-finalization".to_owned(),
        "--karg-none".to_owned(),
    ];
    all.extend(words.iter().map(|word| format!("--karg-append={word}")));
    all.push(commit.to_owned());
    all
}
