//! Updates on a node: its pods are evicted before the first change and return after the last.

use std::{sync::Arc, time::Duration};

use machinist_base::reason::Reason;
use machinist_ignition::Refusal;
use machinist_update::{
    journal::Outcome,
    node_port::{Blocker, DeviceUsers},
    phase::Phase,
    reconciler::{DesiredConfig, RebootPolicy, ReconcilerOptions, UpdateReport},
};

use crate::update::{
    harness::{Driver, UNIT, boot, machine, tree},
    reboots::{one, two},
};
use machinist_testkit::{
    node::{FakeNode, unevictable_pod},
    sandbox::{Sandbox, Written, conduct, config, restarting},
    scripted_services::Script,
};

fn start(sandbox: &Sandbox, script: &Script, node: &FakeNode, config: &Written) -> Driver {
    let conduct = conduct(true);
    Driver::on_node(&sandbox.root(), script, node, config.desired(), conduct)
}

/// The node in the boot after the reboot.
async fn next_boot(
    driver: Driver,
    sandbox: &Sandbox,
    script: &Script,
    node: &FakeNode,
    config: &Written,
) -> Driver {
    script.until_reboot().await;
    driver.stop().await;
    boot(sandbox, "boot-2");
    start(sandbox, script, node, config)
}

fn cordoned(sandbox: &Sandbox) -> bool {
    sandbox.journal().cordon.is_some()
}

#[tokio::test(start_paused = true)]
async fn an_update_cordons_drains_writes_reboots_and_uncordons_in_this_order() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    node.blocks(true);
    let before = tree(&sandbox);
    let mut driver = start(&sandbox, &script, &node, &one());
    let report = driver
        .until("the pod that blocks", |report| !report.blockers.is_empty())
        .await;
    assert_eq!(report.phase, Phase::Draining);
    assert_eq!(report.blockers, [unevictable_pod()]);
    assert!(report.cordoned.is_some());
    assert_eq!(node.log(), ["cordon one"]);
    assert_eq!(
        tree(&sandbox),
        before,
        "no file changed before the drain has ended"
    );
    assert_eq!(script.asked(), [""; 0]);
    node.blocks(false);
    let mut driver = next_boot(driver, &sandbox, &script, &node, &one()).await;
    assert!(node.is_cordoned(), "the boot is not verified yet");
    let report = driver.until_on(&one()).await;
    assert_eq!(node.log(), ["cordon one", "drain", "uncordon one"]);
    assert_eq!(
        node.device_users_history(),
        [
            DeviceUsers::Disabled,
            DeviceUsers::Quiesced,
            DeviceUsers::Open
        ]
    );
    assert!(report.cordoned.is_none() && report.blockers.is_empty());
    assert!(!cordoned(&sandbox));
    let phases: Vec<_> = report.updates[0]
        .phases
        .iter()
        .map(|p| p.name.as_str())
        .collect();
    let expected = [
        "Cordoned",
        "DisablingDevices",
        "Draining",
        "Drained",
        "Staging",
        "Committing",
        "RunningActions",
        "RebootPending",
        "Booted",
        "Verifying",
        "Uncordoning",
    ];
    assert_eq!(phases, expected);
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_change_that_needs_no_drain_never_cordons() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    let (root, desired) = (sandbox.root(), one().desired());
    let mut driver = Driver::on_node(&root, &script, &node, desired, restarting(UNIT));
    driver.until_on(&one()).await;
    assert_eq!(node.log(), [""; 0]);
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_config_withdrawn_during_the_drain_uncordons_the_node_unchanged() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    let nothing = config("nothing");
    let mut driver = start(&sandbox, &script, &node, &nothing);
    driver.until_on(&nothing).await;
    node.blocks(true);
    let before = tree(&sandbox);
    driver.wants(&one());
    driver
        .until("draining", |report| report.phase == Phase::Draining)
        .await;
    driver.wants(&nothing);
    driver.until_on(&nothing).await;
    assert_eq!(node.log(), ["cordon one", "uncordon nothing"]);
    assert_eq!(tree(&sandbox), before);
    assert!(!cordoned(&sandbox));
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_missing_config_named_during_a_drain_is_reported_while_desired() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    node.blocks(true);
    let mut driver = start(&sandbox, &script, &node, &one());
    driver
        .until("draining", |report| !report.blockers.is_empty())
        .await;
    let refusal = Refusal::new(Reason::ConfigNotFound, "MachineConfig nosuch not found");
    let refused = DesiredConfig::Refused(Arc::new(vec![refusal]));
    driver.desired.send_replace(refused);
    let message = |report: &UpdateReport| {
        report.blocking_failure().map(|it| it.code) == Some(Reason::ConfigNotFound)
    };
    let report = driver.until("reported", message).await;
    assert_eq!(
        (report.phase, report.failure.clone()),
        (Phase::Draining, None)
    );
    driver.wants(&one());
    let content = |report: &UpdateReport| report.blocking_failure().is_none();
    let report = driver.until("nothing to report", content).await;
    assert_eq!(report.phase, Phase::Draining);
    node.blocks(false);
    let mut driver = next_boot(driver, &sandbox, &script, &node, &one()).await;
    driver.until_on(&one()).await;
    assert_eq!(node.log(), ["cordon one", "drain", "uncordon one"]);
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn another_config_during_a_drain_is_planned_and_the_drain_continues() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    node.blocks(true);
    let mut driver = start(&sandbox, &script, &node, &one());
    driver
        .until("draining", |report| !report.blockers.is_empty())
        .await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    driver.wants(&two());
    let wanted = |report: &machinist_update::reconciler::UpdateReport| {
        report.phase == Phase::Draining && node.drains().len() == 2
    };
    driver.until("the drain for the other", wanted).await;
    assert!(
        node.drains()[1] >= Duration::from_secs(100),
        "{:?}",
        node.drains()
    );
    node.blocks(false);
    let mut driver = next_boot(driver, &sandbox, &script, &node, &two()).await;
    driver.until_on(&two()).await;
    assert_eq!(node.log(), ["cordon one", "drain", "uncordon two"]);
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn drain_duration_is_counted_across_agent_restarts() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    node.blocks(true);
    for life in 0..3 {
        let mut driver = start(&sandbox, &script, &node, &one());
        driver
            .until("draining", |report| !report.blockers.is_empty())
            .await;
        tokio::time::sleep(Duration::from_secs(300)).await;
        driver.stop().await;
        let spent = sandbox.journal().cordon.unwrap().drained_for;
        assert!(
            (300 * (life + 1) - 5..=300 * (life + 1) + 5).contains(&spent),
            "{spent}"
        );
    }
    assert_eq!(node.log(), ["cordon one"], "no restart cordons again");
}

#[tokio::test(start_paused = true)]
async fn an_agent_start_without_desired_config_reports_the_journals_drain() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    node.blocks(true);
    let mut driver = start(&sandbox, &script, &node, &one());
    let draining = |report: &UpdateReport| !report.blockers.is_empty();
    let begun = driver.until("draining", draining).await.since;
    driver.stop().await;
    let (root, unknown) = (sandbox.root(), DesiredConfig::Unknown);
    let mut driver = Driver::on_node(&root, &script, &node, unknown, conduct(true));
    let report = driver
        .until("the cordon of the journal", |report| {
            report.cordoned.is_some()
        })
        .await;
    assert_eq!((report.phase, report.since), (Phase::Draining, begun));
    // The other config was only planned, not begun: the desired config decides.
    driver.wants(&one());
    driver.until("draining on", draining).await;
    node.blocks(false);
    script.until_reboot().await;
    assert_eq!(node.log(), ["cordon one", "drain"]);
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_api_server_is_waited_for_in_every_step() {
    for request in ["cordon", "lend", "permit", "uncordon"] {
        let (sandbox, script) = (machine(), Script::new());
        let node = FakeNode::of(&sandbox);
        // With the back-off between them, more than an hour; a reboot alone does not wait so long.
        let times = if request == "permit" { 3 } else { 20 };
        node.fails(request, times, true);
        let mut driver = start(&sandbox, &script, &node, &one());
        driver.patience = Duration::from_secs(24 * 3600);
        let message = |report: &machinist_update::reconciler::UpdateReport| {
            report
                .blockers
                .iter()
                .any(|blocker| blocker.reason == Reason::ManagerUnreachable)
        };
        if request != "uncordon" {
            driver.until("the blocker", message).await;
        }
        let mut driver = next_boot(driver, &sandbox, &script, &node, &one()).await;
        driver.patience = Duration::from_secs(24 * 3600);
        driver.until_on(&one()).await;
        assert_eq!(
            node.log(),
            ["cordon one", "drain", "uncordon one"],
            "{request}"
        );
        driver.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn pods_that_returned_before_the_first_change_are_drained_again() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    node.refills(1);
    let before = tree(&sandbox);
    let mut driver = start(&sandbox, &script, &node, &one());
    driver
        .until("the new pods", |report| !report.blockers.is_empty())
        .await;
    assert_eq!(tree(&sandbox), before, "no file changed while they exist");
    node.blocks(false);
    let mut driver = next_boot(driver, &sandbox, &script, &node, &one()).await;
    driver.until_on(&one()).await;
    let expected = [
        "cordon one",
        "drain",
        "uncordon by another client",
        "cordon one",
        "drain",
        "uncordon one",
    ];
    assert_eq!(node.log(), expected);
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_reboot_waits_for_the_api_server_except_on_control_plane_nodes() {
    for control_plane in [false, true] {
        let (sandbox, script) = (machine(), Script::new());
        let node = FakeNode::of(&sandbox);
        if control_plane {
            node.is_control_plane_node();
        }
        let mut driver = start(&sandbox, &script, &node, &one());
        driver.patience = Duration::from_secs(24 * 3600);
        node.fails("reboot", u32::MAX, true);
        match control_plane {
            false => script.until_reboot().await,
            true => {
                driver
                    .until("rolled back", |report| {
                        report.phase == Phase::Idle || report.phase == Phase::Failed
                    })
                    .await;
                let asked = script.asked();
                assert!(
                    !asked.iter().any(|asked| asked.starts_with("reboot")),
                    "{asked:?}"
                );
            }
        }
        driver.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_fully_rolled_back_update_uncordons_the_node_and_is_reported() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    let before = tree(&sandbox);
    let mut driver = start(&sandbox, &script, &node, &one());
    driver
        .until("the reboot", |report| report.phase == Phase::RebootPending)
        .await;
    script.until_reboot().await;
    driver.stop().await;
    // It never becomes healthy: after `update.bootAttempts` boots it is rolled back, with one more
    // boot.
    boot(&sandbox, "boot-2");
    script.failed(&["late.service"]);
    for (orders, next) in [(2, "boot-3"), (3, "boot-4")] {
        let driver = start(&sandbox, &script, &node, &one());
        script.until_asked_times("reboot Logind", orders).await;
        assert!(node.is_cordoned());
        driver.stop().await;
        boot(&sandbox, next);
    }
    let mut driver = start(&sandbox, &script, &node, &one());
    let report = driver.until_failed().await;
    assert_eq!(report.updates[0].outcome, Outcome::RolledBack);
    assert_eq!(tree(&sandbox), before);
    assert!(!node.is_cordoned() && !cordoned(&sandbox));
    assert_eq!(node.log().len(), 3, "{:?}", node.log());
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_half_done_update_keeps_the_node_cordoned_and_is_resumed() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    script.reboots_do_not_happen();
    let mut driver = start(&sandbox, &script, &node, &one());
    driver.patience = Duration::from_secs(3600);
    let report = driver.until_failed().await;
    let failure = report.failure.as_ref().unwrap();
    assert_eq!(
        (failure.code, failure.retryable),
        (Reason::RebootTimeout, false)
    );
    driver.stop().await;
    // Neither the failure nor an agent restart uncordons it.
    let driver = start(&sandbox, &script, &node, &one());
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(node.log(), ["cordon one", "drain"]);
    driver.stop().await;
    // An operator reboots it.
    boot(&sandbox, "boot-2");
    let mut driver = start(&sandbox, &script, &node, &one());
    driver.until_on(&one()).await;
    assert_eq!(node.log(), ["cordon one", "drain", "uncordon one"]);
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_start_after_verification_uncordons_without_desired_config() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    let driver = start(&sandbox, &script, &node, &one());
    script.until_reboot().await;
    driver.stop().await;
    boot(&sandbox, "boot-2");
    node.fails("uncordon", u32::MAX, true);
    let mut driver = start(&sandbox, &script, &node, &one());
    driver
        .until("uncordoning", |report| report.phase == Phase::Uncordoning)
        .await;
    driver.stop().await;
    assert!(node.is_cordoned());
    node.fails("uncordon", 0, true);
    let unknown = machinist_update::reconciler::DesiredConfig::Unknown;
    let root = sandbox.root();
    let mut driver = Driver::on_node(&root, &script, &node, unknown, conduct(true));
    driver
        .until("the node released", |report| report.cordoned.is_none())
        .await;
    assert!(!node.is_cordoned());
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_waiting_for_a_manual_reboot_stays_cordoned() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    let ask = machinist_update::reconciler::ReconcilerOptions {
        reboot: RebootPolicy::Ask,
        ..conduct(true)
    };
    let (root, desired) = (sandbox.root(), one().desired());
    let mut driver = Driver::on_node(&root, &script, &node, desired, ask);
    driver
        .until("the reboot", |report| report.phase == Phase::RebootPending)
        .await;
    assert!(node.is_cordoned());
    driver.stop().await;
}

/// A maintenance window half a day from now, for an hour: closed, whenever this runs.
pub(crate) fn closed() -> ReconcilerOptions {
    let later = jiff::Zoned::now().with_time_zone(jiff::tz::TimeZone::UTC);
    let later = later
        .time()
        .wrapping_add(jiff::SignedDuration::from_hours(12));
    let mut closed = conduct(true);
    closed.windows.windows = vec![machinist_base::maintenance_window::MaintenanceWindow {
        days: Vec::new(),
        start: later,
        duration: Duration::from_secs(3600),
    }];
    closed
}

#[tokio::test(start_paused = true)]
async fn a_maintenance_window_closing_during_a_drain_does_not_stop_the_update() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    node.blocks(true);
    let mut driver = start(&sandbox, &script, &node, &one());
    driver
        .until("draining", |report| !report.blockers.is_empty())
        .await;
    driver.stop().await;
    let (root, desired) = (sandbox.root(), one().desired());
    let mut driver = Driver::on_node(&root, &script, &node, desired, closed());
    driver
        .until("draining on", |report| !report.blockers.is_empty())
        .await;
    node.blocks(false);
    script.until_reboot().await;
    assert_eq!(node.log(), ["cordon one", "drain"]);
    driver.stop().await;
}

/// As `upgradeAt` of an UpgradeConfig: 12:00 has not been reached at 11:50, and has been at 12:15.
#[tokio::test(start_paused = true)]
async fn an_update_waits_for_the_clusters_upgrade_time_and_rereads_it() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    let minutes = |count| jiff::Timestamp::now() + jiff::SignedDuration::from_mins(count);
    node.not_before(minutes(10));
    let mut driver = start(&sandbox, &script, &node, &one());
    let waits = |report: &UpdateReport| report.opens.is_some();
    let report = driver.until("waiting", waits).await;
    assert!(report.opens_for_the_cluster && report.phase == Phase::Waiting);
    assert!(node.log().is_empty(), "{:?}", node.log());
    node.not_before(minutes(-15));
    script.until_reboot().await;
    assert_eq!(node.log(), ["cordon one", "drain"]);
    driver.stop().await;
}

/// As while the images of PinnedImageSets are pulled.
#[tokio::test(start_paused = true)]
async fn an_update_waits_before_the_cordon_while_the_node_asks_for_it() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    let delay = Blocker {
        reason: Reason::PullingImages,
        ..unevictable_pod()
    };
    node.delays_cordon(Some(delay.clone()));
    let mut driver = start(&sandbox, &script, &node, &one());
    let blocked = |report: &UpdateReport| !report.blockers.is_empty();
    let report = driver.until("the delay", blocked).await;
    assert_eq!(report.blockers, [delay]);
    assert_eq!(report.phase, Phase::Waiting);
    assert!(node.log().is_empty(), "{:?}", node.log());
    node.delays_cordon(None);
    script.until_reboot().await;
    assert_eq!(node.log(), ["cordon one", "drain"]);
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn another_config_ends_the_wait_before_the_cordon() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    node.delays_cordon(Some(unevictable_pod()));
    let nothing = config("nothing");
    let mut driver = start(&sandbox, &script, &node, &nothing);
    driver.until_on(&nothing).await;
    driver.wants(&one());
    let blocked = |report: &UpdateReport| !report.blockers.is_empty();
    driver.until("the delay", blocked).await;
    driver.wants(&nothing);
    let report = driver.until_on(&nothing).await;
    assert!(report.blockers.is_empty());
    assert!(node.log().is_empty(), "{:?}", node.log());
    driver.stop().await;
}
