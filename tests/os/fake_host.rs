//! A fake host: deployments on a disk, a boot loader, boots and power losses; and the ways to break
//! it.
//!
//! The disk outlives the agents: each [`Host::agent`] is a new process that knows only the disk's
//! content.

mod breaks;
mod disk;

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use machinist_ignition::{KernelArgument, KernelCommandLine};
use machinist_plan::{HostKind, ImageRef, KernelType, OsCapabilities};
use machinist_update::os::{
    Deployment, DeploymentId, Deployments, DesiredDeployment, FetchedImage, OsError, OsProvider,
    ProviderStep, StagedDeployment,
};

pub(crate) use self::breaks::Breaks;
use self::disk::{Disk, Held, Selection};
use super::contract::Host;

/// The host.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    disk: Arc<Mutex<Disk>>,
    breaks: Option<Breaks>,
}

/// One agent's handle of it.
#[derive(Debug)]
pub(crate) struct Agent {
    host: Machine,
    id: u32,
}

/// The fake program's error message.
#[derive(Debug)]
struct Said(&'static str);

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Said {}

impl Machine {
    pub(crate) fn new(breaks: Option<Breaks>, installed: ImageRef, arguments: &[&str]) -> Self {
        let deployment = |id: &str| Deployment {
            id: DeploymentId::new(id),
            image: Some(installed.clone()),
            version: Some("1.0".to_owned()),
            kernel_arguments: KernelCommandLine::parse(&arguments.join(" ")),
            kernel_type: KernelType::Default,
            extensions: BTreeSet::new(),
        };
        let selection = Selection {
            selected: deployment("os-0"),
            previous: Some(deployment("os-before")),
        };
        let disk = Disk {
            booted: selection.selected.clone(),
            durable: selection.clone(),
            selection,
            staged: None,
            panics: None,
            made: 0,
            agents: 0,
            images: vec![(installed.clone(), "1.0".to_owned())],
            fetched: Vec::new(),
            fails: None,
            takes: Duration::ZERO,
        };
        Self {
            disk: Arc::new(Mutex::new(disk)),
            breaks,
        }
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap()
    }

    fn breaks(&self, rule: Breaks) -> bool {
        self.breaks == Some(rule)
    }
}

impl Host for Machine {
    type Provider = Agent;

    fn agent(&self) -> Agent {
        let mut disk = self.disk();
        disk.agents += 1;
        let id = disk.agents;
        if self.breaks(Breaks::StagedIsTheAgents) {
            disk.staged.take_if(|held| held.by != id);
        }
        if self.breaks(Breaks::LockIsTheAgents)
            && let Some(held) = &mut disk.staged
        {
            held.staged.locked = false;
        }
        drop(disk);
        Agent {
            host: self.clone(),
            id,
        }
    }

    /// Like OSTree: an unlocked staged deployment is finalised during the shutdown; a locked one is
    /// not, and is lost with `/run`.
    fn reboot(&self) {
        let mut disk = self.disk();
        disk.durable = disk.selection.clone();
        let trial = disk.staged.take().filter(|held| !held.staged.locked);
        self.boot(&mut disk, trial);
    }

    /// Nothing is finalised.
    fn power_cut(&self) {
        let mut disk = self.disk();
        let trial = disk.staged.take();
        if let Some(held) = trial.as_ref().filter(|held| !held.staged.locked)
            && self.breaks(Breaks::PowerCutMixes)
        {
            let mixed = held.staged.deployment.kernel_arguments.clone();
            disk.durable.selected.kernel_arguments = mixed;
        }
        disk.selection = disk.durable.clone();
        let trial = trial.filter(|_| self.breaks(Breaks::PowerCutFinalises));
        self.boot(&mut disk, trial);
    }

    fn panics(&self, id: &DeploymentId) {
        self.disk().panics = Some(id.clone());
    }

    fn publishes(&self, image: &ImageRef, version: &str) {
        self.disk().images.push((image.clone(), version.to_owned()));
    }

    fn fails_next(&self, step: ProviderStep) {
        self.disk().fails = Some(step);
    }

    fn takes(&self, long: Duration) {
        self.disk().takes = long;
    }
}

impl Machine {
    fn boot(&self, disk: &mut Disk, trial: Option<Held>) {
        disk.booted = disk.selection.selected.clone();
        let Some(mut held) = trial else {
            return;
        };
        let fails = disk.panics.as_ref() == Some(&held.staged.deployment.id);
        if !fails || self.breaks(Breaks::FailedBootHangs) {
            disk.booted = held.staged.deployment;
        } else {
            // The boot loader counts down before it enters a deployment.
            held.staged.locked = !self.breaks(Breaks::FailedBootIsRepeated);
            disk.staged = Some(held);
        }
        if self.breaks(Breaks::TrialStays) {
            disk.selection.selected = disk.booted.clone();
        }
    }
}

impl Agent {
    /// Runs the fake program: it takes as long as the host is set to, and fails where it is set to
    /// fail.
    async fn run(&self, step: ProviderStep, limit: Option<Duration>) -> Result<(), OsError> {
        let (takes, fails) = {
            let mut disk = self.host.disk();
            (
                disk.takes,
                disk.fails.take_if(|fails| *fails == step).is_some(),
            )
        };
        let limit = limit.filter(|_| !self.host.breaks(Breaks::IgnoresLimits));
        match limit {
            Some(limit) => tokio::time::timeout(limit, tokio::time::sleep(takes))
                .await
                .map_err(|_| OsError::TimedOut { step, limit })?,
            None => tokio::time::sleep(takes).await,
        }
        let swallows = self.host.breaks(Breaks::SwallowsFailures);
        match fails && !swallows {
            true => Err(OsError::Failed {
                step,
                retryable: true,
                source: Box::new(Said("the disk is full")),
            }),
            false => Ok(()),
        }
    }

    fn version(&self, image: &ImageRef) -> Option<String> {
        let disk = self.host.disk();
        let found = disk.images.iter().find(|(known, _)| known == image);
        found.map(|(_, version)| version.clone())
    }

    fn properties(&self, image: &ImageRef) -> FetchedImage {
        FetchedImage {
            version: self
                .version(image)
                .filter(|_| !self.host.breaks(Breaks::NoVersions)),
        }
    }

    /// The image that is pulled for the requested one.
    fn pulled(&self, image: &ImageRef) -> ImageRef {
        let disk = self.host.disk();
        let mut newest = disk.images.iter().rev();
        let newest = newest.find(|(known, _)| known.name() == image.name());
        newest
            .filter(|_| self.host.breaks(Breaks::PullsByName))
            .map_or_else(|| image.clone(), |(newest, _)| newest.clone())
    }

    /// The requested arguments, computed without the product's own code.
    fn arguments(&self, wanted: &DesiredDeployment) -> KernelCommandLine {
        let disk = self.host.disk();
        let staged = disk.staged.as_ref().map(|held| &held.staged.deployment);
        let base = staged
            .filter(|_| self.host.breaks(Breaks::ArgumentsPileUp))
            .unwrap_or(&disk.booted);
        let mut all: Vec<KernelArgument> = base.kernel_arguments.iter().rev().cloned().collect();
        for gone in wanted.kernel_arguments.remove.iter() {
            if let Some(at) = all.iter().position(|argument| argument == gone) {
                all.remove(at);
            }
        }
        all.reverse();
        if self.host.breaks(Breaks::OthersArgumentsGo) {
            all.clear();
        }
        all.extend(wanted.kernel_arguments.append.iter().cloned());
        if self.host.breaks(Breaks::ArgumentsAreASet) {
            let mut seen = BTreeSet::new();
            all.retain(|argument| seen.insert(argument.clone()));
        }
        if self.host.breaks(Breaks::ArgumentsAreSorted) {
            all.sort();
        }
        all.into_iter().collect()
    }

    fn asked_for(&self, wanted: &DesiredDeployment) -> Deployment {
        let booted = self.host.disk().booted.clone();
        let image = wanted.image.clone().or(booted.image);
        let image = image.map(|image| self.pulled(&image));
        let packages = wanted.packages.clone().unwrap_or_default();
        Deployment {
            id: booted.id,
            version: image.as_ref().and_then(|image| self.version(image)),
            image,
            kernel_arguments: self.arguments(wanted),
            kernel_type: packages.kernel_type,
            extensions: packages.extensions,
        }
    }

    /// Writes the deployment to the disk, and returns its id.
    fn put(&self, mut deployment: Deployment, wanted: &DesiredDeployment) -> Option<DeploymentId> {
        let host = &self.host;
        let mut disk = host.disk();
        if deployment == disk.booted && !host.breaks(Breaks::StagesWhatIsBooted) {
            if !host.breaks(Breaks::KeepsWhatIsNoLongerAsked) {
                disk.staged = None;
            }
            return None;
        }
        let again = !host.breaks(Breaks::StagesAnew) && !host.breaks(Breaks::ArgumentsPileUp);
        if let Some(held) = disk.staged.as_ref().filter(|_| again)
            && held.wanted == *wanted
        {
            return Some(held.staged.deployment.id.clone());
        }
        disk.made += 1;
        deployment.id = DeploymentId::new(format!("os-{}", disk.made));
        let id = deployment.id.clone();
        disk.staged = Some(Held {
            staged: StagedDeployment {
                deployment,
                locked: !host.breaks(Breaks::StagesUnlocked),
                is_deselected: false,
            },
            by: self.id,
            wanted: wanted.clone(),
        });
        Some(id)
    }

    fn gone(step: ProviderStep, id: &DeploymentId) -> OsError {
        OsError::DeploymentMissing {
            step,
            id: id.clone(),
        }
    }
}

#[async_trait::async_trait]
impl OsProvider for Agent {
    fn capabilities(&self) -> OsCapabilities {
        OsCapabilities {
            image: true,
            kernel_arguments: true,
            kernel_type: true,
            extensions: true,
            ..OsCapabilities::without_provider(HostKind::RpmOstree)
        }
    }

    async fn observe(&self) -> Result<Deployments, OsError> {
        self.run(ProviderStep::Observe, None).await?;
        let disk = self.host.disk();
        let staged = disk.staged.as_ref().map(|held| held.staged.clone());
        let booted = match &staged {
            Some(staged) if self.host.breaks(Breaks::StagedIsBooted) => staged.deployment.clone(),
            _ => disk.booted.clone(),
        };
        Ok(Deployments {
            next: match self.host.breaks(Breaks::NextIsBooted) {
                true => booted.id.clone(),
                false => disk.selection.selected.id.clone(),
            },
            booted,
            staged,
            fallback: disk.fallback(),
        })
    }

    async fn fetched(&self, wanted: &DesiredDeployment) -> Result<Option<FetchedImage>, OsError> {
        let Some(image) = &wanted.image else {
            return Ok(Some(FetchedImage::default()));
        };
        let is_fetched = self.host.disk().fetched.contains(image);
        Ok(is_fetched.then(|| self.properties(image)))
    }

    async fn fetch(
        &self,
        wanted: &DesiredDeployment,
        limit: Duration,
    ) -> Result<FetchedImage, OsError> {
        let Some(image) = &wanted.image else {
            return Ok(FetchedImage::default());
        };
        let down = || OsError::Unreachable {
            image: image.clone(),
            retryable: !self.host.breaks(Breaks::NeverAgain),
            source: Box::new(Said("connection refused")),
        };
        self.run(ProviderStep::Fetch, Some(limit))
            .await
            .map_err(|error| match error {
                OsError::Failed { .. } => down(),
                other => other,
            })?;
        match self.version(image) {
            Some(_) => {
                if !self.host.breaks(Breaks::ForgetsFetched) {
                    self.host.disk().fetched.push(image.clone());
                }
                Ok(self.properties(image))
            }
            None => Err(OsError::Unreachable {
                image: image.clone(),
                retryable: false,
                source: Box::new(Said("manifest unknown")),
            }),
        }
    }

    async fn stage(
        &self,
        wanted: &DesiredDeployment,
        limit: Duration,
    ) -> Result<Option<DeploymentId>, OsError> {
        if self.host.breaks(Breaks::CleansUpFirst) {
            self.host.disk().selection.previous = None;
        }
        let done = self.run(ProviderStep::Stage, Some(limit)).await;
        if done.is_err() && !self.host.breaks(Breaks::StagesHalf) {
            done?;
        } else if done.is_err() {
            self.put(self.asked_for(wanted), wanted);
            if let Some(held) = &mut self.host.disk().staged {
                held.staged.locked = false;
            }
            done?;
        }
        Ok(self.put(self.asked_for(wanted), wanted))
    }

    async fn unlock(&self, staged: &DeploymentId) -> Result<(), OsError> {
        self.run(ProviderStep::Unlock, None).await?;
        let mut disk = self.host.disk();
        let anything = self.host.breaks(Breaks::UnlocksAnything);
        let held = disk.staged.as_mut();
        let held = held.filter(|held| anything || held.staged.deployment.id == *staged);
        let held = held.ok_or_else(|| Self::gone(ProviderStep::Unlock, staged))?;
        match self.host.breaks {
            Some(Breaks::UnlocksNothing) => {}
            Some(Breaks::UnlockToggles) => held.staged.locked = !held.staged.locked,
            _ => held.staged.locked = false,
        }
        Ok(())
    }

    async fn lock(&self) -> Result<(), OsError> {
        self.run(ProviderStep::Lock, None).await?;
        let mut disk = self.host.disk();
        match (&mut disk.staged, self.host.breaks) {
            (_, Some(Breaks::LocksNothing)) => {}
            (None, Some(Breaks::LockIsNotRepeatable)) => {
                let staged = DeploymentId::new("staged");
                return Err(Self::gone(ProviderStep::Lock, &staged));
            }
            (Some(held), _) => held.staged.locked = true,
            (None, _) => {}
        }
        Ok(())
    }

    async fn keep(&self, booted: &DeploymentId) -> Result<(), OsError> {
        self.run(ProviderStep::Keep, None).await?;
        let mut disk = self.host.disk();
        if disk.booted.id != *booted && !self.host.breaks(Breaks::KeepsAnything) {
            return Err(Self::gone(ProviderStep::Keep, booted));
        }
        if self.host.breaks(Breaks::KeepsNothing) {
            return Ok(());
        }
        if disk.selection.selected.id != disk.booted.id {
            let booted = disk.booted.clone();
            let before = std::mem::replace(&mut disk.selection.selected, booted);
            disk.selection.previous = Some(before);
        } else if self.host.breaks(Breaks::KeepToggles) {
            disk.selection.swap();
        }
        disk.sync(!self.host.breaks(Breaks::KeepIsVolatile));
        Ok(())
    }

    async fn discard(&self) -> Result<(), OsError> {
        self.run(ProviderStep::Discard, None).await?;
        let mut disk = self.host.disk();
        match self.host.breaks {
            Some(Breaks::DiscardsNothing) => return Ok(()),
            Some(Breaks::DiscardDropsFallback) => disk.selection.previous = None,
            Some(Breaks::DiscardIsNotRepeatable) if disk.staged.is_none() => {
                return Err(Self::gone(
                    ProviderStep::Discard,
                    &DeploymentId::new("staged"),
                ));
            }
            _ => {}
        }
        disk.staged = None;
        Ok(())
    }

    async fn roll_back(&self, to: &DeploymentId) -> Result<(), OsError> {
        self.run(ProviderStep::RollBack, None).await?;
        let mut disk = self.host.disk();
        let is_previous = disk.selection.previous.as_ref();
        let is_previous = is_previous.is_some_and(|one| one.id == *to);
        let is_known = is_previous || disk.selection.selected.id == *to;
        if !is_known && !self.host.breaks(Breaks::RollsBackToAnything) {
            return Err(Self::gone(ProviderStep::RollBack, to));
        }
        if is_previous || self.host.breaks(Breaks::RollbackToggles) {
            disk.selection.swap();
        }
        disk.sync(!self.host.breaks(Breaks::RollbackIsVolatile));
        if !self.host.breaks(Breaks::RollbackKeepsStaged) {
            disk.staged = None;
        }
        Ok(())
    }
}
