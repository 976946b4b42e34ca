//! Adds the packages of extensions and kernel types with rpm-ostree.
//!
//! rpm-ostree makes a commit of the image with the packages and stages it, locked. The commit is staged again as a trial,
//! as that of bootc is.

use std::time::Duration;

use super::{
    OstreeProvider, RpmOstree,
    bootc::SWITCH_MARKER,
    commit_image::REPOSITORY,
    deployment_origin,
    error::OstreeError,
    image_download::{UNANSWERED, is_no_space},
    layered_packages::{LayeredPackages, PackageNames, removal_of, with_repository},
    new_deployment::NewDeployment,
    own_packages::{own_packages, record_packages},
    package_repository,
    package_update::PackageUpdate,
    repository_images,
    staged::Staged,
    state::OstreeState,
};
use crate::os::{
    BackgroundError, DesiredDeployment, HostCommand, OsError, ProviderStep, TransactionKind,
    host_detection::is_there,
};
use machinist_base::{abs_path::AbsPath, error_chain::chain};

/// The change of packages that was downloaded since the last boot.
const DOWNLOADED: &str = "/run/machinist/os-packages-downloaded";

/// Maximum length of that file.
const MAX_CHANGE_BYTES: u64 = 1 << 20;

/// The reference that keeps the commit of a trial while the deployment of rpm-ostree is replaced by that of machinist.
const REFERENCE: &str = "machinist/layered";
const REFERENCE_FILE: &str = "/ostree/repo/refs/heads/machinist/layered";

/// Errors of rpm-ostree that the same request causes again.
const FINAL_ERRORS: [&str; 4] = [
    "Packages not found",
    "Could not depsolve",
    "\" not found",
    "is already provided by",
];

/// The error of a transaction.
fn layering_error(error: BackgroundError) -> OstreeError {
    let text = match &error {
        BackgroundError::Failed(source) => source.to_string(),
        BackgroundError::TimedOut => String::new(),
    };
    OstreeError::Layering {
        is_final: FINAL_ERRORS.iter().any(|known| text.contains(known)),
        source: error,
    }
}

impl<C: HostCommand + RpmOstree> OstreeProvider<C> {
    /// The change of packages that the deployment needs.
    pub(super) fn package_update(
        &self,
        wanted: &DesiredDeployment,
    ) -> Result<Option<PackageUpdate>, OstreeError> {
        let state = OstreeState::read(&self.root)?;
        let new = NewDeployment::of(&self.root, &state, wanted)?;
        Ok(new.and_then(|new| new.packages))
    }

    /// Whether these packages were downloaded since the last boot.
    pub(super) fn are_downloaded(&self, update: &PackageUpdate) -> bool {
        let path = AbsPath::new(DOWNLOADED).ok();
        let text = path.and_then(|path| self.root.read_text(&path, MAX_CHANGE_BYTES).ok());
        let repository = update.repository.as_ref();
        let is_extracted =
            repository.is_none_or(|image| package_repository::is_extracted(&self.root, image));
        let is_asked_again = is_there(&self.root, UNANSWERED);
        is_extracted && !is_asked_again && text.as_deref() == Some(&update.key())
    }

    /// Downloads the packages of a deployment.
    pub(super) async fn download_packages(
        &self,
        wanted: &DesiredDeployment,
        limit: Duration,
    ) -> Result<(), OsError> {
        let at = |error: OstreeError| error.at(ProviderStep::Fetch);
        let Some(update) = self.package_update(wanted).map_err(at)? else {
            return Ok(());
        };
        if self.are_downloaded(&update) {
            return Ok(());
        }
        if let Some(image) = &update.repository {
            self.extract_repository(image, limit).await?;
        }
        // Only now is it known which packages the repository has.
        let Some(update) = self.package_update(wanted).map_err(at)? else {
            return Ok(());
        };
        // rpm-ostree would change the packages of the trial of an earlier config instead of the running deployment's.
        let state = OstreeState::read(&self.root).map_err(at)?;
        if state.deployments().staged.is_some() {
            self.remove_trial(&state).await.map_err(at)?;
        }
        let downloaded = self.transact(&update, TransactionKind::Download, limit);
        match downloaded.await {
            Err(OstreeError::Layering {
                source: BackgroundError::TimedOut,
                ..
            }) => Err(OsError::TimedOut {
                step: ProviderStep::Fetch,
                limit,
            }),
            Err(OstreeError::Layering { source, .. }) if is_no_space(&source.to_string()) => {
                Err(self.no_space(source.into()))
            }
            Err(error) => Err(at(error)),
            Ok(()) => {
                let written = self.write_run_file(DOWNLOADED, &update.key());
                written.map_err(|error| at(error.into()))
            }
        }
    }

    /// Makes a transaction of rpm-ostree, with the repository of the packages.
    async fn transact(
        &self,
        update: &PackageUpdate,
        kind: TransactionKind,
        limit: Duration,
    ) -> Result<(), OstreeError> {
        package_repository::select(&self.root, update.repository.as_ref())?;
        let changed = self
            .commands
            .change_packages(&update.change, kind, limit)
            .await;
        package_repository::select(&self.root, None)?;
        changed.map_err(layering_error)
    }

    /// Records the packages of another daemon that the deployments have as machinist's own.
    pub(super) fn record_adopted(
        &self,
        state: &OstreeState,
        wanted: &DesiredDeployment,
    ) -> Result<(), OstreeError> {
        let adopted = wanted.packages.iter().flat_map(|all| &all.adopted);
        let there: PackageNames = state
            .packages()
            .flat_map(LayeredPackages::recorded)
            .collect();
        let adopted: Vec<&String> = adopted.filter(|name| there.contains(*name)).collect();
        if adopted.is_empty() {
            return Ok(());
        }
        let mut own = own_packages(&self.root)?;
        own.extend(adopted.into_iter().cloned());
        Ok(record_packages(&self.root, &own)?)
    }

    /// Records which packages are machinist's once the deployment exists.
    fn record_own(&self, state: &OstreeState, update: &PackageUpdate) -> Result<(), OstreeError> {
        let there: PackageNames = state
            .packages()
            .flat_map(LayeredPackages::recorded)
            .collect();
        let mut own = own_packages(&self.root)?;
        own.retain(|name| there.contains(name));
        own.extend(update.change.install.iter().cloned());
        own.extend(update.change.remove.iter().map(|name| removal_of(name)));
        Ok(record_packages(&self.root, &own)?)
    }

    /// Removes packages that the running deployment does not have from the list of machinist's, so that those which an
    /// administrator installs later stay.
    pub(super) fn try_prune_own(&self) {
        if let Err(error) = self.prune_own() {
            tracing::warn!(
                "the list of machinist's packages is not pruned: {}",
                chain(&error)
            );
        }
    }

    fn prune_own(&self) -> Result<(), OstreeError> {
        let mut own = own_packages(&self.root)?;
        if own.is_empty() {
            return Ok(());
        }
        let state = OstreeState::read(&self.root)?;
        // A trial may still be booted, and the next boot leaves a deployment that was selected for one boot.
        if state.deployments().staged.is_some() || state.booted != state.selected {
            return Ok(());
        }
        let booted = state.packages_of(&state.booted().id);
        let there: PackageNames = booted.recorded().collect();
        let before = own.len();
        own.retain(|name| there.contains(name));
        match own.len() == before {
            true => Ok(()),
            false => Ok(record_packages(&self.root, &own)?),
        }
    }

    /// Lets rpm-ostree make the commit of a deployment, and returns the deployment with the file of its origin; `None` if
    /// nothing differs from the running one.
    pub(super) async fn prepare_packages(
        &self,
        state: &OstreeState,
        new: NewDeployment,
        update: &PackageUpdate,
        wanted: &DesiredDeployment,
        limit: Duration,
    ) -> Result<Option<(NewDeployment, String)>, OstreeError> {
        self.record_own(state, update)?;
        self.write_run_file(SWITCH_MARKER, &update.marker(new.image.as_ref()))?;
        self.transact(update, TransactionKind::Stage, limit).await?;
        let Some(staged) = Staged::read(&self.root)? else {
            // The packages of the other repository are the same.
            let origin = self.write_booted_origin(state)?.to_owned();
            self.remove_switched(None).await?;
            return Ok(new.has_other_arguments(state).then_some((new, origin)));
        };
        let origin = deployment_origin::origin_of(&self.root, &state.stateroot, &staged.id)?;
        let found = LayeredPackages::of_origin(&origin);
        if !found.is_same(&update.result) {
            let list = |packages: &LayeredPackages| {
                format!(
                    "the packages {:?} without {:?}",
                    packages.requested, packages.removed
                )
            };
            return Err(OstreeError::OtherPackages {
                found: list(&found),
                wanted: list(&update.result),
            });
        }
        let booted = state.booted();
        let image = new.image.as_ref().or(booted.image.as_ref());
        repository_images::check_image(&self.root, &state.stateroot, &staged.id, image)?;
        let mut new = new.with_base(&self.root, &staged.arguments, &wanted.kernel_arguments)?;
        let commit = deployment_origin::commit_of(&staged.id);
        new.commit = Some(commit.to_owned());
        let origin = self.write_origin(&with_repository(&origin, update.repository.as_ref()))?;
        self.reference("--create", Some(commit)).await?;
        self.remove_switched(Some(&staged.id)).await?;
        Ok(Some((new, origin.to_owned())))
    }

    /// Removes the reference of a trial's commit, which the deployment keeps or needs no more.
    pub(super) async fn try_remove_reference(&self) {
        if is_there(&self.root, REFERENCE_FILE)
            && let Err(error) = self.reference("--delete", None).await
        {
            tracing::warn!("the reference {REFERENCE} remains: {}", chain(&error));
        }
    }

    async fn reference(
        &self,
        command: &'static str,
        commit: Option<&str>,
    ) -> Result<(), OstreeError> {
        let arguments: Vec<String> = match commit {
            Some(commit) => vec![
                format!("{command}={REFERENCE}"),
                "--force".to_owned(),
                commit.to_owned(),
            ],
            None => vec![command.to_owned(), REFERENCE.to_owned()],
        };
        let mut all = vec!["refs", "--repo", REPOSITORY];
        all.extend(arguments.iter().map(String::as_str));
        let done = self.run_ostree(&all).await;
        done.map_err(|source| OstreeError::Reference { command, source })
    }
}
