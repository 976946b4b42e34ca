//! Devices during an update: no process uses them when the first change is made, and units that
//! were stopped for that are started again.

use std::time::Duration;

use machinist_base::reason::Reason;
use machinist_update::{journal::Outcome, node_port::DeviceUsers, phase::Phase};

use crate::update::{
    harness::{Driver, UNIT, boot, machine, tree},
    reboots::one,
};
use machinist_testkit::{
    node::FakeNode,
    sandbox::{Sandbox, conduct, draining},
    scripted_services::Script,
};

fn start(sandbox: &Sandbox, script: &Script, node: &FakeNode) -> Driver {
    Driver::on_node(
        &sandbox.root(),
        script,
        node,
        one().desired(),
        conduct(true),
    )
}

async fn next_boot(driver: Driver, sandbox: &Sandbox, script: &Script, node: &FakeNode) -> Driver {
    script.until_reboot().await;
    driver.stop().await;
    boot(sandbox, "boot-2");
    start(sandbox, script, node)
}

#[tokio::test(start_paused = true)]
async fn an_update_waits_for_device_holders_and_names_them() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    node.held_by(&["reads"]);
    node.stops(&["monitor.service"]);
    let before = tree(&sandbox);
    let mut driver = start(&sandbox, &script, &node);
    let report = driver
        .until("the holder", |report| !report.blockers.is_empty())
        .await;
    assert_eq!(report.phase, Phase::Drained);
    assert_eq!(report.blockers[0].reason, Reason::DeviceHeld);
    assert_eq!(report.blockers[0].name, "reads");
    assert_eq!(report.device_users, DeviceUsers::Disabled);
    let devices_before = sandbox.journal().cordon.unwrap().devices_before.unwrap();
    assert_eq!(
        devices_before.holders.unwrap()["lab/reads/main"]["acme.dev/x"],
        1
    );
    assert_eq!(script.asked(), [""; 0], "the unit runs on until then");
    assert_eq!(tree(&sandbox), before);
    node.held_by(&[]);
    script.until_reboot().await;
    assert_eq!(script.asked()[0], "Stop monitor.service");
    assert_eq!(
        node.device_users_history(),
        [DeviceUsers::Disabled, DeviceUsers::Quiesced]
    );
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn exactly_the_stopped_units_are_started_after_the_reboot_before_uncordon() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    node.stops(&["enabled.service", "idle.service", "monitor.service"]);
    script.unit_is("idle.service", "inactive");
    let driver = start(&sandbox, &script, &node);
    script.until_reboot().await;
    let cordon = sandbox.journal().cordon.unwrap();
    assert_eq!(cordon.device_users, DeviceUsers::Quiesced);
    assert_eq!(cordon.stopped, ["enabled.service", "monitor.service"]);
    let since = || sandbox.journal().devices_before.unwrap().1;
    let before = since();
    // The boot starts enabled units.
    script.unit_is("enabled.service", "active");
    node.fails("uncordon", 1000, true);
    let mut driver = next_boot(driver, &sandbox, &script, &node).await;
    driver
        .until("uncordoning", |report| report.phase == Phase::Uncordoning)
        .await;
    let device_users = [
        DeviceUsers::Disabled,
        DeviceUsers::Quiesced,
        DeviceUsers::Open,
    ];
    assert_eq!(
        node.device_users_history(),
        device_users,
        "before the uncordon"
    );
    assert!(
        script
            .asked()
            .contains(&"Restart monitor.service".to_owned())
    );
    assert!(since() > before, "they are awaited from then on");
    node.fails("uncordon", 1, true);
    driver.until_on(&one()).await;
    let asked = script.asked();
    let starts: Vec<_> = asked
        .iter()
        .filter(|it| it.starts_with("Restart"))
        .collect();
    assert_eq!(
        starts,
        ["Restart monitor.service"],
        "once, and nothing else"
    );
    assert_eq!(node.device_users_history(), device_users);
    assert!(sandbox.journal().cordon.is_none());
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_reboot_devices_are_reenabled_before_verification() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    node.stops(&["monitor.service"]);
    node.fails("uncordon", 1000, true);
    let (root, desired) = (sandbox.root(), one().desired());
    let mut driver = Driver::on_node(&root, &script, &node, desired, draining(UNIT));
    driver
        .until("uncordoning", |report| report.phase == Phase::Uncordoning)
        .await;
    let asked = script.asked();
    let at = |what: &str| asked.iter().position(|it| it == what).unwrap();
    assert!(
        at("Stop monitor.service") < at("Restart x.service"),
        "{asked:?}"
    );
    assert!(
        at("Restart x.service") < at("Restart monitor.service"),
        "{asked:?}"
    );
    let device_users = [
        DeviceUsers::Disabled,
        DeviceUsers::Quiesced,
        DeviceUsers::Open,
    ];
    assert_eq!(
        node.device_users_history(),
        device_users,
        "not a second time"
    );
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_rollback_reenables_device_allocation() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    node.stops(&["monitor.service"]);
    script.fails("Restart x.service", Reason::JobFailed, false);
    let (root, desired) = (sandbox.root(), one().desired());
    let mut driver = Driver::on_node(&root, &script, &node, desired, draining(UNIT));
    let report = driver
        .until("the node released", |report| {
            report.phase == Phase::Failed && report.cordoned.is_none()
        })
        .await;
    assert_eq!(report.updates[0].outcome, Outcome::RolledBack);
    assert_eq!(node.device_users_history().last(), Some(&DeviceUsers::Open));
    assert_eq!(script.asked().last().unwrap(), "Restart monitor.service");
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_unit_that_does_not_stop_fails_the_update_before_any_change() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    node.stops(&["a.service", "monitor.service"]);
    script.fails("Stop monitor.service", Reason::JobTimeout, false);
    let before = tree(&sandbox);
    let mut driver = start(&sandbox, &script, &node);
    let report = driver
        .until("the node released", |report| {
            report.phase == Phase::Failed && report.cordoned.is_none()
        })
        .await;
    let failure = report.failure.clone().unwrap();
    assert_eq!(failure.code, Reason::JobTimeout);
    assert!(
        failure.message.contains("monitor.service"),
        "{}",
        failure.message
    );
    assert_eq!(tree(&sandbox), before);
    assert_eq!(script.asked().last().unwrap(), "Restart a.service");
    assert_eq!(
        node.device_users_history(),
        [DeviceUsers::Disabled, DeviceUsers::Open]
    );
    driver.stop().await;
    // An unreachable manager is temporary: it is reported and retried.
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    node.stops(&["monitor.service"]);
    script.fails("Stop monitor.service", Reason::ManagerUnreachable, true);
    let mut driver = start(&sandbox, &script, &node);
    let named = |report: &machinist_update::reconciler::UpdateReport| {
        let mut blockers = report.blockers.iter();
        blockers.any(|blocker| blocker.name == "monitor.service")
    };
    driver.until("the unit to be named", named).await;
    script.stop_failing("Stop monitor.service");
    script.until_reboot().await;
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_restart_keeps_devices_disabled_and_starts_recorded_units() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    node.stops(&["a.service", "monitor.service"]);
    script.hangs("Stop monitor.service");
    let driver = start(&sandbox, &script, &node);
    script.wait_for_requests("Stop monitor.service").await;
    let recorded = sandbox.journal().cordon.unwrap();
    assert_eq!(
        recorded.stopped,
        ["a.service", "monitor.service"],
        "before it is done"
    );
    node.held_by(&["reads"]);
    driver.stop().await;
    script.stop_failing("Stop monitor.service");
    let mut driver = start(&sandbox, &script, &node);
    assert_eq!(driver.reports.borrow().device_users, recorded.device_users);
    assert_eq!(recorded.device_users, DeviceUsers::Disabled);
    driver
        .until("the holder", |report| {
            report
                .blockers
                .iter()
                .any(|one| one.reason == Reason::DeviceHeld)
        })
        .await;
    let nothing = machinist_testkit::sandbox::config("nothing");
    driver.wants(&nothing);
    driver.until_on(&nothing).await;
    let asked = script.asked();
    for unit in ["a.service", "monitor.service"] {
        let started = format!("Restart {unit}");
        assert_eq!(
            asked.iter().filter(|it| **it == started).count(),
            1,
            "{asked:?}"
        );
    }
    assert_eq!(node.device_users_history().last(), Some(&DeviceUsers::Open));
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_already_stopping_unit_is_waited_for_and_restarted_only_if_it_ran() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    node.stops(&["leaving.service", "monitor.service"]);
    script.unit_is("leaving.service", "deactivating");
    script.hangs("Stop monitor.service");
    let driver = start(&sandbox, &script, &node);
    script.wait_for_requests("Stop monitor.service").await;
    assert_eq!(script.asked()[0], "Stop leaving.service");
    driver.stop().await;
    // The job of the previous process continues.
    script.unit_is("monitor.service", "deactivating");
    let driver = start(&sandbox, &script, &node);
    script.until_asked_times("Stop monitor.service", 2).await;
    assert_eq!(
        node.device_users_history().last(),
        Some(&DeviceUsers::Disabled)
    );
    let stopped = sandbox.journal().cordon.unwrap().stopped;
    assert_eq!(stopped, ["monitor.service"], "as observed first");
    script.stop_failing("Stop monitor.service");
    script.until_reboot().await;
    assert_eq!(
        node.device_users_history().last(),
        Some(&DeviceUsers::Quiesced)
    );
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn devices_stay_disabled_across_reboots_of_an_unhealthy_boot() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    node.stops(&["monitor.service"]);
    let driver = start(&sandbox, &script, &node);
    script.until_reboot().await;
    driver.stop().await;
    boot(&sandbox, "boot-2");
    script.failed(&["broken.service"]);
    let driver = start(&sandbox, &script, &node);
    tokio::time::timeout(
        Duration::from_secs(24 * 3600),
        script.until_asked_times("reboot Logind", 2),
    )
    .await
    .unwrap();
    let asked = script.asked();
    let again: Vec<_> = asked.iter().filter(|it| it.contains("monitor")).collect();
    let expected = [
        "Stop monitor.service",
        "Restart monitor.service",
        "Stop monitor.service",
    ];
    assert_eq!(again, expected);
    assert_eq!(
        node.device_users_history().last(),
        Some(&DeviceUsers::Quiesced)
    );
    driver.stop().await;
}
