//! A fake host: deployments on a disk, a boot loader, boots and power losses; and the ways to break
//! it.
//!
//! The disk outlives the agents: each [`Host::agent`] is a new process that knows only the disk's
//! content.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use machinist_ignition::{KernelArgument, KernelCommandLine};
use machinist_plan::{HostKind, ImageRef, OsCapabilities};
use machinist_update::os::{
    Deployment, DeploymentId, Deployments, DesiredDeployment, FetchedImage, KernelType, OsError,
    OsProvider, ProviderStep, StagedDeployment,
};

use super::contract::Host;

/// The defect of a broken fake: each violates one rule of the contract that a real provider could
/// miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Breaks {
    /// A deployment is staged without a lock.
    StagesUnlocked,
    /// The lock is lost with the process that staged.
    LockIsTheAgents,
    /// The staged deployment is lost with the process that staged it.
    StagedIsTheAgents,
    /// A power loss finalises a locked deployment.
    PowerCutFinalises,
    /// A power loss after the unlocking leaves half of the new deployment in the booted one.
    PowerCutMixes,
    /// A rollback is recorded only by a proper shutdown.
    RollbackIsVolatile,
    /// Unlocking reports success and does nothing.
    UnlocksNothing,
    /// Unlocking again locks again.
    UnlockToggles,
    /// Unlocking unlocks whatever is staged.
    UnlocksAnything,
    /// Staging the same content again creates another deployment, locked.
    StagesAnew,
    /// Arguments are added to those that were staged before.
    ArgumentsPileUp,
    /// A deployment is staged even when the booted one matches already.
    StagesWhatIsBooted,
    /// When the booted deployment matches, an earlier staged one is kept.
    KeepsWhatIsNoLongerAsked,
    /// Discarding reports success and does nothing.
    DiscardsNothing,
    /// Discarding removes the fallback, too.
    DiscardDropsFallback,
    /// Discarding when nothing is staged is an error.
    DiscardIsNotRepeatable,
    /// Duplicate arguments are merged.
    ArgumentsAreASet,
    /// Arguments are sorted.
    ArgumentsAreSorted,
    /// Only the config's arguments remain.
    OthersArgumentsGo,
    /// The staged deployment is reported as booted immediately.
    StagedIsBooted,
    /// Rolling back swaps the deployments, each time.
    RollbackToggles,
    /// Rolling back leaves the staged deployment for the next boot.
    RollbackKeepsStaged,
    /// Rolling back to an unknown deployment reports success.
    RollsBackToAnything,
    /// The newest image of that name is pulled, instead of the digest.
    PullsByName,
    /// Old deployments are removed before the new one is complete.
    CleansUpFirst,
    /// A failed step is reported as successful.
    SwallowsFailures,
    /// Time limits are ignored.
    IgnoresLimits,
    /// An interrupted staging appears as complete.
    StagesHalf,
    /// Failures of the registry are never reported as retryable.
    NeverAgain,
    /// The versions of images are not read.
    NoVersions,
}

/// The state that survives every process and determines the next boot.
#[derive(Debug)]
struct Disk {
    booted: Deployment,
    fallback: Option<Deployment>,
    staged: Option<Held>,
    /// The next boot starts the fallback.
    rolls_back: bool,
    made: u32,
    agents: u32,
    images: Vec<(ImageRef, String)>,
    fails: Option<ProviderStep>,
    takes: Duration,
}

#[derive(Clone, Debug)]
struct Held {
    staged: StagedDeployment,
    by: u32,
    /// The state that was requested for it.
    wanted: DesiredDeployment,
}

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
        let disk = Disk {
            booted: deployment("os-0"),
            fallback: Some(deployment("os-before")),
            staged: None,
            rolls_back: false,
            made: 0,
            agents: 0,
            images: vec![(installed.clone(), "1.0".to_owned())],
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
        let next = disk.staged.take().filter(|held| !held.staged.locked);
        disk.boot(next);
    }

    /// Nothing is finalised.
    fn power_cut(&self) {
        let mut disk = self.disk();
        let next = disk.staged.take();
        if let Some(held) = next.as_ref().filter(|held| !held.staged.locked)
            && self.breaks(Breaks::PowerCutMixes)
        {
            disk.booted.kernel_arguments = held.staged.deployment.kernel_arguments.clone();
        }
        if self.breaks(Breaks::RollbackIsVolatile) {
            disk.rolls_back = false;
        }
        let next = next.filter(|_| self.breaks(Breaks::PowerCutFinalises));
        disk.boot(next);
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

impl Disk {
    fn boot(&mut self, next: Option<Held>) {
        let rolls_back = std::mem::take(&mut self.rolls_back);
        let next = next.map(|held| held.staged.deployment);
        let next = next.or_else(|| self.fallback.take_if(|_| rolls_back));
        if let Some(next) = next {
            self.fallback = Some(std::mem::replace(&mut self.booted, next));
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
        Deployment {
            id: booted.id,
            version: image.as_ref().and_then(|image| self.version(image)),
            image,
            kernel_arguments: self.arguments(wanted),
            kernel_type: wanted.kernel_type,
            extensions: wanted.extensions.clone(),
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
        disk.rolls_back = false;
        disk.staged = Some(Held {
            staged: StagedDeployment {
                deployment,
                locked: !host.breaks(Breaks::StagesUnlocked),
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

impl OsProvider for Agent {
    const CAPABILITIES: OsCapabilities = OsCapabilities {
        image: true,
        kernel_arguments: true,
        kernel_type: true,
        extensions: true,
        ..OsCapabilities::without_provider(HostKind::RpmOstree)
    };

    async fn observe(&self) -> Result<Deployments, OsError> {
        self.run(ProviderStep::Observe, None).await?;
        let disk = self.host.disk();
        let staged = disk.staged.as_ref().map(|held| held.staged.clone());
        let booted = match &staged {
            Some(staged) if self.host.breaks(Breaks::StagedIsBooted) => staged.deployment.clone(),
            _ => disk.booted.clone(),
        };
        Ok(Deployments {
            booted,
            staged,
            fallback: disk.fallback.clone(),
        })
    }

    async fn fetch(&self, image: &ImageRef, limit: Duration) -> Result<FetchedImage, OsError> {
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
            Some(version) => Ok(FetchedImage {
                version: Some(version).filter(|_| !self.host.breaks(Breaks::NoVersions)),
            }),
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
            self.host.disk().fallback = None;
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

    async fn discard(&self) -> Result<(), OsError> {
        self.run(ProviderStep::Discard, None).await?;
        let mut disk = self.host.disk();
        match self.host.breaks {
            Some(Breaks::DiscardsNothing) => return Ok(()),
            Some(Breaks::DiscardDropsFallback) => disk.fallback = None,
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
        let is_fallback = disk.fallback.as_ref().is_some_and(|one| one.id == *to);
        if !is_fallback && disk.booted.id != *to && !self.host.breaks(Breaks::RollsBackToAnything) {
            return Err(Self::gone(ProviderStep::RollBack, to));
        }
        disk.rolls_back = match self.host.breaks(Breaks::RollbackToggles) {
            true => !disk.rolls_back,
            false => is_fallback,
        };
        if !self.host.breaks(Breaks::RollbackKeepsStaged) {
            disk.staged = None;
        }
        Ok(())
    }
}
