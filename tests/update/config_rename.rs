//! Equal content under another name, which a renderer may assign at any time.

use machinist_base::reason::Reason;
use machinist_update::{
    phase::Phase,
    reconciler::{DesiredConfig, UpdateReport},
};

use crate::update::{
    harness::{Driver, boot, machine, tree},
    reboots::{one, reboots},
};
use machinist_testkit::{
    node::FakeNode,
    sandbox::{Sandbox, Written, conduct, config},
    scripted_services::Script,
};

fn renamed(config: &Written, name: &str) -> Written {
    let mut renamed = config.clone();
    name.clone_into(&mut renamed.0.name);
    renamed
}

fn start(sandbox: &Sandbox, script: &Script, node: &FakeNode, config: &Written) -> Driver {
    let conduct = conduct(true);
    Driver::on_node(&sandbox.root(), script, node, config.desired(), conduct)
}

fn on(name: &str) -> impl Fn(&UpdateReport) -> bool {
    move |report| {
        let current = report.config.current.as_ref();
        current.is_some_and(|current| current.name == name)
            && report.phase == Phase::Idle
            && !report.unverified
            && report.cordoned.is_none()
    }
}

/// Goes through the one reboot, and ends on the new name.
async fn ends_on_the_new_name(
    driver: Driver,
    sandbox: &Sandbox,
    script: &Script,
    node: &FakeNode,
    config: &Written,
) {
    script.until_reboot().await;
    driver.stop().await;
    boot(sandbox, "boot-2");
    let mut driver = start(sandbox, script, node, config);
    driver
        .until("on the new name", on(config.0.name.as_str()))
        .await;
    assert_eq!(reboots(script), 1, "{:?}", script.asked());
    let begun: Vec<_> = node.log().into_iter().take(2).collect();
    assert_eq!(begun, ["cordon one", "drain"]);
    assert_eq!(node.log().len(), 3, "{:?}", node.log());
    assert_eq!(sandbox.journal().base.unwrap().name, config.0.name);
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_config_renamed_during_a_drain_continues_without_another_drain() {
    let (sandbox, script) = (machine(), Script::new());
    let (node, again) = (FakeNode::of(&sandbox), renamed(&one(), "one-again"));
    node.desires("one");
    node.blocks(true);
    let mut driver = start(&sandbox, &script, &node, &one());
    driver
        .until("draining", |report| !report.blockers.is_empty())
        .await;
    node.desires("one-again");
    driver.wants(&again);
    driver
        .until("the new name", |report| {
            let desired = report.config.desired.as_ref();
            desired.is_some_and(|desired| desired.name == "one-again")
        })
        .await;
    node.blocks(false);
    ends_on_the_new_name(driver, &sandbox, &script, &node, &again).await;
}

/// The Node shows the new name before the config can be read: the final check fails, and is
/// repeated.
#[tokio::test(start_paused = true)]
async fn a_config_renamed_just_before_the_first_change_is_applied_by_its_new_name() {
    let (sandbox, script) = (machine(), Script::new());
    let (node, again) = (FakeNode::of(&sandbox), renamed(&one(), "one-again"));
    node.desires("one-again");
    let mut driver = start(&sandbox, &script, &node, &one());
    let refused = |report: &UpdateReport| {
        let blocker = report.blockers.first();
        blocker.is_some_and(|blocker| blocker.reason == Reason::DesiredConfigChanged)
    };
    let report = driver.until("refused", refused).await;
    assert_eq!(report.phase, Phase::Drained);
    driver.wants(&again);
    ends_on_the_new_name(driver, &sandbox, &script, &node, &again).await;
}

#[tokio::test(start_paused = true)]
async fn a_config_renamed_before_the_reboot_is_reported_by_its_new_name() {
    let (sandbox, script) = (machine(), Script::new());
    let (node, again) = (FakeNode::of(&sandbox), renamed(&one(), "one-again"));
    node.desires("one");
    node.fails("reboot", 2, true);
    let mut driver = start(&sandbox, &script, &node, &one());
    driver
        .until("the reboot", |report| {
            report.phase == Phase::RebootPending && !report.blockers.is_empty()
        })
        .await;
    node.desires("one-again");
    driver.wants(&again);
    ends_on_the_new_name(driver, &sandbox, &script, &node, &again).await;
}

#[tokio::test(start_paused = true)]
async fn renaming_the_current_config_changes_only_its_name() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    let (empty, again) = (config("empty"), config("empty-again"));
    let mut driver = start(&sandbox, &script, &node, &empty);
    driver.until("on it", on("empty")).await;
    driver.wants(&again);
    driver.until("the new name", on("empty-again")).await;
    driver.stop().await;
    // Also while the reconciler was stopped.
    let third = config("third");
    let mut driver = start(&sandbox, &script, &node, &third);
    driver.until("the third name", on("third")).await;
    driver.stop().await;
    boot(&sandbox, "boot-2");
    let root = sandbox.root();
    let mut driver = Driver::on_node(&root, &script, &node, DesiredConfig::Unknown, conduct(true));
    driver.until("still the third name", on("third")).await;
    driver.stop().await;
    assert_eq!(node.log(), [""; 0]);
    assert_eq!(script.asked(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn renaming_the_current_config_does_not_repair_drift() {
    let (sandbox, script) = (machine(), Script::new());
    let (node, again) = (FakeNode::of(&sandbox), renamed(&one(), "one-again"));
    let driver = start(&sandbox, &script, &node, &one());
    script.until_reboot().await;
    driver.stop().await;
    boot(&sandbox, "boot-2");
    let mut driver = start(&sandbox, &script, &node, &one());
    driver.until("on it", on("one")).await;
    sandbox.write("/etc/found", "by a person\n");
    let drifted = tree(&sandbox);
    driver.wants(&again);
    driver.until("the new name", on("one-again")).await;
    driver.stop().await;
    assert_eq!(tree(&sandbox), drifted);
    assert_eq!(node.log().len(), 3, "{:?}", node.log());
}
