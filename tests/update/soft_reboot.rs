//! Soft reboots: userspace restarts, and the boot id stays the same.

use std::{sync::Arc, time::Duration};

use machinist_base::reason::Reason;
use machinist_plan::Policies;
use machinist_update::{
    boot_health, boot_id,
    journal::{Outcome, TransactionState},
    phase::Phase,
    reconciler::{RebootPolicy, ReconcilerOptions, UpdateReport},
    service_port::StartupState,
};

use crate::update::{
    boots::KUBELET,
    harness::{Driver, UNIT, boot, machine, tree},
    reboots::one,
};
use machinist_testkit::{
    sandbox::{Sandbox, Written, conduct, config, restarting},
    scripted_services::Script,
};

fn soft() -> ReconcilerOptions {
    ReconcilerOptions {
        policies: Arc::new(Policies::default().with_soft_reboots(true)),
        ..conduct(true)
    }
}

/// As the agent starts: it first asks systemd which userspace is running.
async fn start(
    sandbox: &Sandbox,
    script: &Script,
    config: &Written,
    how: ReconcilerOptions,
) -> Driver {
    boot_id::record_userspace(&sandbox.root(), script).await;
    with_unreachable_systemd(sandbox, script, config, how)
}

/// The same with an unreachable systemd.
fn with_unreachable_systemd(
    sandbox: &Sandbox,
    script: &Script,
    config: &Written,
    how: ReconcilerOptions,
) -> Driver {
    let mut driver = Driver::conducted(sandbox, script, config.desired(), how);
    driver.patience = Duration::from_secs(3600);
    driver
}

/// The reboots that were requested.
fn reboots(script: &Script) -> Vec<String> {
    let mut asked = script.asked();
    asked.retain(|asked| asked.contains("reboot"));
    asked
}

/// Up to the request of the soft reboot into this config, from userspace 100 of this boot.
async fn ordered(sandbox: &Sandbox, script: &Script, config: &Written) {
    script.userspace_is(100, None);
    let driver = start(sandbox, script, config, soft()).await;
    script.wait_for_requests("soft reboot Logind").await;
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_soft_reboot_is_requested_once_and_confirmed_by_count_or_start_time() {
    for (before, after) in [(None, None), (Some(3), Some(4)), (None, Some(1))] {
        let (sandbox, script) = (machine(), Script::new());
        script.userspace_is(100, before);
        let driver = start(&sandbox, &script, &one(), soft()).await;
        script.wait_for_requests("soft reboot Logind").await;
        driver.stop().await;
        let record = sandbox.journal().transactions[0].reboot.clone().unwrap();
        assert!(record.soft && record.attempts == 1, "{record:?}");
        script.userspace_is(200, after);
        boot_id::record_userspace(&sandbox.root(), &script).await;
        let now = boot_id::current(&sandbox.root()).unwrap().unwrap();
        // The guard has a boot to judge, and had none before.
        let journal = sandbox.journal();
        let old = journal.transactions[0].committed_boot.clone().unwrap();
        assert!(now.starts_with("boot-1+") && boot_health::is_due(&journal, &now));
        assert!(!boot_health::is_due(&journal, &old), "{old}");
        let mut driver = start(&sandbox, &script, &one(), soft()).await;
        let report = driver.until_on(&one()).await;
        assert_eq!(report.updates[0].outcome, Outcome::Done, "{before:?}");
        driver.stop().await;
        // Neither in the same userspace nor in the next.
        for started in [200, 300] {
            script.userspace_is(started, after.map(|count| count + 1));
            let mut driver = start(&sandbox, &script, &one(), soft()).await;
            driver.until_on(&one()).await;
            driver.stop().await;
        }
        assert_eq!(reboots(&script), ["soft reboot Logind"], "{before:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_unknown_userspace_is_queried_again_before_another_soft_reboot() {
    let (sandbox, script) = (machine(), Script::new());
    ordered(&sandbox, &script, &one()).await;
    script.userspace_is(200, None);
    let mut driver = with_unreachable_systemd(&sandbox, &script, &one(), soft());
    let report = driver.until_on(&one()).await;
    assert_eq!(report.updates[0].outcome, Outcome::Done);
    driver.stop().await;
    assert_eq!(reboots(&script), ["soft reboot Logind"]);
}

#[tokio::test(start_paused = true)]
async fn a_soft_reboot_that_does_not_happen_is_retried_three_ways_and_reported() {
    let (sandbox, script) = (machine(), Script::new());
    script.userspace_is(100, Some(0));
    script.reboots_do_not_happen();
    let mut driver = start(&sandbox, &script, &one(), soft()).await;
    let report = driver.until_failed().await;
    let failure = report.failure.as_ref().unwrap();
    assert_eq!(failure.code, Reason::RebootTimeout);
    let ways = ["Logind", "TransientUnit", "RebootTarget"];
    assert_eq!(
        reboots(&script),
        ways.map(|way| format!("soft reboot {way}"))
    );
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn after_an_unhealthy_soft_reboot_further_reboots_are_full() {
    let (sandbox, script) = (machine(), Script::new());
    let before = tree(&sandbox);
    ordered(&sandbox, &script, &one()).await;
    script.unit_is(KUBELET, "failed");
    script.userspace_is(200, None);
    let driver = start(&sandbox, &script, &one(), soft()).await;
    script.wait_for_requests("reboot Logind").await;
    driver.stop().await;
    assert_eq!(sandbox.journal().transactions[0].boots, 1);
    boot(&sandbox, "boot-2");
    script.userspace_is(90, None);
    // The update is rolled back, and the machine rebooted once more.
    let driver = start(&sandbox, &script, &one(), soft()).await;
    script.until_asked_times("reboot Logind", 2).await;
    driver.stop().await;
    boot(&sandbox, "boot-3");
    let mut driver = start(&sandbox, &script, &one(), soft()).await;
    let report = driver.until_failed().await;
    assert_eq!(report.updates[0].outcome, Outcome::RolledBack);
    let mut after = tree(&sandbox);
    after
        .0
        .retain(|path, _| path.as_str() != "/run/machinist.userspace");
    assert_eq!(after, before);
    driver.stop().await;
    assert_eq!(reboots(&script).len(), 3);
}

#[tokio::test(start_paused = true)]
async fn without_userspace_identity_a_soft_reboot_becomes_a_full_one() {
    let (sandbox, script) = (machine(), Script::new());
    let driver = start(&sandbox, &script, &one(), soft()).await;
    script.wait_for_requests("reboot Logind").await;
    driver.stop().await;
    assert_eq!(reboots(&script), ["reboot Logind"]);
}

#[tokio::test(start_paused = true)]
async fn with_run_nextroot_present_a_soft_reboot_becomes_a_full_one() {
    let (sandbox, script) = (machine(), Script::new());
    std::fs::create_dir_all(sandbox.path("/run/nextroot")).unwrap();
    script.userspace_is(100, None);
    let driver = start(&sandbox, &script, &one(), soft()).await;
    script.wait_for_requests("reboot Logind").await;
    driver.stop().await;
    assert_eq!(reboots(&script), ["reboot Logind"]);
}

#[tokio::test(start_paused = true)]
async fn a_foreign_soft_reboot_does_not_count_as_the_required_full_reboot() {
    let (sandbox, script) = (machine(), Script::new());
    script.userspace_is(100, None);
    let ask = ReconcilerOptions {
        reboot: RebootPolicy::Ask,
        ..conduct(true)
    };
    let pending = |report: &UpdateReport| report.phase == Phase::RebootPending;
    let mut driver = start(&sandbox, &script, &one(), ask.clone()).await;
    driver.until("pending", pending).await;
    driver.stop().await;
    script.userspace_is(200, None);
    let mut driver = start(&sandbox, &script, &one(), ask).await;
    let report = driver.until("still pending", pending).await;
    // The gate reports a pending reboot, not a boot that is being judged.
    assert_eq!(report.reboot_needed_in, report.boot);
    assert_eq!(report.boot.as_deref(), Some("boot-1+1"));
    driver.stop().await;
    let journal = sandbox.journal();
    assert_eq!(journal.transactions[0].boots, 0);
    assert!(!boot_health::is_due(&journal, "boot-1+1") && boot_health::is_due(&journal, "boot-2"));
    let driver = start(&sandbox, &script, &one(), conduct(true)).await;
    script.wait_for_requests("reboot Logind").await;
    driver.stop().await;
    boot(&sandbox, "boot-2");
    let mut driver = start(&sandbox, &script, &one(), conduct(true)).await;
    driver.until_on(&one()).await;
    driver.stop().await;
    assert_eq!(reboots(&script), ["reboot Logind"]);
}

#[tokio::test(start_paused = true)]
async fn a_foreign_soft_reboot_during_actions_completes_the_remaining_ones() {
    let (sandbox, script) = (machine(), Script::new());
    script.userspace_is(100, None);
    let restart = format!("Restart {UNIT}");
    script.hangs(&restart);
    let driver = start(&sandbox, &script, &one(), restarting(UNIT)).await;
    script.wait_for_requests(&restart).await;
    driver.stop().await;
    assert_eq!(
        sandbox.journal().transactions[0].mark,
        TransactionState::Committed
    );
    script.stop_failing(&restart);
    script.userspace_is(200, None);
    let mut driver = start(&sandbox, &script, &one(), restarting(UNIT)).await;
    let report = driver.until_on(&one()).await;
    assert_eq!(report.updates[0].outcome, Outcome::Done);
    driver.stop().await;
    assert_eq!(script.asked(), [restart]);
}

/// It is judged like every boot, and rolled back when it is unhealthy.
#[tokio::test(start_paused = true)]
async fn a_foreign_soft_reboot_after_commit_counts_as_booting_the_new_config() {
    let (sandbox, script) = (machine(), Script::new());
    let before = tree(&sandbox);
    script.userspace_is(100, None);
    let restart = format!("Restart {UNIT}");
    script.hangs(&restart);
    let driver = start(&sandbox, &script, &one(), restarting(UNIT)).await;
    script.wait_for_requests(&restart).await;
    driver.stop().await;
    script.userspace_is(200, None);
    script.is_at(StartupState::Maintenance);
    let driver = start(&sandbox, &script, &one(), restarting(UNIT)).await;
    script.wait_for_requests("reboot Logind").await;
    driver.stop().await;
    boot(&sandbox, "boot-2");
    let driver = start(&sandbox, &script, &one(), restarting(UNIT)).await;
    script.until_asked_times("reboot Logind", 2).await;
    let mut after = tree(&sandbox);
    after
        .0
        .retain(|path, _| path.as_str() != "/run/machinist.userspace");
    assert_eq!(after, before);
    driver.stop().await;
    boot(&sandbox, "boot-3");
    let nothing = config("nothing");
    let mut driver = start(&sandbox, &script, &nothing, restarting(UNIT)).await;
    driver.until_on(&nothing).await;
    driver.stop().await;
}
