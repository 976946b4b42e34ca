//! Computes a new deployment, without staging it.

use super::{
    boot_entries::{kernel_arguments, variable},
    deployment_origin,
    error::OstreeError,
    package_update::{PackageUpdate, RPM_OSTREE},
    repository_images,
    staged::Staged,
    state::OstreeState,
    trial_commands::{self, custom_config},
};
use crate::os::{
    DeploymentId, DesiredDeployment, KernelArgumentEdit, OsError, ProviderStep,
    grub::{GrubError, HostFiles, MenuSource},
    host_detection::{host_kind, is_there},
    trial_arguments::{id_with_commit, is_too_long, with_trial_once, without_trial},
};
use machinist_boot_loader::grub::script_word_list;
use machinist_ignition::{KernelArgument, KernelCommandLine};
use machinist_plan::{HostKind, ImageRef};
use machinist_rootfs::Root;

/// A new deployment.
pub(super) struct NewDeployment {
    /// Its identifier, if it is staged already.
    pub(super) staged: Option<DeploymentId>,
    /// The text of custom.cfg with the commands of a trial.
    pub(super) custom: String,
    /// Its image, if that is not the image of the running deployment.
    pub(super) image: Option<ImageRef>,
    /// Its commit; `None` if the image must be fetched first.
    pub(super) commit: Option<String>,
    /// Its packages, if rpm-ostree must make the commit.
    pub(super) packages: Option<PackageUpdate>,
    arguments: TrialArguments,
}

/// The kernel arguments of a new deployment.
struct TrialArguments {
    own: KernelCommandLine,
}

impl TrialArguments {
    fn of(
        root: &Root,
        base: &KernelCommandLine,
        change: &KernelArgumentEdit,
    ) -> Result<Self, OstreeError> {
        let own = carried_arguments(base, change)?;
        let arguments = Self { own };
        // Every identifier has the same length.
        arguments.words(root, "")?;
        Ok(arguments)
    }

    /// The arguments with those of a trial of this commit, as words of a GRUB script.
    fn words(&self, root: &Root, commit: &str) -> Result<Vec<String>, OstreeError> {
        let all = with_trial_once(&self.own, &id_with_commit(commit, &self.own));
        let all = all.map_err(|one| OstreeError::Overridden(one.as_str().to_owned()))?;
        match is_too_long(&all) {
            true => Err(OstreeError::TooLong),
            false => argument_words(root, &all),
        }
    }
}

/// Returns whether the deployment could be staged on the host below `root`; changes nothing.
pub(in crate::os) fn check(root: &Root, wanted: &DesiredDeployment) -> Result<(), OsError> {
    let new = OstreeState::read(root).and_then(|state| NewDeployment::of(root, &state, wanted));
    new.map(drop).map_err(|error| error.at(ProviderStep::Stage))
}

/// The arguments of the deployment, of several equal ones the last: versions of libostree differ in what they keep.
fn carried_arguments(
    booted: &KernelCommandLine,
    change: &KernelArgumentEdit,
) -> Result<KernelCommandLine, OstreeError> {
    let host = KernelArgumentEdit {
        append: KernelCommandLine::default(),
        ..change.clone()
    };
    let mut all = host.apply_to(booted);
    if let Some(equal) = repeated(&all, &change.append) {
        return Err(OstreeError::Repeated(equal.as_str().to_owned()));
    }
    let append: Vec<_> = change.append.iter().collect();
    let last = append.iter().enumerate();
    let last = last.filter(|(at, one)| !append[at + 1..].contains(one));
    all.append(&last.map(|(_, one)| (*one).clone()).collect());
    Ok(all)
}

/// An argument that libostree would move, so that it would later be removed with those of machinist, or for which it would
/// drop another one: a version that drops equal ones compares texts, also of an argument of the kernel with one of init.
fn repeated<'a>(
    present: &KernelCommandLine,
    append: &'a KernelCommandLine,
) -> Option<&'a KernelArgument> {
    let is_like = |one: &KernelArgument, other: &KernelArgument| {
        one == other || one.as_str() == other.as_str()
    };
    let mut all = append.iter();
    all.find(|one| {
        let for_other = append
            .iter()
            .filter(|other| other.is_for_init() != one.is_for_init());
        let mut others = present.iter().chain(for_other);
        (one.is_for_init() && one.as_str() == "--") || others.any(|other| is_like(one, other))
    })
}

/// The arguments as words of a GRUB script, because libostree writes them into the menu as they are.
pub(super) fn argument_words(
    root: &Root,
    arguments: &KernelCommandLine,
) -> Result<Vec<String>, OstreeError> {
    let mut words = script_word_list(arguments).map_err(GrubError::from)?;
    let source = MenuSource::of(root);
    if source == MenuSource::BlsConfig {
        for word in &mut words {
            // GRUB replaces it in every boot.
            if let Some(name) = variable(word.trim_matches('\'')) {
                *word = format!("${name}");
            }
        }
    }
    match kernel_arguments(&words.join(" "), source) {
        Some(found) if found == *arguments => Ok(words),
        found => Err(OstreeError::OtherArguments {
            found: found.unwrap_or_default().to_string(),
            wanted: arguments.to_string(),
        }),
    }
}

/// Refuses variables of GRUB that a new deployment would lose, and those in the config.
fn check_variables(
    root: &Root,
    state: &OstreeState,
    wanted: &DesiredDeployment,
) -> Result<(), OstreeError> {
    let booted = &state.entries[state.booted];
    if booted.has_partial_variable {
        return Err(OstreeError::Variable(booted.id.clone()));
    }
    let mut new = wanted.kernel_arguments.append.iter();
    match new.find(|one| one.as_str().contains('$')) {
        Some(argument) if MenuSource::of(root) == MenuSource::BlsConfig => {
            Err(OstreeError::NewVariable(argument.as_str().to_owned()))
        }
        _ => Ok(()),
    }
}

impl NewDeployment {
    /// Returns the deployment; `None` if the machine runs on such a deployment already.
    pub(super) fn of(
        root: &Root,
        state: &OstreeState,
        wanted: &DesiredDeployment,
    ) -> Result<Option<Self>, OstreeError> {
        let has_packages = wanted.packages.as_ref().is_some_and(|all| !all.is_empty());
        if has_packages && !is_there(root, RPM_OSTREE) {
            return Err(OstreeError::Unsupported);
        }
        state.refuse_foreign()?;
        let booted = state.booted();
        check_variables(root, state, wanted)?;
        let arguments =
            TrialArguments::of(root, &booted.kernel_arguments, &wanted.kernel_arguments)?;
        let has_image = |image: &ImageRef| state.has_digest(&booted.id, Some(image));
        let image = wanted.image.as_ref().filter(|image| !has_image(image));
        let layered = state.packages_of(&booted.id);
        if layered.has_initramfs_files {
            return Err(OstreeError::InitramfsFiles(booted.id));
        }
        let packages = PackageUpdate::of(root, &layered, wanted.packages.as_ref(), image)?;
        let is_same_tree = image.is_none() && packages.is_none();
        if is_same_tree && arguments.own == booted.kernel_arguments {
            return Ok(None);
        }
        if image.is_some() && packages.is_none() && !layered.is_empty() {
            return Err(OstreeError::LocalPackages(booted.id));
        }
        if let Some(image) = image
            && (packages.is_some() || host_kind(root) == HostKind::Bootc)
            && repository_images::is_origin(root, &state.stateroot, &booted.id, image)
        {
            return Err(OstreeError::SamePath(image.stored_name()));
        }
        let commit = match image {
            Some(image) => {
                repository_images::fetched_commit(root, image)?.map(|(commit, _)| commit)
            }
            None => Some(deployment_origin::commit_of(&booted.id).to_owned()),
        };
        let custom = custom_config(&state.files.custom, true);
        trial_commands::check(&HostFiles::new(root), &state.files.environment, &custom)?;
        let same = state.own_staged().filter(|staged| {
            let has_tree = match &packages {
                None => Some(deployment_origin::commit_of(&staged.id)) == commit.as_deref(),
                Some(update) => {
                    let image = wanted.image.as_ref().or(booted.image.as_ref());
                    state.packages_of(&staged.id).is_same(&update.result)
                        && state.has_digest(&staged.id, image)
                }
            };
            has_tree && staged.is_trial() && without_trial(&staged.arguments).0 == arguments.own
        });
        Ok(Some(Self {
            staged: same.map(|staged| staged.id.clone()),
            custom,
            image: image.cloned(),
            commit,
            packages,
            arguments,
        }))
    }

    /// Whether the kernel arguments differ from those of the running deployment.
    pub(super) fn has_other_arguments(&self, state: &OstreeState) -> bool {
        self.arguments.own != state.booted().kernel_arguments
    }

    /// The deployment with changes to these arguments instead of those of the running one. Arguments that they have
    /// already are not appended.
    pub(super) fn with_base(
        self,
        root: &Root,
        base: &KernelCommandLine,
        change: &KernelArgumentEdit,
    ) -> Result<Self, OstreeError> {
        let host = KernelArgumentEdit {
            append: KernelCommandLine::default(),
            ..change.clone()
        };
        let host = host.apply_to(base);
        let append = change.append.iter().filter(|one| !host.contains(one));
        let change = KernelArgumentEdit {
            append: append.cloned().collect(),
            ..change.clone()
        };
        Ok(Self {
            arguments: TrialArguments::of(root, base, &change)?,
            ..self
        })
    }

    /// The arguments of `ostree admin deploy`.
    pub(super) fn command(
        &self,
        root: &Root,
        stateroot: &str,
        origin_file: &str,
    ) -> Result<Vec<String>, OstreeError> {
        let commit = match (&self.commit, &self.image) {
            (Some(commit), _) => commit.clone(),
            (None, Some(image)) => return Err(OstreeError::NotFetched(image.clone())),
            (None, None) => return Err(OstreeError::NotBooted),
        };
        let mut all = vec![
            format!("--os={stateroot}"),
            format!("--origin-file={origin_file}"),
            "--stage".to_owned(),
            "--lock-finalization".to_owned(),
            "--karg-none".to_owned(),
        ];
        let words = self.arguments.words(root, &commit)?;
        all.extend(words.iter().map(|word| format!("--karg-append={word}")));
        all.push(commit);
        Ok(all)
    }

    /// Checks what `ostree admin` has staged.
    pub(super) fn check_staged(&self, staged: &Staged) -> Result<(), OstreeError> {
        let (found, _) = without_trial(&staged.arguments);
        match found == self.arguments.own {
            true => Ok(()),
            false => Err(OstreeError::OtherArguments {
                found: found.to_string(),
                wanted: self.arguments.own.to_string(),
            }),
        }
    }
}
