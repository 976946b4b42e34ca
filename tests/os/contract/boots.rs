//! Facts about boots: which deployment they enter, and how it stays.

use machinist_update::os::{DeploymentId, OsProvider as _};

use super::{Host, Scene, Seen, append, error_text, is};

pub(super) async fn a_staged_deployment_is_not_active_until_a_boot<H: Host>(s: Scene<H>) -> Seen {
    let id = s.stage(&append("nosmt")).await?;
    s.assert_initial_deployments().await?;
    let staged = s.now().await?.staged.ok_or("nothing is staged")?;
    is("its name", &staged.deployment.id, &id)?;
    is("its lock", &staged.locked, &true)
}

pub(super) async fn a_locked_deployment_is_never_booted<H: Host>(s: Scene<H>) -> Seen {
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

pub(super) async fn a_staged_deployment_and_its_lock_survive_the_agent<H: Host>(
    s: Scene<H>,
) -> Seen {
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

pub(super) async fn an_unlocked_deployment_is_booted_next_with_the_former_as_fallback<H: Host>(
    s: Scene<H>,
) -> Seen {
    let now = s.try_boot(&append("nosmt")).await?;
    is("what is staged", &now.staged, &None)?;
    is("the next one", &now.next, &s.first.booted.id)?;
    is("the fallback", &now.fallback, &Some(s.first.booted.clone()))
}

pub(super) async fn a_deployment_that_is_not_kept_is_left_by_the_next_boot<H: Host>(
    s: Scene<H>,
) -> Seen {
    for power_cut in [false, true] {
        s.try_boot(&append("nosmt")).await?;
        match power_cut {
            true => s.host.power_cut(),
            false => s.host.reboot(),
        }
        s.assert_left().await?;
        s.host.reboot();
        s.assert_left().await?;
    }
    Ok(())
}

pub(super) async fn a_kept_deployment_is_booted_from_then_on<H: Host>(s: Scene<H>) -> Seen {
    let kept = s.boot_into(&append("nosmt")).await?;
    is("the next one", &kept.next, &kept.booted.id)?;
    s.host.power_cut();
    is("after a power cut", &s.now().await?, &kept)?;
    s.host.reboot();
    is("after a reboot", &s.now().await?, &kept)?;
    is(
        "the fallback",
        &kept.fallback,
        &Some(s.first.booted.clone()),
    )
}

pub(super) async fn keeping_is_idempotent<H: Host>(s: Scene<H>) -> Seen {
    // Also where nothing was tried.
    s.keep(&s.first.booted.id).await?;
    s.assert_left().await?;
    let kept = s.boot_into(&append("nosmt")).await?;
    s.keep(&kept.booted.id).await?;
    is("what is there", &s.now().await?, &kept)?;
    s.host.reboot();
    is("what is there", &s.now().await?, &kept)
}

pub(super) async fn only_the_booted_deployment_is_kept<H: Host>(s: Scene<H>) -> Seen {
    let now = s.try_boot(&append("nosmt")).await?;
    let other = DeploymentId::new(format!("{}-other", now.booted.id));
    let refused = s.agent.keep(&other).await;
    let error = refused.err().ok_or("another one was kept")?;
    is("whether a retry may succeed", &error.is_retryable(), &false)?;
    s.host.reboot();
    s.assert_left().await
}

pub(super) async fn a_deployment_that_never_reaches_userspace_falls_back_by_itself<H: Host>(
    s: Scene<H>,
) -> Seen {
    for power_cut in [false, true] {
        let id = s.stage(&append("init=/bin/false")).await?;
        s.unlock(&id).await?;
        s.host.panics(&id);
        s.host.reboot();
        s.assert_left().await?;
        match power_cut {
            true => s.host.power_cut(),
            false => s.host.reboot(),
        }
        s.assert_left().await?;
        s.discard().await?;
        is("what is staged", &s.now().await?.staged, &None)?;
        s.host.reboot();
        s.assert_left().await?;
    }
    // The failure does not concern the next deployment.
    let now = s.boot_into(&append("nosmt")).await?;
    is("the next one", &now.next, &now.booted.id)
}

pub(super) async fn a_deployment_that_is_locked_again_is_not_booted<H: Host>(s: Scene<H>) -> Seen {
    s.lock().await?;
    let id = s.stage(&append("nosmt")).await?;
    s.unlock(&id).await?;
    s.lock().await?;
    s.lock().await?;
    let staged = s.now().await?.staged.ok_or("nothing is staged")?;
    is("its lock", &staged.locked, &true)?;
    s.host.reboot();
    s.assert_left().await
}

pub(super) async fn a_power_cut_after_unlocking_boots_either_deployment_completely<H: Host>(
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

pub(super) async fn unlocking_is_idempotent<H: Host>(s: Scene<H>) -> Seen {
    let id = s.stage(&append("nosmt")).await?;
    s.unlock(&id).await?;
    s.unlock(&id).await?;
    s.host.reboot();
    is("the booted one", &s.now().await?.booted.id, &id)
}

pub(super) async fn only_the_named_deployment_is_unlocked<H: Host>(s: Scene<H>) -> Seen {
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

pub(super) async fn a_repeated_rollback_boots_the_previous_deployment<H: Host>(
    s: Scene<H>,
) -> Seen {
    s.boot_into(&append("nosmt")).await?;
    let before = s.first.booted.clone();
    s.roll_back(&before.id).await?;
    s.roll_back(&before.id).await?;
    s.host.reboot();
    is("the booted one", &s.now().await?.booted, &before)?;
    is("the next one", &s.now().await?.next, &before.id)?;
    // Once rolled back, repeating the request changes nothing.
    s.roll_back(&before.id).await?;
    s.host.reboot();
    is("the booted one", &s.now().await?.booted, &before)
}

pub(super) async fn a_rollback_survives_a_power_cut<H: Host>(s: Scene<H>) -> Seen {
    let fallback = s.fallback()?;
    s.roll_back(&fallback.id).await?;
    s.host.power_cut();
    is("the booted one", &s.now().await?.booted, &fallback)
}

pub(super) async fn a_reverted_rollback_boots_the_current_deployment<H: Host>(s: Scene<H>) -> Seen {
    s.roll_back(&s.fallback()?.id).await?;
    s.roll_back(&s.first.booted.id).await?;
    s.host.reboot();
    s.assert_initial_deployments().await?;
    s.roll_back(&s.first.booted.id).await?;
    s.host.reboot();
    s.assert_initial_deployments().await
}

pub(super) async fn a_rollback_replaces_the_staged_deployment<H: Host>(s: Scene<H>) -> Seen {
    let id = s.stage(&append("nosmt")).await?;
    s.unlock(&id).await?;
    s.roll_back(&s.fallback()?.id).await?;
    s.host.reboot();
    is("the booted one", &s.now().await?.booted, &s.fallback()?)
}

pub(super) async fn a_rollback_to_a_missing_deployment_is_rejected<H: Host>(s: Scene<H>) -> Seen {
    let nobody = DeploymentId::new(format!("{}-nobody", s.first.booted.id));
    let refused = s.agent.roll_back(&nobody).await;
    let error = refused.err().ok_or("it was accepted")?;
    is("whether a retry may succeed", &error.is_retryable(), &false)?;
    s.host.reboot();
    s.assert_initial_deployments().await
}
