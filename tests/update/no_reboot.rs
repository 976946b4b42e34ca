//! Updates without a reboot: their actions, their failures, and configs that are read meanwhile.

use std::sync::Arc;

use machinist_base::reason::Reason;
use machinist_ignition::Refusal;
use machinist_update::{
    journal::Outcome,
    phase::Phase,
    reconciler::{DesiredConfig, Reconciler, UpdateError},
    store::StoreError,
};
use tokio::sync::watch;

use crate::update::harness::{Driver, UNIT, machine, tree};
use machinist_testkit::{
    sandbox::{Quiet, Written, config, difference, once, restarting},
    scripted_services::Script,
};

fn one() -> Written {
    config("one")
        .file("/etc/found", "one\n", 0o644)
        .file("/etc/a/b", "one\n", 0o600)
}

fn two() -> Written {
    config("two")
        .file("/etc/found", "two\n", 0o644)
        .file("/etc/c", "two\n", 0o600)
}

fn restart() -> String {
    format!("Restart {UNIT}")
}

#[tokio::test]
async fn a_config_is_applied_its_actions_run_and_it_is_verified() {
    let (sandbox, script) = (machine(), Script::new());
    let mut driver = Driver::start(&sandbox, &script, one().desired());
    let report = driver.until_on(&one()).await;
    assert_eq!(report.updates[0].outcome, Outcome::Done);
    assert_eq!(report.failure, None);
    assert_eq!(sandbox.read("/etc/found").unwrap(), "one\n");
    assert_eq!(script.asked(), [restart()]);
    driver.wants(&two());
    driver.until_on(&two()).await;
    assert_eq!(sandbox.read("/etc/a/b"), None);
    driver.stop().await;
    // The next start finds nothing to do.
    let mut driver = Driver::start(&sandbox, &script, two().desired());
    driver.until_on(&two()).await;
    assert_eq!(script.asked().len(), 2);
    driver.stop().await;
}

#[tokio::test]
async fn a_failed_action_rolls_back_and_the_same_config_is_not_retried() {
    let (sandbox, script) = (machine(), Script::new());
    let mut driver = Driver::start(&sandbox, &script, one().desired());
    driver.until_on(&one()).await;
    let before = tree(&sandbox);
    script.fails(&restart(), Reason::UnitDied, false);
    driver.wants(&two());
    let report = driver.until_failed().await;
    assert_eq!(report.failure.as_ref().unwrap().code, Reason::UnitDied);
    assert_eq!(report.updates[0].outcome, Outcome::RolledBack);
    assert_eq!(report.updates[0].reason, Some(Reason::UnitDied));
    assert!(!report.unverified);
    let after = tree(&sandbox);
    assert!(after == before, "{}", difference(&before, &after));
    // For the first config, for the second, and for the rollback.
    assert_eq!(script.asked(), [restart(), restart(), restart()]);
    assert_eq!(report.config.current.as_ref().unwrap().name, "one");
    // An equal config with another name changes nothing. Then a better one follows.
    let mut renamed = two();
    renamed.0.name = "two-again".to_owned();
    driver.wants(&renamed);
    script.stop_failing(&restart());
    let three = two().file("/etc/d", "three\n", 0o644);
    driver.wants(&three);
    let report = driver.until_on(&three).await;
    assert_eq!(report.failure, None);
    assert_eq!(script.asked().len(), 4);
    driver.stop().await;
}

#[tokio::test]
async fn withdrawing_a_failed_config_clears_the_failure() {
    let (sandbox, script) = (machine(), Script::new());
    let mut driver = Driver::start(&sandbox, &script, one().desired());
    driver.until_on(&one()).await;
    script.fails(&restart(), Reason::JobFailed, false);
    driver.wants(&two());
    driver.until_failed().await;
    driver.wants(&one());
    let report = driver.until_on(&one()).await;
    assert_eq!(report.failure, None);
    driver.stop().await;
    assert_eq!(sandbox.journal().failure, None);
}

#[tokio::test(start_paused = true)]
async fn a_transient_failure_is_retried_with_backoff() {
    let (sandbox, script) = (machine(), Script::new());
    script.fails(&restart(), Reason::ManagerUnreachable, true);
    let mut driver = Driver::start(&sandbox, &script, one().desired());
    driver.patience = std::time::Duration::from_secs(3600);
    let begun = tokio::time::Instant::now();
    let mut waits = Vec::new();
    for round in 1..=5_usize {
        driver
            .until("another attempt", |report| {
                report.phase == Phase::Failed && report.updates.len() == round
            })
            .await;
        waits.push(begun.elapsed());
    }
    let steps: Vec<_> = waits
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).as_secs_f64())
        .collect();
    for (step, least) in steps.iter().zip([0.7, 1.4, 2.9, 5.9]) {
        assert!(*step >= least, "{steps:?}");
    }
    script.stop_failing(&restart());
    driver.until_on(&one()).await;
    driver.stop().await;
}

#[tokio::test]
async fn a_rejected_config_keeps_the_last_valid_one_until_replaced() {
    let (sandbox, script) = (machine(), Script::new());
    let mut driver = Driver::start(&sandbox, &script, one().desired());
    driver.until_on(&one()).await;
    // The source refuses it.
    let refusal = Refusal::new(Reason::SyntaxInvalid, "no YAML");
    driver
        .desired
        .send_replace(DesiredConfig::Refused(Arc::new(vec![refusal])));
    let report = driver
        .until("refused", |report| !report.refused.is_empty())
        .await;
    assert_eq!(
        report.blocking_failure().unwrap().code,
        Reason::SyntaxInvalid
    );
    // It is no longer desired, and nothing is left of it.
    driver.desired.send_replace(DesiredConfig::Nothing);
    let report = driver
        .until("content", |report| report.refused.is_empty())
        .await;
    assert_eq!(report.blocking_failure(), None);
    assert_eq!(report.phase, Phase::Idle);
    // The machine refuses it: a file exists where a directory is needed.
    let bad = one().file("/etc/shadow/x", "x", 0o600);
    sandbox.write("/etc/shadow", "somebody's\n");
    driver.wants(&bad);
    let report =
        driver
            .until("refused by the plan", |report| {
                report.failure.as_ref().is_some_and(|failure| {
                    failure.code == Reason::ForeignContent && failure.retryable
                }) && report.phase == Phase::Failed
            })
            .await;
    assert_eq!(report.config.current.as_ref().unwrap().name, "one");
    // The valid config again: nothing to do, and no failure.
    driver.wants(&one());
    let report = driver
        .until("content", |report| report.failure.is_none())
        .await;
    assert_eq!(report.phase, Phase::Idle);
    driver.wants(&two());
    driver.until_on(&two()).await;
    assert_eq!(script.asked().len(), 2);
    driver.stop().await;
}

#[tokio::test]
async fn an_interrupted_restart_is_not_repeated_if_the_unit_has_started_since() {
    for (invocation, asked) in [("after", 1), ("before", 2)] {
        let (sandbox, script) = (machine(), Script::new());
        script.invoked(UNIT, "before");
        script.hangs(&restart());
        let driver = Driver::start(&sandbox, &script, one().desired());
        script.wait_for_requests(&restart()).await;
        driver.stop().await;
        assert_eq!(sandbox.journal().transactions.len(), 1);
        script.stop_failing(&restart());
        script.invoked(UNIT, invocation);
        let mut driver = Driver::start(&sandbox, &script, one().desired());
        driver.until_on(&one()).await;
        assert_eq!(script.asked().len(), asked, "{invocation}");
        driver.stop().await;
    }
}

#[tokio::test]
async fn a_config_replaced_during_its_actions_is_followed_by_the_new_one() {
    let (sandbox, script) = (machine(), Script::new());
    script.hangs(&restart());
    let mut driver = Driver::start(&sandbox, &script, one().desired());
    script.wait_for_requests(&restart()).await;
    driver.wants(&two());
    script.stop_failing(&restart());
    driver.until_on(&two()).await;
    assert_eq!(sandbox.read("/etc/found").unwrap(), "two\n");
    assert_eq!(sandbox.read("/etc/a/b"), None);
    driver.stop().await;
}

#[tokio::test]
async fn foreign_changes_are_kept_and_reported() {
    let (sandbox, script) = (machine(), Script::new());
    let unit = "[Service]\nExecStart=/bin/true\n";
    let first = one().unit("y.service", unit, false).link("/etc/l", "found");
    let mut driver = Driver::start(&sandbox, &script, first.desired());
    driver.until_on(&first).await;
    std::fs::remove_file(sandbox.path("/etc/l")).unwrap();
    for path in ["/etc/found", "/etc/systemd/system/y.service", "/etc/l"] {
        sandbox.write(path, "somebody's work\n");
    }
    let drift = driver
        .until("drift", |report| report.drift.len() == 3)
        .await;
    assert_eq!(drift.phase, Phase::Idle);
    let changed = unit.replace("true", "false");
    let second = two().unit("y.service", &changed, false).link("/etc/l", "c");
    driver.wants(&second);
    let report = driver.until_on(&second).await;
    assert_eq!(sandbox.read("/etc/found").unwrap(), "two\n");
    driver
        .until("no drift", |report| report.drift.is_empty())
        .await;
    driver.stop().await;
    let drifted = sandbox
        .path("/var/lib/machinist/drifted")
        .join(&report.updates[0].id);
    let mut names: Vec<_> = std::fs::read_dir(drifted)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["etc-found", "etc-l", "etc-systemd-system-y.service"]
    );
}

#[tokio::test]
async fn an_enablement_link_is_removed_without_being_treated_as_foreign() {
    let (sandbox, script) = (machine(), Script::new());
    let unit = "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n";
    let first = one().unit("y.service", unit, true);
    let mut driver = Driver::start(&sandbox, &script, first.desired());
    driver.until_on(&first).await;
    let link = sandbox.path("/etc/systemd/system/multi-user.target.wants/y.service");
    assert!(link.is_symlink());
    let second = one().unit("y.service", unit, false);
    driver.wants(&second);
    driver.until_on(&second).await;
    driver.stop().await;
    assert!(!link.is_symlink());
    assert!(!sandbox.path("/var/lib/machinist/drifted").exists());
}

#[test]
fn a_second_reconciler_on_the_same_root_is_rejected() {
    let sandbox = machine();
    let (_keep, desired) = watch::channel(one().desired());
    let new = || {
        let (script, conduct) = (Script::new(), restarting(UNIT));
        Reconciler::new(
            &sandbox.root(),
            Some(script),
            Quiet,
            conduct,
            desired.clone(),
        )
    };
    let first = new().unwrap();
    let second = new().err().unwrap();
    assert!(
        matches!(second, UpdateError::Store(StoreError::Locked { .. })),
        "{second:?}"
    );
    drop(first);
    new().unwrap();
}

#[test]
fn an_untrusted_journal_stops_all_updates() {
    for (text, code) in [
        ("torn", Reason::JournalUnreadable),
        (
            "{\"machinistJournal\":9,\"minReader\":9,\"checksum\":\"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\"}\n",
            Reason::JournalTooNew,
        ),
    ] {
        let (sandbox, script) = (machine(), Script::new());
        let conduct = || restarting(UNIT);
        once(&sandbox.root(), Some(script.clone()), conduct(), &one()).unwrap();
        sandbox.write("/var/lib/machinist/journal", text);
        let before = machinist_rootfs::TreeSnapshot::capture(&sandbox.root()).unwrap();
        let report = once(&sandbox.root(), Some(script.clone()), conduct(), &two());
        let failure = report.unwrap().failure.clone().unwrap();
        assert_eq!(failure.code, code);
        let after = machinist_rootfs::TreeSnapshot::capture(&sandbox.root()).unwrap();
        assert!(after == before, "{}", difference(&before, &after));
    }
}

#[tokio::test]
async fn an_operators_apply_repairs_drift_and_retries_a_failed_config() {
    let (sandbox, script) = (machine(), Script::new());
    let mut driver = Driver::start(&sandbox, &script, one().desired());
    driver.until_on(&one()).await;
    sandbox.write("/etc/found", "edited\n");
    driver
        .until("the drift", |report| !report.drift.is_empty())
        .await;
    driver.confirm();
    driver
        .until("repaired", |report| {
            report.requested == 1 && report.updates.len() == 2 && report.phase == Phase::Idle
        })
        .await;
    assert_eq!(sandbox.read("/etc/found").unwrap(), "one\n");
    driver.stop().await;
}
