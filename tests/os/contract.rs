//! The contract of every provider, as named facts about a host that boots and loses power.
//!
//! To test a provider, call [`every_provider_keeps`] with hosts that have just booted and have
//! nothing staged: it names the facts that do not hold, each with the observed result. `mutants.rs`
//! shows that the contract detects violations.

mod boots;
mod steps;

use std::{collections::BTreeSet, future::Future, pin::Pin, time::Duration};

use self::{
    boots::{
        a_deployment_that_is_locked_again_is_not_booted,
        a_deployment_that_is_not_kept_is_left_by_the_next_boot,
        a_deployment_that_never_reaches_userspace_falls_back_by_itself,
        a_kept_deployment_is_booted_from_then_on, a_locked_deployment_is_never_booted,
        a_power_cut_after_unlocking_boots_either_deployment_completely,
        a_repeated_rollback_boots_the_previous_deployment,
        a_reverted_rollback_boots_the_current_deployment,
        a_rollback_replaces_the_staged_deployment, a_rollback_survives_a_power_cut,
        a_rollback_to_a_missing_deployment_is_rejected,
        a_staged_deployment_and_its_lock_survive_the_agent,
        a_staged_deployment_is_not_active_until_a_boot,
        an_unlocked_deployment_is_booted_next_with_the_former_as_fallback, keeping_is_idempotent,
        only_the_booted_deployment_is_kept, only_the_named_deployment_is_unlocked,
        unlocking_is_idempotent,
    },
    steps::{
        a_failed_step_keeps_booted_and_fallback_and_can_be_retried,
        a_step_above_its_time_limit_is_cancelled_and_leaves_nothing_behind,
        a_step_of_twenty_minutes_succeeds, after_a_boot_the_booted_deployment_is_as_desired,
        an_already_booted_deployment_is_not_staged,
        an_image_is_fetched_with_its_version_or_refused_by_name,
        an_image_is_selected_by_digest_not_by_name,
        appended_kernel_arguments_keep_order_duplicates_and_foreign_ones,
        discarding_removes_the_staged_deployment_and_keeps_the_booted_one,
        removing_kernel_arguments_keeps_equal_foreign_ones,
        staging_another_deployment_replaces_the_staged_one,
        staging_the_same_deployment_again_changes_nothing,
    },
};
use machinist_ignition::KernelCommandLine;
use machinist_plan::ImageRef;
use machinist_update::os::{
    Deployment, DeploymentId, Deployments, DesiredDeployment, KernelArgumentEdit, OsError,
    OsProvider, ProviderStep,
};

/// Time limit of one step.
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// A machine around a provider.
pub(crate) trait Host {
    type Provider: OsProvider;

    /// Whether the provider changes more than kernel arguments.
    const CHANGES_IMAGES: bool = true;

    /// Whether the provider changes the kernel type and extensions.
    const CHANGES_PACKAGES: bool = true;

    /// Whether a deployment may have several equal kernel arguments.
    const KEEPS_EQUAL_ARGUMENTS: bool = true;

    /// Whether the fallback stays until a new deployment is kept. libostree keeps two deployments, of which one may be
    /// the new one.
    const KEEPS_FALLBACK: bool = true;

    /// A new process on the running system, which knows only the state of the host.
    fn agent(&self) -> Self::Provider;

    /// Shuts down properly and boots again.
    fn reboot(&self);

    /// Loses power and boots again.
    fn power_cut(&self);

    /// The registry has this image from now on; the last one of a name is the newest.
    fn publishes(&self, image: &ImageRef, version: &str);

    /// The next such step fails, for a reason that may be temporary.
    fn fails_next(&self, step: ProviderStep);

    /// No boot of this deployment reaches userspace.
    fn panics(&self, id: &DeploymentId);

    /// From now on each step takes that long.
    fn takes(&self, long: Duration);
}

type Seen = Result<(), String>;

/// A named fact: its check passes on a fresh host or returns the observed result.
type Fact<H> = (
    &'static str,
    fn(Scene<H>) -> Pin<Box<dyn Future<Output = Seen>>>,
);

macro_rules! facts {
    ($($name:ident),+ $(,)?) => {
        vec![$((stringify!($name), (|scene| Box::pin($name(scene))) as fn(Scene<H>) -> Pin<Box<dyn Future<Output = Seen>>>)),+]
    };
}

/// The facts that a provider violates, with the observed results; empty for a correct one. Needs a
/// paused clock.
pub(crate) async fn every_provider_keeps<H: Host + 'static>(
    make_host: impl Fn() -> H,
) -> Vec<(&'static str, String)> {
    let mut broken = Vec::new();
    for (name, holds) in facts::<H>() {
        let scene = Scene::of(make_host()).await;
        if let Err(seen) = holds(scene).await {
            broken.push((name, seen));
        }
    }
    broken
}

pub(crate) fn names<H: Host + 'static>() -> BTreeSet<&'static str> {
    facts::<H>().into_iter().map(|(name, _)| name).collect()
}

fn facts<H: Host + 'static>() -> Vec<Fact<H>> {
    let mut facts = facts![
        a_staged_deployment_is_not_active_until_a_boot,
        a_locked_deployment_is_never_booted,
        a_staged_deployment_and_its_lock_survive_the_agent,
        an_unlocked_deployment_is_booted_next_with_the_former_as_fallback,
        a_deployment_that_is_not_kept_is_left_by_the_next_boot,
        a_kept_deployment_is_booted_from_then_on,
        keeping_is_idempotent,
        only_the_booted_deployment_is_kept,
        a_deployment_that_never_reaches_userspace_falls_back_by_itself,
        a_deployment_that_is_locked_again_is_not_booted,
        a_power_cut_after_unlocking_boots_either_deployment_completely,
        unlocking_is_idempotent,
        only_the_named_deployment_is_unlocked,
        staging_the_same_deployment_again_changes_nothing,
        staging_another_deployment_replaces_the_staged_one,
        an_already_booted_deployment_is_not_staged,
        discarding_removes_the_staged_deployment_and_keeps_the_booted_one,
        a_repeated_rollback_boots_the_previous_deployment,
        a_rollback_survives_a_power_cut,
        a_reverted_rollback_boots_the_current_deployment,
        a_rollback_replaces_the_staged_deployment,
        a_rollback_to_a_missing_deployment_is_rejected,
        a_failed_step_keeps_booted_and_fallback_and_can_be_retried,
    ];
    if H::KEEPS_EQUAL_ARGUMENTS {
        facts.extend(facts![
            appended_kernel_arguments_keep_order_duplicates_and_foreign_ones,
            removing_kernel_arguments_keeps_equal_foreign_ones,
        ]);
    }
    if H::CHANGES_IMAGES {
        facts.extend(facts![
            after_a_boot_the_booted_deployment_is_as_desired,
            an_image_is_selected_by_digest_not_by_name,
            an_image_is_fetched_with_its_version_or_refused_by_name,
            a_step_above_its_time_limit_is_cancelled_and_leaves_nothing_behind,
            a_step_of_twenty_minutes_succeeds,
        ]);
    }
    facts
}

/// A host, an agent on it, and its initial deployments.
pub(crate) struct Scene<H: Host> {
    host: H,
    agent: H::Provider,
    first: Deployments,
}

const NAME: &str = "registry.example.com/os";

/// An image of a fixed name, with the digest of this content.
pub(crate) fn image(content: &str) -> ImageRef {
    let digest = machinist_base::digest::Digest::of(content.as_bytes());
    ImageRef::parse(&format!("{NAME}@{digest}")).unwrap()
}

fn list(words: &str) -> KernelCommandLine {
    KernelCommandLine::parse(words)
}

/// A deployment with other kernel arguments.
pub(crate) fn wanted(append: &str, remove: &str) -> DesiredDeployment {
    DesiredDeployment {
        kernel_arguments: KernelArgumentEdit {
            append: list(append),
            remove: list(remove),
        },
        ..DesiredDeployment::default()
    }
}

fn append(words: &str) -> DesiredDeployment {
    DesiredDeployment {
        kernel_arguments: KernelArgumentEdit {
            append: list(words),
            ..KernelArgumentEdit::default()
        },
        ..DesiredDeployment::default()
    }
}

/// A deployment of this image, with the arguments of the booted one.
pub(crate) fn of_image(image: ImageRef) -> DesiredDeployment {
    DesiredDeployment {
        image: Some(image),
        ..DesiredDeployment::default()
    }
}

fn error_text(error: &OsError) -> String {
    format!("{error} (again: {})", error.is_retryable())
}

impl<H: Host> Scene<H> {
    async fn of(host: H) -> Self {
        host.publishes(&image("new"), "2.0");
        let agent = host.agent();
        let first = agent.observe().await.unwrap();
        assert!(first.staged.is_none(), "a fresh host: {first:?}");
        assert!(first.fallback.is_some(), "a host with a past: {first:?}");
        Self { host, agent, first }
    }

    /// The current deployments, observed by a new process.
    async fn now(&self) -> Result<Deployments, String> {
        self.host
            .agent()
            .observe()
            .await
            .map_err(|e| error_text(&e))
    }

    async fn stage(&self, wanted: &DesiredDeployment) -> Result<DeploymentId, String> {
        let fetched = self.agent.fetch(wanted, STEP_TIMEOUT).await;
        fetched.map_err(|e| error_text(&e))?;
        let staged = self.agent.stage(wanted, STEP_TIMEOUT).await;
        let staged = staged.map_err(|e| error_text(&e))?;
        staged.ok_or_else(|| "nothing was staged".to_owned())
    }

    async fn unlock(&self, id: &DeploymentId) -> Seen {
        self.agent.unlock(id).await.map_err(|e| error_text(&e))
    }

    async fn discard(&self) -> Seen {
        self.agent.discard().await.map_err(|e| error_text(&e))
    }

    async fn roll_back(&self, to: &DeploymentId) -> Seen {
        self.agent.roll_back(to).await.map_err(|e| error_text(&e))
    }

    async fn lock(&self) -> Seen {
        self.agent.lock().await.map_err(|e| error_text(&e))
    }

    async fn keep(&self, id: &DeploymentId) -> Seen {
        self.agent.keep(id).await.map_err(|e| error_text(&e))
    }

    /// Stages, unlocks, and boots into it.
    async fn try_boot(&self, wanted: &DesiredDeployment) -> Result<Deployments, String> {
        let id = self.stage(wanted).await?;
        self.unlock(&id).await?;
        self.host.reboot();
        let now = self.now().await?;
        is("the booted one", &now.booted.id, &id)?;
        Ok(now)
    }

    /// Stages, unlocks, boots into it, and keeps it.
    async fn boot_into(&self, wanted: &DesiredDeployment) -> Result<Deployments, String> {
        let id = self.try_boot(wanted).await?.booted.id;
        self.keep(&id).await?;
        self.now().await
    }

    /// Asserts that the machine is as after its first boot, with nothing that another boot would enter.
    async fn assert_left(&self) -> Seen {
        self.assert_initial_deployments().await?;
        let now = self.now().await?;
        is("the next one", &now.next, &self.first.booted.id)?;
        is(
            "the lock",
            &now.staged.is_none_or(|staged| staged.locked),
            &true,
        )
    }

    /// Asserts that the booted and the fallback deployment are the initial ones.
    async fn assert_initial_deployments(&self) -> Seen {
        let now = self.now().await?;
        is("the booted one", &now.booted, &self.first.booted)?;
        match H::KEEPS_FALLBACK || now.fallback.is_some() {
            true => is("the fallback", &now.fallback, &self.first.fallback),
            false => Ok(()),
        }
    }

    fn fallback(&self) -> Result<Deployment, String> {
        let fallback = self.first.fallback.clone();
        fallback.ok_or_else(|| "no fallback".to_owned())
    }
}

fn is<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Seen {
    match found == expected {
        true => Ok(()),
        false => Err(format!("{what} is {found:?} instead of {expected:?}")),
    }
}
