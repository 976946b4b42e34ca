//! A newer config that cannot begin, or needs less, while the update to an earlier one is open.

use std::{
    fs,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use machinist_base::reason::Reason;
use machinist_testkit::{
    node::FakeNode,
    sandbox::{Sandbox, Written, conduct},
    scripted_services::Script,
};
use machinist_update::{
    journal::Outcome,
    phase::Phase,
    reconciler::{DesiredConfig, RebootPolicy, Reconciler, UpdateReport},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::update::{
    boots::{KUBELET, into_the_boot},
    harness::{DecliningHooks, Driver, boot, machine, tree},
    os_trials::with_arguments,
    reboots::{auto, once, one, reboots, start, two},
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

/// The retries of the newer config must not restart the limit of the outage.
#[tokio::test(start_paused = true)]
async fn an_obstructed_config_does_not_delay_a_reboot_during_an_outage_of_the_api_server() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    node.fails("reboot", u32::MAX, true);
    let wanted = one().desired();
    let mut driver = Driver::on_node(&sandbox.root(), &script, &node, wanted, conduct(true));
    let is_waiting =
        |report: &UpdateReport| report.phase == Phase::RebootPending && !report.blockers.is_empty();
    driver.until("waiting", is_waiting).await;
    driver.wants(&obstructed(&sandbox));
    let begun = tokio::time::Instant::now();
    script.until_reboot().await;
    // The limit, and the longest pause between two requests.
    assert!(begun.elapsed() <= Duration::from_secs(600) + LONGEST_DELAY);
    driver.stop().await;
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
    // For this, the command asks for a confirmation that a plan would ask for otherwise.
    let (journal, digest) = (sandbox.journal(), |config: &Written| {
        machinist_ignition::digest(&config.0)
    });
    let withdrawn = journal.withdrawn_by(digest(&nothing));
    assert_eq!(withdrawn.map(|open| open.to.name.as_str()), Some("one"));
    assert!(
        [one(), two()]
            .iter()
            .all(|config| journal.withdrawn_by(digest(config)).is_none())
    );
    let begun = tokio::time::Instant::now();
    tokio::select! {
        _ = once(&sandbox, &script, conduct(true), &nothing) => panic!("no reboot"),
        () = script.until_asked_times("reboot Logind", 2) => {}
    }
    assert!(begun.elapsed() < conduct(true).verify_timeout);
    let undone = &sandbox.journal().transactions[0];
    assert!(undone.reverted);
}

/// The plan of the refused config must not restart the attempts of the reboot.
#[tokio::test(start_paused = true)]
async fn a_refused_config_does_not_repeat_a_reboot_that_does_not_happen() {
    let (sandbox, script) = (machine(), Script::new());
    script.reboots_do_not_happen();
    let mut driver = auto(&sandbox, &script, &one());
    driver.patience = Duration::from_secs(3600);
    driver.until_failed().await;
    assert_eq!(reboots(&script), 3);
    for newer in [with_arguments("refused", &["a=1"]), obstructed(&sandbox)] {
        driver.wants(&newer);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let report = driver.reports.borrow().clone();
        let code = report.failure.as_ref().map(|failure| failure.code);
        assert_eq!(
            (report.phase, code),
            (Phase::Failed, Some(Reason::RebootTimeout))
        );
        assert_eq!(reboots(&script), 3);
    }
    remove_obstacle(&sandbox);
    driver.patience = LONGEST_DELAY;
    let placed = |_: &UpdateReport| sandbox.read("/etc/app/f").is_some();
    driver.until("in place", placed).await;
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_unhealthy_boot_is_repeated_and_rolled_back_beside_a_refused_config() {
    let (sandbox, script) = (machine(), Script::new());
    let before = tree(&sandbox);
    let driver = verifying(&sandbox, &script).await;
    let refused = with_arguments("refused", &["a=1"]);
    driver.wants(&refused);
    script.until_asked_times("reboot Logind", 2).await;
    driver.stop().await;
    boot(&sandbox, "boot-3");
    let driver = auto(&sandbox, &script, &refused);
    script.until_asked_times("reboot Logind", 3).await;
    driver.stop().await;
    boot(&sandbox, "boot-4");
    let mut driver = auto(&sandbox, &script, &refused);
    let is_rolled_back = |report: &UpdateReport| !report.updates.is_empty();
    driver.until("rolled back", is_rolled_back).await;
    driver.stop().await;
    assert_eq!(tree(&sandbox), before);
}

/// The source of a newer config becomes invalid, or returns to the earlier one.
#[tokio::test(start_paused = true)]
async fn an_abandoned_newer_config_causes_no_reboot() {
    for returns in [false, true] {
        let (sandbox, script) = (machine(), Script::new());
        let mut driver = verifying(&sandbox, &script).await;
        driver.wants(&obstructed(&sandbox));
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(driver.reports.borrow().phase, Phase::Verifying);
        match returns {
            true => driver.wants(&one()),
            false => {
                let refused = DesiredConfig::Refused(Arc::new(Vec::new()));
                driver.desired.send_replace(refused);
            }
        }
        script.unit_is(KUBELET, "active");
        let is_done = |report: &UpdateReport| {
            let last = report.updates.first();
            last.is_some_and(|update| update.outcome == Outcome::Done)
        };
        driver.until("done", is_done).await;
        driver.stop().await;
        assert_eq!(reboots(&script), 1);
    }
}

/// The user of `machinist apply` declines a config after the reboot into an earlier one.
#[tokio::test(start_paused = true)]
async fn a_plan_that_is_declined_is_asked_for_once() {
    let (sandbox, script) = (machine(), Script::new());
    let driver = verifying(&sandbox, &script).await;
    driver.stop().await;
    let hooks = DecliningHooks::default();
    let asked = hooks.asked();
    let (_desired, source) = watch::channel(two().desired());
    let services = Some(script.clone());
    let made = Reconciler::new(&sandbox.root(), services, hooks, conduct(true), source);
    let (reconciler, _) = made.unwrap();
    reconciler.run_once(CancellationToken::new()).await.unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    assert_eq!(reboots(&script), 1);
}

/// Without an agent, its refusal is reported once the open update has ended.
#[tokio::test(start_paused = true)]
async fn a_refused_config_is_reported_after_the_open_update_has_ended() {
    let (sandbox, script) = (machine(), Script::new());
    let driver = verifying(&sandbox, &script).await;
    driver.stop().await;
    script.unit_is(KUBELET, "active");
    let refused = with_arguments("refused", &["a=1"]);
    let report = once(&sandbox, &script, conduct(true), &refused).await;
    let failure = report.failure.as_ref().unwrap();
    assert_eq!(failure.code, Reason::NoProviderForKernelArguments);
    assert_eq!(report.updates[0].outcome, Outcome::Done);
}
