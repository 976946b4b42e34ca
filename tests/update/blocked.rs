//! A desired config for which no update may begin: an operator has cancelled it, or another daemon
//! manages the node.

use std::time::Duration;

use machinist_base::reason::Reason;
use machinist_cluster::publisher::cancelled;
use machinist_update::{
    journal::Outcome,
    node_port::DeviceUsers,
    phase::Phase,
    reconciler::{DesiredConfig, UpdateReport},
};

use crate::update::{
    harness::{Driver, blocked_config, boot, machine, tree},
    reboots::{one, two},
};
use machinist_testkit::{
    node::FakeNode,
    sandbox::{Sandbox, conduct, config},
    scripted_services::Script,
};

const BOTH: [Reason; 2] = [Reason::Cancelled, Reason::OtherDaemon];

fn start(sandbox: &Sandbox, script: &Script, node: &FakeNode, desired: DesiredConfig) -> Driver {
    Driver::on_node(&sandbox.root(), script, node, desired, conduct(true))
}

fn rests(report: &UpdateReport) -> bool {
    let stands = report
        .blocked
        .as_ref()
        .is_some_and(|blocked| blocked.stands);
    stands && report.phase == Phase::Idle && report.cordoned.is_none()
}

#[tokio::test(start_paused = true)]
async fn a_blocked_config_causes_no_cordon_or_update_also_after_a_restart() {
    for reason in BOTH {
        let (sandbox, script) = (machine(), Script::new());
        let node = FakeNode::of(&sandbox);
        let before = tree(&sandbox);
        for _ in 0..2 {
            let mut driver = start(&sandbox, &script, &node, blocked_config(&one(), reason));
            let report = driver.until("at rest", rests).await;
            assert_eq!(report.config.desired.as_ref().unwrap().name, "one");
            tokio::time::sleep(Duration::from_secs(3600)).await;
            assert_eq!(driver.reports.borrow().phase, Phase::Idle);
            driver.stop().await;
        }
        assert_eq!(node.log(), [""; 0], "{reason}");
        assert_eq!(tree(&sandbox), before);
        assert_eq!(script.asked(), [""; 0]);
        // Without the block the update begins immediately.
        let mut driver = start(&sandbox, &script, &node, blocked_config(&one(), reason));
        driver.until("at rest", rests).await;
        driver.wants(&one());
        script.until_reboot().await;
        driver.stop().await;
    }
}

/// Each request up to the first change is delayed, so that the block is set in the middle of it.
#[tokio::test(start_paused = true)]
async fn an_update_cancelled_before_staging_uncordons_the_node_in_every_phase() {
    for reason in BOTH {
        for (request, phase) in [
            ("cordon", Phase::Cordoned),
            ("lend", Phase::DisablingDevices),
            ("drain", Phase::Draining),
            ("permit", Phase::Drained),
        ] {
            let (sandbox, script) = (machine(), Script::new());
            let node = FakeNode::of(&sandbox);
            let nothing = config("nothing");
            let mut driver = start(&sandbox, &script, &node, nothing.desired());
            driver.until_on(&nothing).await;
            let before = tree(&sandbox);
            match request {
                "drain" => node.blocks(true),
                request => node.fails(request, u32::MAX, true),
            }
            driver.wants(&one());
            driver
                .until(request, |report| {
                    report.phase == phase && !report.blockers.is_empty()
                })
                .await;
            node.fails(request, 0, true);
            driver.bars(&one(), reason);
            let report = driver.until("released", rests).await;
            assert!(!node.is_cordoned(), "{request}: {:?}", node.log());
            assert!(report.failure.is_none() && report.blockers.is_empty());
            // Before allocation is first disabled there is nothing to enable again.
            let last = node.device_users_history().last().copied();
            let expected = (request != "cordon").then_some(DeviceUsers::Open);
            assert_eq!(last, expected, "{request}");
            assert_eq!(tree(&sandbox), before, "{request}");
            assert!(sandbox.journal().cordon.is_none());
            // It is never begun again; another config is.
            tokio::time::sleep(Duration::from_secs(3600)).await;
            assert!(!node.is_cordoned());
            node.blocks(false);
            driver.wants(&two());
            script.until_reboot().await;
            assert!(node.is_cordoned());
            driver.stop().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_restarted_during_a_drain_honours_a_cancellation() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    node.blocks(true);
    let mut driver = start(&sandbox, &script, &node, one().desired());
    driver
        .until("draining", |report| !report.blockers.is_empty())
        .await;
    driver.stop().await;
    assert!(node.is_cordoned() && sandbox.journal().cordon.is_some());
    let mut driver = start(
        &sandbox,
        &script,
        &node,
        blocked_config(&one(), Reason::Cancelled),
    );
    driver.until("released", rests).await;
    assert!(!node.is_cordoned());
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_drain_is_reverted_and_acknowledged_with_closed_gates() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    node.blocks(true);
    node.fails("uncordon", u32::MAX, true);
    let mut driver = start(&sandbox, &script, &node, one().desired());
    driver
        .until("draining", |report| !report.blockers.is_empty())
        .await;
    assert_eq!(node.taken_back(), 0);
    let begun = tokio::time::Instant::now();
    driver.bars(&one(), Reason::Cancelled);
    driver
        .until("answered", |report| cancelled(report) == Some("one"))
        .await;
    assert!(begun.elapsed() < Duration::from_secs(5));
    let taken_back = || async {
        while node.taken_back() == 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let taken_back = tokio::time::timeout(Duration::from_secs(60), taken_back());
    assert!(taken_back.await.is_ok() && node.is_cordoned());
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_transient_failure_is_not_retried_for_a_blocked_config() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    let mut driver = start(&sandbox, &script, &node, DesiredConfig::Unknown);
    node.fails("cordon", u32::MAX, false);
    driver.wants(&one());
    driver.until_failed().await;
    driver.bars(&one(), Reason::Cancelled);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(!node.is_cordoned() && script.asked().is_empty());
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn after_its_first_change_an_update_cannot_be_cancelled() {
    for reason in BOTH {
        let (sandbox, script) = (machine(), Script::new());
        let node = FakeNode::of(&sandbox);
        let driver = start(&sandbox, &script, &node, one().desired());
        script.until_reboot().await;
        driver.bars(&one(), reason);
        driver.stop().await;
        boot(&sandbox, "boot-2");
        let mut driver = start(&sandbox, &script, &node, blocked_config(&one(), reason));
        let report = driver.until_on(&one()).await;
        assert_eq!(report.updates[0].outcome, Outcome::Done);
        assert_eq!(node.log(), ["cordon one", "drain", "uncordon one"]);
        driver.stop().await;
    }
}

/// The agent ends the grant of a refused config, and the node reports the refusal until the next grant.
#[tokio::test(start_paused = true)]
async fn a_refused_config_is_reported_until_the_next_grant_and_then_planned_again() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    sandbox.write("/etc/app", "a file\n");
    let wanted = config("wanted").file("/etc/app/f", "ours\n", 0o644);
    let is_refused = |report: &UpdateReport| {
        let failure = report.failure.as_ref();
        failure.is_some_and(|failure| failure.code == Reason::ForeignContent)
    };
    let mut driver = start(&sandbox, &script, &node, wanted.desired());
    for _ in 0..2 {
        let failed = |report: &UpdateReport| report.phase == Phase::Failed && is_refused(report);
        driver.until("refused", failed).await;
        driver.bars(&wanted, Reason::AwaitingGrant);
        let report = driver.until("at rest", rests).await;
        assert!(is_refused(&report), "{report:?}");
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let report = driver.reports.borrow().clone();
        assert!(rests(&report) && is_refused(&report), "{report:?}");
        driver.wants(&wanted);
    }
    std::fs::remove_file(sandbox.path("/etc/app")).unwrap();
    script.until_reboot().await;
    assert!(node.is_cordoned());
    driver.stop().await;
}
