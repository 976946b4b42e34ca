//! The contract of every provider, as named facts about a host that boots and loses power.
//!
//! To test a provider, call [`every_provider_keeps`] with hosts that have just booted and have
//! nothing staged: it names the facts that do not hold, each with the observed result. `mutants.rs`
//! shows that the contract detects violations.

use std::{collections::BTreeSet, future::Future, pin::Pin, time::Duration};

use machinist_ignition::KernelCommandLine;
use machinist_plan::ImageRef;
use machinist_update::os::{
    Deployment, DeploymentId, Deployments, DesiredDeployment, KernelArguments, KernelType, OsError,
    OsProvider, ProviderStep, STEP_TIMEOUT,
};

/// A machine around a provider.
pub(crate) trait Host {
    type Provider: OsProvider;

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
    facts![
        a_staged_deployment_is_not_active_until_a_boot,
        a_locked_deployment_is_never_booted,
        a_staged_deployment_and_its_lock_survive_the_agent,
        an_unlocked_deployment_is_booted_next_with_the_former_as_fallback,
        a_power_cut_after_unlocking_boots_either_deployment_completely,
        unlocking_is_idempotent,
        only_the_named_deployment_is_unlocked,
        staging_the_same_deployment_again_changes_nothing,
        staging_another_deployment_replaces_the_staged_one,
        an_already_booted_deployment_is_not_staged,
        discarding_removes_the_staged_deployment_and_keeps_the_booted_one,
        appended_kernel_arguments_keep_order_duplicates_and_foreign_ones,
        removing_kernel_arguments_keeps_equal_foreign_ones,
        after_a_boot_the_booted_deployment_is_as_desired,
        a_repeated_rollback_boots_the_previous_deployment,
        a_rollback_survives_a_power_cut,
        a_reverted_rollback_boots_the_current_deployment,
        a_rollback_replaces_the_staged_deployment,
        a_rollback_to_a_missing_deployment_is_rejected,
        an_image_is_selected_by_digest_not_by_name,
        an_image_is_fetched_with_its_version_or_refused_by_name,
        a_failed_step_keeps_booted_and_fallback_and_can_be_retried,
        a_step_above_its_time_limit_is_cancelled_and_leaves_nothing_behind,
        a_step_of_twenty_minutes_succeeds,
    ]
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

fn append(words: &str) -> DesiredDeployment {
    DesiredDeployment {
        kernel_arguments: KernelArguments {
            append: list(words),
            ..KernelArguments::default()
        },
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

    /// Stages, unlocks, and boots into it.
    async fn boot_into(&self, wanted: &DesiredDeployment) -> Result<Deployments, String> {
        let id = self.stage(wanted).await?;
        self.unlock(&id).await?;
        self.host.reboot();
        let now = self.now().await?;
        is("the booted one", &now.booted.id, &id)?;
        Ok(now)
    }

    /// Asserts that the booted and the fallback deployment are the initial ones.
    async fn assert_initial_deployments(&self) -> Seen {
        let now = self.now().await?;
        is("the booted one", &now.booted, &self.first.booted)?;
        is("the fallback", &now.fallback, &self.first.fallback)
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

async fn a_staged_deployment_is_not_active_until_a_boot<H: Host>(s: Scene<H>) -> Seen {
    let id = s.stage(&append("nosmt")).await?;
    s.assert_initial_deployments().await?;
    let staged = s.now().await?.staged.ok_or("nothing is staged")?;
    is("its name", &staged.deployment.id, &id)?;
    is("its lock", &staged.locked, &true)
}

async fn a_locked_deployment_is_never_booted<H: Host>(s: Scene<H>) -> Seen {
    s.stage(&append("nosmt")).await?;
    s.host.reboot();
    s.assert_initial_deployments().await?;
    s.stage(&append("nosmt")).await?;
    s.host.power_cut();
    s.assert_initial_deployments().await?;
    // Some hosts keep the staged deployment and others lose it; but it never loses its lock.
    let locked = s.now().await?.staged.is_none_or(|staged| staged.locked);
    is("the lock after a power cut", &locked, &true)
}

async fn a_staged_deployment_and_its_lock_survive_the_agent<H: Host>(s: Scene<H>) -> Seen {
    let id = s.stage(&append("nosmt")).await?;
    let other = s.host.agent();
    let staged = other.observe().await.map_err(|e| error_text(&e))?.staged;
    let staged = staged.ok_or("nothing is staged")?;
    is("its lock", &staged.locked, &true)?;
    is("its name", &staged.deployment.id, &id)?;
    other.unlock(&id).await.map_err(|e| error_text(&e))?;
    s.host.reboot();
    is("the booted one", &s.now().await?.booted.id, &id)
}

async fn an_unlocked_deployment_is_booted_next_with_the_former_as_fallback<H: Host>(
    s: Scene<H>,
) -> Seen {
    let now = s.boot_into(&append("nosmt")).await?;
    is("what is staged", &now.staged, &None)?;
    let before = Some(s.first.booted.clone());
    is("the fallback", &now.fallback, &before)?;
    s.host.reboot();
    is("the next boot's", &s.now().await?.booted, &now.booted)
}

async fn a_power_cut_after_unlocking_boots_either_deployment_completely<H: Host>(
    s: Scene<H>,
) -> Seen {
    let id = s.stage(&append("nosmt")).await?;
    let staged = s.now().await?.staged.ok_or("nothing is staged")?;
    s.unlock(&id).await?;
    s.host.power_cut();
    let now = s.now().await?;
    match now.booted == staged.deployment {
        true => is("the fallback", &now.fallback, &Some(s.first.booted.clone())),
        false => s.assert_initial_deployments().await,
    }
}

async fn unlocking_is_idempotent<H: Host>(s: Scene<H>) -> Seen {
    let id = s.stage(&append("nosmt")).await?;
    s.unlock(&id).await?;
    s.unlock(&id).await?;
    s.host.reboot();
    is("the booted one", &s.now().await?.booted.id, &id)
}

async fn only_the_named_deployment_is_unlocked<H: Host>(s: Scene<H>) -> Seen {
    let old = s.stage(&append("nosmt")).await?;
    s.discard().await?;
    s.unlock(&old).await.err().ok_or("nothing was unlocked")?;
    let new = s.stage(&append("nosmt")).await?;
    let other = DeploymentId::new(format!("{new}-other"));
    let refused = s.agent.unlock(&other).await;
    refused.err().ok_or("another one was unlocked")?;
    s.host.reboot();
    s.assert_initial_deployments().await
}

async fn staging_the_same_deployment_again_changes_nothing<H: Host>(s: Scene<H>) -> Seen {
    let id = s.stage(&append("nosmt")).await?;
    let once = s.now().await?;
    is("its name", &s.stage(&append("nosmt")).await?, &id)?;
    is("what is there", &s.now().await?, &once)?;
    // As an agent that was killed between the unlocking and the reboot.
    s.unlock(&id).await?;
    is("its name", &s.stage(&append("nosmt")).await?, &id)?;
    s.host.reboot();
    is("the booted one", &s.now().await?.booted.id, &id)
}

async fn staging_another_deployment_replaces_the_staged_one<H: Host>(s: Scene<H>) -> Seen {
    s.stage(&append("nosmt")).await?;
    let now = s.boot_into(&append("audit=1")).await?;
    let mut expected = s.first.booted.kernel_arguments.clone();
    expected.append(&list("audit=1"));
    is("its arguments", &now.booted.kernel_arguments, &expected)?;
    let before = Some(s.first.booted.clone());
    is("the fallback", &now.fallback, &before)
}

async fn an_already_booted_deployment_is_not_staged<H: Host>(s: Scene<H>) -> Seen {
    let same = DesiredDeployment {
        image: s.first.booted.image.clone(),
        ..DesiredDeployment::default()
    };
    for before in [None, Some(append("nosmt"))] {
        if let Some(before) = before {
            s.stage(&before).await?;
        }
        let staged = s.agent.stage(&same, STEP_TIMEOUT).await;
        is(
            "what was staged",
            &staged.map_err(|e| error_text(&e))?,
            &None,
        )?;
        is("what is staged", &s.now().await?.staged, &None)?;
    }
    s.assert_initial_deployments().await
}

async fn discarding_removes_the_staged_deployment_and_keeps_the_booted_one<H: Host>(
    s: Scene<H>,
) -> Seen {
    for unlocked in [false, true] {
        let id = s.stage(&append("nosmt")).await?;
        if unlocked {
            s.unlock(&id).await?;
        }
        s.discard().await?;
        s.discard().await?;
        is("what is staged", &s.now().await?.staged, &None)?;
        s.assert_initial_deployments().await?;
        s.host.reboot();
        s.assert_initial_deployments().await?;
    }
    Ok(())
}

async fn appended_kernel_arguments_keep_order_duplicates_and_foreign_ones<H: Host>(
    s: Scene<H>,
) -> Seen {
    let words = "z=1 console=ttyS1 a=1 console=ttyS1 z=1";
    let now = s.boot_into(&append(words)).await?;
    let mut expected = s.first.booted.kernel_arguments.clone();
    expected.append(&list(words));
    is("its arguments", &now.booted.kernel_arguments, &expected)
}

async fn removing_kernel_arguments_keeps_equal_foreign_ones<H: Host>(s: Scene<H>) -> Seen {
    let theirs = s.first.booted.kernel_arguments.clone();
    let one = theirs.iter().next().ok_or("a host with arguments")?;
    let one = one.as_str();
    s.boot_into(&append(&format!("nosmt {one} a=1"))).await?;
    let leave = DesiredDeployment {
        kernel_arguments: KernelArguments {
            remove: list(&format!("{one} nosmt never=there")),
            append: list("b=1"),
        },
        ..DesiredDeployment::default()
    };
    let now = s.boot_into(&leave).await?;
    let mut expected = theirs;
    expected.append(&list("a=1 b=1"));
    is("its arguments", &now.booted.kernel_arguments, &expected)
}

async fn after_a_boot_the_booted_deployment_is_as_desired<H: Host>(s: Scene<H>) -> Seen {
    let wanted = DesiredDeployment {
        image: Some(image("new")),
        kernel_type: KernelType::Realtime,
        extensions: BTreeSet::from(["usbguard".to_owned()]),
        ..append("nosmt")
    };
    let booted = s.boot_into(&wanted).await?.booted;
    is("its image", &booted.image, &wanted.image)?;
    is("its version", &booted.version, &Some("2.0".to_owned()))?;
    is("its kernel", &booted.kernel_type, &wanted.kernel_type)?;
    is("its extensions", &booted.extensions, &wanted.extensions)
}

async fn a_repeated_rollback_boots_the_previous_deployment<H: Host>(s: Scene<H>) -> Seen {
    s.boot_into(&append("nosmt")).await?;
    let before = s.first.booted.clone();
    s.roll_back(&before.id).await?;
    s.roll_back(&before.id).await?;
    s.host.reboot();
    is("the booted one", &s.now().await?.booted, &before)?;
    // Once rolled back, repeating the request changes nothing.
    s.roll_back(&before.id).await?;
    s.host.reboot();
    is("the booted one", &s.now().await?.booted, &before)
}

async fn a_rollback_survives_a_power_cut<H: Host>(s: Scene<H>) -> Seen {
    let fallback = s.fallback()?;
    s.roll_back(&fallback.id).await?;
    s.host.power_cut();
    is("the booted one", &s.now().await?.booted, &fallback)
}

async fn a_reverted_rollback_boots_the_current_deployment<H: Host>(s: Scene<H>) -> Seen {
    s.roll_back(&s.fallback()?.id).await?;
    s.roll_back(&s.first.booted.id).await?;
    s.host.reboot();
    s.assert_initial_deployments().await?;
    s.roll_back(&s.first.booted.id).await?;
    s.host.reboot();
    s.assert_initial_deployments().await
}

async fn a_rollback_replaces_the_staged_deployment<H: Host>(s: Scene<H>) -> Seen {
    let id = s.stage(&append("nosmt")).await?;
    s.unlock(&id).await?;
    s.roll_back(&s.fallback()?.id).await?;
    s.host.reboot();
    is("the booted one", &s.now().await?.booted, &s.fallback()?)
}

async fn a_rollback_to_a_missing_deployment_is_rejected<H: Host>(s: Scene<H>) -> Seen {
    let nobody = DeploymentId::new(format!("{}-nobody", s.first.booted.id));
    let refused = s.agent.roll_back(&nobody).await;
    let error = refused.err().ok_or("it was accepted")?;
    is("whether a retry may succeed", &error.is_retryable(), &false)?;
    s.host.reboot();
    s.assert_initial_deployments().await
}

async fn an_image_is_selected_by_digest_not_by_name<H: Host>(s: Scene<H>) -> Seen {
    s.host.publishes(&image("newer"), "3.0");
    let wanted = DesiredDeployment {
        image: Some(image("new")),
        ..DesiredDeployment::default()
    };
    let booted = s.boot_into(&wanted).await?.booted;
    is("its image", &booted.image, &wanted.image)
}

async fn an_image_is_fetched_with_its_version_or_refused_by_name<H: Host>(s: Scene<H>) -> Seen {
    let fetched = s.agent.fetch(&image("new"), STEP_TIMEOUT).await;
    let version = fetched.map_err(|e| error_text(&e))?.version;
    is("its version", &version, &Some("2.0".to_owned()))?;
    let nowhere = s.agent.fetch(&image("nowhere"), STEP_TIMEOUT).await;
    let error = nowhere
        .err()
        .ok_or("fetched an image that does not exist")?;
    is("whether a retry may succeed", &error.is_retryable(), &false)?;
    s.host.fails_next(ProviderStep::Fetch);
    let down = s.agent.fetch(&image("new"), STEP_TIMEOUT).await;
    let error = down
        .err()
        .ok_or("fetched an image from an unreachable registry")?;
    is("whether a retry may succeed", &error.is_retryable(), &true)?;
    let named = error.to_string().contains(&image("new").to_string());
    is("whether the image is named", &named, &true)
}

async fn a_failed_step_keeps_booted_and_fallback_and_can_be_retried<H: Host>(s: Scene<H>) -> Seen {
    s.host.fails_next(ProviderStep::Stage);
    let failed = s.agent.stage(&append("nosmt"), STEP_TIMEOUT).await;
    failed.err().ok_or("staging reported success")?;
    s.assert_initial_deployments().await?;
    s.host.reboot();
    s.assert_initial_deployments().await?;
    let id = s.stage(&append("nosmt")).await?;
    s.host.fails_next(ProviderStep::Discard);
    s.discard()
        .await
        .err()
        .ok_or("discarding reported success")?;
    s.host.fails_next(ProviderStep::Unlock);
    s.unlock(&id)
        .await
        .err()
        .ok_or("unlocking reported success")?;
    let fallback = s.fallback()?.id;
    s.host.fails_next(ProviderStep::RollBack);
    let failed = s.roll_back(&fallback).await;
    failed.err().ok_or("rolling back reported success")?;
    s.assert_initial_deployments().await?;
    s.unlock(&id).await?;
    s.host.reboot();
    is("the booted one", &s.now().await?.booted.id, &id)
}

async fn a_step_above_its_time_limit_is_cancelled_and_leaves_nothing_behind<H: Host>(
    s: Scene<H>,
) -> Seen {
    s.host.takes(STEP_TIMEOUT * 2);
    let begun = tokio::time::Instant::now();
    let wanted = append("nosmt");
    let late = s.agent.stage(&wanted, STEP_TIMEOUT).await;
    let took = begun.elapsed();
    let error = late.err().ok_or("it was not cancelled")?;
    is("whether a retry may succeed", &error.is_retryable(), &true)?;
    let fetched = s.agent.fetch(&image("new"), STEP_TIMEOUT).await;
    fetched.err().ok_or("fetching was not cancelled")?;
    let on_time = took <= STEP_TIMEOUT + Duration::from_secs(60);
    is("whether it was cancelled in time", &on_time, &true)?;
    s.host.takes(Duration::ZERO);
    s.assert_initial_deployments().await?;
    s.host.reboot();
    s.assert_initial_deployments().await
}

async fn a_step_of_twenty_minutes_succeeds<H: Host>(s: Scene<H>) -> Seen {
    s.host.takes(Duration::from_secs(20 * 60));
    let fetched = s.agent.fetch(&image("new"), STEP_TIMEOUT).await;
    fetched.map_err(|e| error_text(&e))?;
    let id = s.stage(&append("nosmt")).await?;
    s.unlock(&id).await?;
    s.host.reboot();
    is("the booted one", &s.now().await?.booted.id, &id)
}
