//! Configs that are refused because of something on the machine, which may disappear without a new config.

use std::{collections::BTreeSet, fs, time::Duration};

use machinist_base::reason::Reason;
use machinist_ignition::Overwrite;
use machinist_update::{phase::Phase, reconciler::UpdateReport};

use crate::update::{
    harness::{Driver, machine, tree},
    reboots::{one, two},
};
use machinist_testkit::{
    node::FakeNode,
    sandbox::{Sandbox, Written, conduct, config, restarting},
    scripted_services::Script,
};

/// Longer than the longest delay between two attempts.
const LONGEST_DELAY: Duration = Duration::from_secs(301);

fn is_refused(report: &UpdateReport, code: Reason) -> bool {
    let failure = report.failure.as_ref();
    report.phase == Phase::Failed && failure.is_some_and(|it| it.code == code && it.retryable)
}

/// A config, the obstacle, how it is refused, and how the obstacle is removed.
type Obstacle = (Written, fn(&Sandbox), Reason, fn(&Sandbox));

fn obstacles() -> Vec<Obstacle> {
    let file = |path| config("wanted").file(path, "ours\n", 0o644);
    let mut directory = config("wanted").dir("/etc/app", 0o755);
    directory.0.overwrite = Overwrite::Except(BTreeSet::new());
    vec![
        (
            file("/etc/app/f"),
            |machine| machine.write("/etc/app", "a file\n"),
            Reason::ForeignContent,
            |machine| fs::remove_file(machine.path("/etc/app")).unwrap(),
        ),
        (
            file("/etc/app"),
            |machine| machine.write("/etc/app/theirs", "a file\n"),
            Reason::ForeignContent,
            |machine| fs::remove_dir_all(machine.path("/etc/app")).unwrap(),
        ),
        (
            directory,
            |machine| machine.write("/etc/app", "a file\n"),
            Reason::KindDiffers,
            |machine| fs::remove_file(machine.path("/etc/app")).unwrap(),
        ),
        (
            file("/etc/one/f").file("/etc/two/f", "other\n", 0o644),
            |machine| {
                fs::create_dir(machine.path("/etc/two")).unwrap();
                std::os::unix::fs::symlink("two", machine.path("/etc/one")).unwrap();
            },
            Reason::DuplicateTarget,
            |machine| fs::remove_file(machine.path("/etc/one")).unwrap(),
        ),
        (
            config("wanted").hard("/etc/name", "/etc/app"),
            |machine| machine.write("/etc/app/theirs", "a file\n"),
            Reason::HardLinkTarget,
            |machine| {
                fs::remove_dir_all(machine.path("/etc/app")).unwrap();
                machine.write("/etc/app", "a file\n");
            },
        ),
    ]
}

#[tokio::test(start_paused = true)]
async fn a_config_blocked_by_an_obstacle_is_retried_until_it_is_removed() {
    for (wanted, put, code, remove) in obstacles() {
        let (sandbox, script) = (machine(), Script::new());
        put(&sandbox);
        let before = tree(&sandbox);
        let conduct = restarting("x.service");
        let mut driver = Driver::conducted(&sandbox, &script, wanted.desired(), conduct);
        driver
            .until(code.as_str(), |report| is_refused(report, code))
            .await;
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(is_refused(&driver.reports.borrow(), code), "{code}");
        assert_eq!(tree(&sandbox), before, "{code}");
        remove(&sandbox);
        let begun = tokio::time::Instant::now();
        driver.patience = LONGEST_DELAY;
        driver.until_on(&wanted).await;
        assert!(begun.elapsed() <= LONGEST_DELAY, "{code}");
        driver.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_obstacle_does_not_keep_the_node_cordoned() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    node.blocks(true);
    let wanted = one().file("/etc/app", "ours\n", 0o644);
    let mut driver = Driver::on_node(
        &sandbox.root(),
        &script,
        &node,
        wanted.desired(),
        conduct(true),
    );
    driver
        .until("draining", |report| !report.blockers.is_empty())
        .await;
    assert!(node.is_cordoned());
    sandbox.write("/etc/app/theirs", "a file\n");
    node.blocks(false);
    driver
        .until("refused", |report| {
            is_refused(report, Reason::ForeignContent)
        })
        .await;
    driver
        .until("released", |report| report.cordoned.is_none())
        .await;
    assert!(!node.is_cordoned());
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let cordons = |log: Vec<String>| log.iter().filter(|it| it.starts_with("cordon")).count();
    assert_eq!(cordons(node.log()), 1, "{:?}", node.log());
    fs::remove_dir_all(sandbox.path("/etc/app")).unwrap();
    script.until_reboot().await;
    assert_eq!(cordons(node.log()), 2);
    driver.stop().await;
}

/// The same for a refusal for another reason that may disappear: recovery is not installed any more.
#[tokio::test(start_paused = true)]
async fn a_transient_refusal_does_not_keep_the_node_cordoned() {
    let (sandbox, script) = (machine(), Script::new());
    let node = FakeNode::of(&sandbox);
    node.blocks(true);
    let root = sandbox.root();
    let wanted = one().desired();
    let mut driver = Driver::on_node(&root, &script, &node, wanted, conduct(true));
    driver
        .until("draining", |report| !report.blockers.is_empty())
        .await;
    assert!(node.is_cordoned());
    let unit = sandbox.path("/usr/lib/systemd/system/machinist-recover.service");
    let away = unit.with_extension("away");
    fs::rename(&unit, &away).unwrap();
    node.blocks(false);
    driver
        .until("refused", |report| {
            is_refused(report, Reason::RecoveryMissing)
        })
        .await;
    driver
        .until("uncordoned", |report| report.cordoned.is_none())
        .await;
    assert!(!node.is_cordoned());
    fs::rename(&away, &unit).unwrap();
    script.until_reboot().await;
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn another_config_or_the_current_one_ends_the_retries() {
    let (sandbox, script) = (machine(), Script::new());
    let mut driver = Driver::start(&sandbox, &script, one().desired());
    driver.until_on(&one()).await;
    sandbox.write("/etc/app/theirs", "a file\n");
    for next in [one(), two()] {
        driver.wants(&one().file("/etc/app", "ours\n", 0o644));
        driver
            .until("refused", |report| {
                is_refused(report, Reason::ForeignContent)
            })
            .await;
        driver.wants(&next);
        let report = driver.until_on(&next).await;
        assert_eq!(report.failure, None);
    }
    driver.stop().await;
}
