//! Boots with a new config that are not as healthy as the one before.

use machinist_base::{digest::Digest, reason::Reason};
use machinist_update::{
    crash_recovery,
    journal::Outcome,
    phase::Phase,
    reconciler::{RebootPolicy, ReconcilerOptions},
    service_port::StartupState,
    store::StateStore,
};

use crate::update::harness::{Driver, boot, machine, tree};
use machinist_testkit::{
    sandbox::{Sandbox, Written, conduct, config, difference},
    scripted_services::Script,
};

pub(crate) const KUBELET: &str = "kubelet.service";

/// A file that no policy covers: the built-in policies require a reboot.
pub(crate) fn one() -> Written {
    config("one").file("/etc/found", "one\n", 0o644)
}

fn two() -> Written {
    config("two").file("/etc/other", "two\n", 0o644)
}

fn auto(sandbox: &Sandbox, script: &Script, config: &Written) -> Driver {
    let mut driver = Driver::conducted(sandbox, script, config.desired(), conduct(true));
    driver.patience = std::time::Duration::from_secs(3600);
    driver
}

fn digest(config: &Written) -> Option<Digest> {
    Some(machinist_ignition::digest(&config.0))
}

/// From the request of a reboot to the next boot.
pub(crate) async fn into_the_boot(sandbox: &Sandbox, script: &Script, id: &str, orders: usize) {
    let driver = auto(sandbox, script, &one());
    script.until_asked_times("reboot Logind", orders).await;
    driver.stop().await;
    boot(sandbox, id);
}

#[tokio::test(start_paused = true)]
async fn an_unhealthy_boot_is_retried_once_then_rolled_back_and_not_retried() {
    let (sandbox, script) = (machine(), Script::new());
    let before = tree(&sandbox);
    into_the_boot(&sandbox, &script, "boot-2", 1).await;
    script.unit_is(KUBELET, "activating");
    into_the_boot(&sandbox, &script, "boot-3", 2).await;
    assert_eq!(sandbox.read("/etc/found").unwrap(), "one\n");
    into_the_boot(&sandbox, &script, "boot-4", 3).await;
    assert_eq!(tree(&sandbox), before);
    // On the previous config again, whatever the kubelet does: health is no longer judged.
    let mut driver = auto(&sandbox, &script, &one());
    let report = driver.until_failed().await;
    let failure = report.failure.as_ref().unwrap();
    assert_eq!(failure.code, Reason::HealthRegressed);
    assert_eq!(
        failure.message,
        "the machine's health is worse than before: kubelet.service is activating, but was running before"
    );
    assert_eq!((failure.retryable, failure.digest), (false, digest(&one())));
    assert_eq!(report.updates[0].outcome, Outcome::RolledBack);
    assert_eq!(report.updates[0].reason, Some(Reason::HealthRegressed));
    assert!(!report.unverified);
    driver.stop().await;
    // It is not retried by the next start or the next boot; another config is applied.
    boot(&sandbox, "boot-5");
    let mut driver = auto(&sandbox, &script, &one());
    driver.until_failed().await;
    let asked = script.asked();
    driver.wants(&two());
    script.until_asked_times("reboot Logind", 4).await;
    driver.stop().await;
    let reboot = "reboot Logind".to_owned();
    assert_eq!(asked, vec![reboot; 3]);
}

#[tokio::test(start_paused = true)]
async fn a_boot_that_becomes_healthy_later_is_verified() {
    let (sandbox, script) = (machine(), Script::new());
    into_the_boot(&sandbox, &script, "boot-2", 1).await;
    script.is_at(StartupState::Starting);
    script.failed(&["late.service"]);
    let mut driver = auto(&sandbox, &script, &one());
    let said = |words: &'static str| {
        move |report: &machinist_update::reconciler::UpdateReport| {
            let failure = report.failure.as_ref();
            report.phase == Phase::Verifying && failure.is_some_and(|f| f.message == words)
        }
    };
    let both = "the boot is not finished, late.service failed";
    driver.until(both, said(both)).await;
    script.is_at(StartupState::Finished);
    let one_left = "late.service failed";
    driver.until(one_left, said(one_left)).await;
    script.failed(&[]);
    let report = driver.until_on(&one()).await;
    assert_eq!(report.failure, None);
    driver.stop().await;
    assert_eq!(script.asked(), ["reboot Logind"]);
}

#[tokio::test(start_paused = true)]
async fn a_restarting_service_is_unhealthy_even_if_active_at_each_check() {
    let (sandbox, script) = (machine(), Script::new());
    script.invoked(KUBELET, "0");
    into_the_boot(&sandbox, &script, "boot-2", 1).await;
    let settle = std::time::Duration::from_secs(2);
    let conduct = ReconcilerOptions {
        settle,
        boot_attempts: 1,
        ..conduct(true)
    };
    let mut driver = Driver::conducted(&sandbox, &script, one().desired(), conduct);
    driver.patience = std::time::Duration::from_secs(3600);
    let crashing = tokio::spawn({
        let script = script.clone();
        async move {
            for start in 1.. {
                script.invoked(KUBELET, &start.to_string());
                tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
            }
        }
    });
    script.until_asked_times("reboot Logind", 2).await;
    crashing.abort();
    let failure = driver.reports.borrow().failure.clone().unwrap();
    let words = "the machine's health is worse than before: kubelet.service keeps restarting";
    assert_eq!(failure.message, words);
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_reboot_health_checks_only_services_and_gateways() {
    let (sandbox, script) = (machine(), Script::new());
    let nothing = config("nothing");
    let restarts = || machinist_testkit::sandbox::restarting("x.service");
    let mut driver = Driver::conducted(&sandbox, &script, nothing.desired(), restarts());
    driver.patience = std::time::Duration::from_secs(3600);
    driver.until_on(&nothing).await;
    script.hangs("Restart x.service");
    driver.wants(&one());
    script.wait_for_requests("Restart x.service").await;
    // Both units fail while the unit is restarted; the one that is not a node service is ignored.
    script.failed(&["backup.service"]);
    script.unit_is("containerd.service", "inactive");
    script.stop_failing("Restart x.service");
    let report = driver.until_failed().await;
    let failure = report.failure.as_ref().unwrap();
    assert_eq!(failure.code, Reason::HealthRegressed);
    assert_eq!(
        failure.message,
        "the machine's health is worse than before: containerd.service is inactive, but was running before"
    );
    assert_eq!(report.updates[0].outcome, Outcome::RolledBack);
    script.unit_is("containerd.service", "active");
    driver.wants(&two());
    driver.until_on(&two()).await;
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn with_reboot_never_an_unhealthy_boot_is_rolled_back_without_rebooting() {
    let (sandbox, script) = (machine(), Script::new());
    let before = tree(&sandbox);
    into_the_boot(&sandbox, &script, "boot-2", 1).await;
    script.is_at(StartupState::Maintenance);
    let conduct = ReconcilerOptions {
        reboot: RebootPolicy::Never,
        ..conduct(true)
    };
    let mut driver = Driver::conducted(&sandbox, &script, one().desired(), conduct);
    driver.patience = std::time::Duration::from_secs(3600);
    driver
        .until("the files to be restored", |report| {
            report.phase == Phase::RebootPending
        })
        .await;
    let after = tree(&sandbox);
    assert!(after == before, "{}", difference(&before, &after));
    driver.stop().await;
    assert_eq!(script.asked(), ["reboot Logind"]);
}

#[tokio::test(start_paused = true)]
async fn another_config_ends_the_wait_for_an_unhealthy_boot() {
    let (sandbox, script) = (machine(), Script::new());
    let nothing = config("nothing");
    let mut driver = auto(&sandbox, &script, &nothing);
    driver.until_on(&nothing).await;
    let before = tree(&sandbox);
    driver.stop().await;
    into_the_boot(&sandbox, &script, "boot-2", 1).await;
    script.is_at(StartupState::Maintenance);
    let mut driver = auto(&sandbox, &script, &one());
    driver
        .until("judging", |report| {
            report.phase == Phase::Verifying && report.failure.is_some()
        })
        .await;
    // The update is withdrawn: one more boot, and nothing of it remains.
    driver.wants(&nothing);
    script.until_asked_times("reboot Logind", 2).await;
    driver.stop().await;
    assert_eq!(tree(&sandbox), before);
    boot(&sandbox, "boot-3");
    let mut driver = auto(&sandbox, &script, &nothing);
    let report = driver.until_on(&nothing).await;
    assert_eq!(report.updates[0].outcome, Outcome::Withdrawn);
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_boot_attempt_is_counted_once_and_keeps_the_health_baseline() {
    let (sandbox, script) = (machine(), Script::new());
    into_the_boot(&sandbox, &script, "boot-2", 1).await;
    assert_eq!(sandbox.journal().transactions[0].boots, 0);
    for _ in 0..3 {
        crash_recovery::recover(&StateStore::open(&sandbox.root()).unwrap()).unwrap();
    }
    assert_eq!(sandbox.journal().transactions[0].boots, 1);
    let known = sandbox.journal().machine_before.unwrap();
    assert!(known.up && known.running.contains(KUBELET));
    // A second config is requested while the first one's boot is unhealthy.
    script.unit_is(KUBELET, "failed");
    let mut driver = auto(&sandbox, &script, &one());
    driver
        .until("judging", |report| report.failure.is_some())
        .await;
    driver.wants(&two());
    script.until_asked_times("reboot Logind", 2).await;
    driver.stop().await;
    let journal = sandbox.journal();
    assert_eq!(journal.transactions.len(), 2);
    assert_eq!(journal.machine_before, Some(known));
}
