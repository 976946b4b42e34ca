//! A newer config that cannot begin, or needs less, while the update to an earlier one is open.

use std::{fs, time::Duration};

use machinist_base::reason::Reason;
use machinist_testkit::{
    node::FakeNode,
    sandbox::{Sandbox, Written, conduct},
    scripted_services::Script,
};
use machinist_update::{
    journal::Outcome,
    phase::Phase,
    reconciler::{RebootPolicy, UpdateReport},
};

use crate::update::{
    boots::{KUBELET, into_the_boot},
    harness::{Driver, boot, machine},
    os_trials::with_arguments,
    reboots::{auto, once, one, reboots, start},
};

/// Longer than the longest delay between two attempts.
const LONGEST_DELAY: Duration = Duration::from_secs(301);

/// The same config with a file below a path that is no directory.
fn obstructed(sandbox: &Sandbox) -> Written {
    sandbox.write("/etc/app", "a file\n");
    let mut newer = one().file("/etc/app/f", "ours\n", 0o644);
    newer.0.name = "newer".to_owned();
    newer
}

fn remove_obstacle(sandbox: &Sandbox) {
    fs::remove_file(sandbox.path("/etc/app")).unwrap();
}

fn is_obstructed(report: &UpdateReport) -> bool {
    let failure = report.failure.as_ref();
    failure.is_some_and(|failure| failure.code == Reason::ForeignContent && failure.retryable)
}

/// The machine has booted with the first config, and is not healthy yet.
async fn verifying(sandbox: &Sandbox, script: &Script) -> Driver {
    into_the_boot(sandbox, script, "boot-2", 1).await;
    script.unit_is(KUBELET, "activating");
    let mut driver = auto(sandbox, script, &one());
    driver
        .until("verifying", |report| report.phase == Phase::Verifying)
        .await;
    driver
}

async fn boots_into(sandbox: &Sandbox, script: &Script, newer: &Written) {
    boot(sandbox, "boot-2");
    let mut driver = auto(sandbox, script, newer);
    driver.until_on(newer).await;
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_config_causes_no_reboot_of_a_machine_that_has_booted_the_earlier_one() {
    let (sandbox, script) = (machine(), Script::new());
    let mut driver = verifying(&sandbox, &script).await;
    // This host has no provider for kernel arguments.
    driver.wants(&with_arguments("refused", &["a=1"]));
    let is_refused = |report: &UpdateReport| {
        let failure = report.failure.as_ref();
        failure.is_some_and(|failure| failure.code == Reason::NoProviderForKernelArguments)
    };
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(driver.reports.borrow().phase, Phase::Verifying);
    script.unit_is(KUBELET, "active");
    let report = driver.until("refused", is_refused).await;
    assert_eq!(report.updates[0].outcome, Outcome::Done);
    driver.stop().await;
    assert_eq!(reboots(&script), 1);
}

#[tokio::test(start_paused = true)]
async fn a_config_that_needs_no_reboot_does_not_repeat_the_one_before_it() {
    let (sandbox, script) = (machine(), Script::new());
    let mut driver = verifying(&sandbox, &script).await;
    let mut newer = one().file("/var/lib/kubelet/config.json", "{}", 0o600);
    newer.0.name = "newer".to_owned();
    driver.wants(&newer);
    driver
        .until("in place", |report| {
            report.phase == Phase::Verifying
                && sandbox.read("/var/lib/kubelet/config.json").is_some()
        })
        .await;
    script.unit_is(KUBELET, "active");
    driver.until_on(&newer).await;
    driver.stop().await;
    assert_eq!(reboots(&script), 1);
}

#[tokio::test(start_paused = true)]
async fn an_obstructed_config_is_retried_while_the_reboot_of_the_earlier_one_waits() {
    for confirms in [false, true] {
        let (sandbox, script) = (machine(), Script::new());
        let mut driver = start(&sandbox, &script, &one(), RebootPolicy::Ask);
        let pending = |report: &UpdateReport| report.phase == Phase::RebootPending;
        driver.until("pending", pending).await;
        let newer = obstructed(&sandbox);
        driver.wants(&newer);
        driver
            .until("obstructed", |report| {
                pending(report) && is_obstructed(report)
            })
            .await;
        remove_obstacle(&sandbox);
        let begun = tokio::time::Instant::now();
        driver.patience = LONGEST_DELAY;
        if confirms {
            driver.confirm();
        }
        let placed = || sandbox.read("/etc/app/f").is_some();
        driver
            .until("in place", |report| pending(report) && placed())
            .await;
        assert!(begun.elapsed() <= LONGEST_DELAY);
        driver.stop().await;
        boots_into(&sandbox, &script, &newer).await;
    }
}

/// The API server does not permit the reboot into a config that the Node no longer names.
#[tokio::test(start_paused = true)]
async fn an_obstructed_config_of_a_node_is_retried_while_the_reboot_of_the_earlier_one_waits() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    script.fails("reboot Logind", Reason::RebootInhibited, true);
    let wanted = one().desired();
    let mut driver = Driver::on_node(&sandbox.root(), &script, &node, wanted, conduct(true));
    let inhibited =
        |report: &UpdateReport| report.phase == Phase::RebootPending && report.failure.is_some();
    driver.until("inhibited", inhibited).await;
    let newer = obstructed(&sandbox);
    node.desires("newer");
    driver.wants(&newer);
    driver.until("obstructed", is_obstructed).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(is_obstructed(&driver.reports.borrow()));
    let before = reboots(&script);
    remove_obstacle(&sandbox);
    script.stop_failing("reboot Logind");
    script.until_asked_times("reboot Logind", before + 1).await;
    assert!(sandbox.read("/etc/app/f").is_some());
    driver.stop().await;
    boots_into(&sandbox, &script, &newer).await;
}

/// As with `machinist rollback` while no agent runs.
#[tokio::test(start_paused = true)]
async fn a_rollback_without_an_agent_does_not_wait_for_an_unhealthy_boot() {
    let (sandbox, script) = (machine(), Script::new());
    let nothing = machinist_testkit::sandbox::config("nothing");
    let mut driver = auto(&sandbox, &script, &nothing);
    driver.until_on(&nothing).await;
    driver.stop().await;
    let driver = verifying(&sandbox, &script).await;
    driver.stop().await;
    let begun = tokio::time::Instant::now();
    tokio::select! {
        _ = once(&sandbox, &script, conduct(true), &nothing) => panic!("no reboot"),
        () = script.until_asked_times("reboot Logind", 2) => {}
    }
    assert!(begun.elapsed() < conduct(true).verify_timeout);
    let undone = &sandbox.journal().transactions[0];
    assert!(undone.reverted);
}
