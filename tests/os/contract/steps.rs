//! Facts about single steps: staging, discarding, fetching, failures and time limits.

use std::{collections::BTreeSet, time::Duration};

use machinist_plan::{KernelType, OsPackages};
use machinist_update::os::{DesiredDeployment, KernelArgumentEdit, OsProvider as _, ProviderStep};

use super::{Host, STEP_TIMEOUT, Scene, Seen, append, error_text, image, is, list, of_image};

pub(super) async fn staging_the_same_deployment_again_changes_nothing<H: Host>(
    s: Scene<H>,
) -> Seen {
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

pub(super) async fn staging_another_deployment_replaces_the_staged_one<H: Host>(
    s: Scene<H>,
) -> Seen {
    s.stage(&append("nosmt")).await?;
    let now = s.boot_into(&append("audit=1")).await?;
    let mut expected = s.first.booted.kernel_arguments.clone();
    expected.append(&list("audit=1"));
    is("its arguments", &now.booted.kernel_arguments, &expected)?;
    let before = Some(s.first.booted.clone());
    is("the fallback", &now.fallback, &before)
}

pub(super) async fn appended_kernel_arguments_keep_order_duplicates_and_foreign_ones<H: Host>(
    s: Scene<H>,
) -> Seen {
    let words = "z=1 console=ttyS1 a=1 console=ttyS1 z=1";
    let now = s.boot_into(&append(words)).await?;
    let mut expected = s.first.booted.kernel_arguments.clone();
    expected.append(&list(words));
    is("its arguments", &now.booted.kernel_arguments, &expected)
}

pub(super) async fn removing_kernel_arguments_keeps_equal_foreign_ones<H: Host>(
    s: Scene<H>,
) -> Seen {
    let theirs = s.first.booted.kernel_arguments.clone();
    let one = theirs.iter().next().ok_or("a host with arguments")?;
    let one = one.as_str();
    s.boot_into(&append(&format!("nosmt {one} a=1"))).await?;
    let leave = DesiredDeployment {
        kernel_arguments: KernelArgumentEdit {
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

pub(super) async fn an_image_is_selected_by_digest_not_by_name<H: Host>(s: Scene<H>) -> Seen {
    s.host.publishes(&image("newer"), "3.0");
    let wanted = DesiredDeployment {
        image: Some(image("new")),
        ..DesiredDeployment::default()
    };
    let booted = s.boot_into(&wanted).await?.booted;
    is("its image", &booted.image, &wanted.image)
}

pub(super) async fn an_image_is_fetched_with_its_version_or_refused_by_name<H: Host>(
    s: Scene<H>,
) -> Seen {
    let stored = s.agent.fetched(&of_image(image("new"))).await;
    is(
        "what is stored",
        &stored.map_err(|e| error_text(&e))?,
        &None,
    )?;
    let fetched = s.agent.fetch(&of_image(image("new")), STEP_TIMEOUT).await;
    let fetched = fetched.map_err(|e| error_text(&e))?;
    is("its version", &fetched.version, &Some("2.0".to_owned()))?;
    let stored = s.host.agent().fetched(&of_image(image("new"))).await;
    is(
        "what is stored",
        &stored.map_err(|e| error_text(&e))?,
        &Some(fetched),
    )?;
    let nowhere = s
        .agent
        .fetch(&of_image(image("nowhere")), STEP_TIMEOUT)
        .await;
    let error = nowhere
        .err()
        .ok_or("fetched an image that does not exist")?;
    is("whether a retry may succeed", &error.is_retryable(), &false)?;
    s.host.publishes(&image("newer"), "3.0");
    s.host.fails_next(ProviderStep::Fetch);
    let down = s.agent.fetch(&of_image(image("newer")), STEP_TIMEOUT).await;
    let error = down
        .err()
        .ok_or("fetched an image from an unreachable registry")?;
    is("whether a retry may succeed", &error.is_retryable(), &true)?;
    let named = error.to_string().contains(&image("newer").to_string());
    is("whether the image is named", &named, &true)
}

pub(super) async fn a_step_above_its_time_limit_is_cancelled_and_leaves_nothing_behind<H: Host>(
    s: Scene<H>,
) -> Seen {
    s.host.takes(STEP_TIMEOUT * 2);
    let begun = tokio::time::Instant::now();
    let wanted = append("nosmt");
    let late = s.agent.stage(&wanted, STEP_TIMEOUT).await;
    let took = begun.elapsed();
    let error = late.err().ok_or("it was not cancelled")?;
    is("whether a retry may succeed", &error.is_retryable(), &true)?;
    let fetched = s.agent.fetch(&of_image(image("new")), STEP_TIMEOUT).await;
    fetched.err().ok_or("fetching was not cancelled")?;
    let on_time = took <= STEP_TIMEOUT + Duration::from_secs(60);
    is("whether it was cancelled in time", &on_time, &true)?;
    s.host.takes(Duration::ZERO);
    s.assert_initial_deployments().await?;
    s.host.reboot();
    s.assert_initial_deployments().await
}

pub(super) async fn a_step_of_twenty_minutes_succeeds<H: Host>(s: Scene<H>) -> Seen {
    s.host.takes(Duration::from_secs(20 * 60));
    let fetched = s.agent.fetch(&of_image(image("new")), STEP_TIMEOUT).await;
    fetched.map_err(|e| error_text(&e))?;
    let id = s.stage(&append("nosmt")).await?;
    s.unlock(&id).await?;
    s.host.reboot();
    is("the booted one", &s.now().await?.booted.id, &id)
}

pub(super) async fn an_already_booted_deployment_is_not_staged<H: Host>(s: Scene<H>) -> Seen {
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

pub(super) async fn discarding_removes_the_staged_deployment_and_keeps_the_booted_one<H: Host>(
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

pub(super) async fn after_a_boot_the_booted_deployment_is_as_desired<H: Host>(s: Scene<H>) -> Seen {
    let mut wanted = DesiredDeployment {
        image: Some(image("new")),
        ..append("nosmt")
    };
    if H::CHANGES_PACKAGES {
        wanted.packages = Some(OsPackages {
            kernel_type: KernelType::Realtime,
            extensions: BTreeSet::from(["usbguard".to_owned()]),
            repository: None,
            adopted: BTreeSet::new(),
        });
    }
    let booted = s.boot_into(&wanted).await?.booted;
    is("its image", &booted.image, &wanted.image)?;
    is("its version", &booted.version, &Some("2.0".to_owned()))?;
    let packages = wanted.packages.unwrap_or_default();
    is("its kernel", &booted.kernel_type, &packages.kernel_type)?;
    is("its extensions", &booted.extensions, &packages.extensions)
}

pub(super) async fn a_failed_step_keeps_booted_and_fallback_and_can_be_retried<H: Host>(
    s: Scene<H>,
) -> Seen {
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
    is("the booted one", &s.now().await?.booted.id, &id)?;
    s.host.fails_next(ProviderStep::Keep);
    s.keep(&id).await.err().ok_or("keeping reported success")?;
    is("the next one", &s.now().await?.next, &s.first.booted.id)?;
    s.keep(&id).await?;
    let other = s.stage(&append("a=1")).await?;
    s.unlock(&other).await?;
    s.host.fails_next(ProviderStep::Lock);
    s.lock().await.err().ok_or("locking reported success")?;
    s.lock().await?;
    s.host.reboot();
    is("the booted one", &s.now().await?.booted.id, &id)
}
