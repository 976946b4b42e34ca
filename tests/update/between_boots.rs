//! Another config, a rollback or an operator's command between an update and its reboot.

use std::sync::Arc;

use machinist_base::reason::Reason;
use machinist_rootfs::{FsOp, FsOpKind};
use machinist_update::{
    journal::{Direction, Outcome},
    phase::Phase,
    reconciler::{RebootPolicy, Reconciler, ReconcilerOptions, UpdateReport},
    store::StateStore,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::update::harness::{boot, machine, tree};
use machinist_testkit::{
    sandbox::{Quiet, conduct, config, difference},
    scripted_services::Script,
    stepwise_update::StepwiseUpdate,
};

use crate::update::reboots::{auto, once, one, reboots, start, two};

#[tokio::test]
async fn a_config_withdrawn_before_its_reboot_is_rolled_back_without_one() {
    let (sandbox, script) = (machine(), Script::new());
    let nothing = config("nothing");
    let mut driver = start(&sandbox, &script, &nothing, RebootPolicy::Ask);
    driver.until_on(&nothing).await;
    let before = tree(&sandbox);
    driver.wants(&one());
    driver
        .until("pending", |report| report.phase == Phase::RebootPending)
        .await;
    driver.wants(&nothing);
    let report = driver.until_on(&nothing).await;
    assert_eq!(report.updates[0].outcome, Outcome::Withdrawn);
    assert_eq!(report.failure, None);
    let after = tree(&sandbox);
    assert!(after == before, "{}", difference(&before, &after));
    driver.stop().await;
    assert_eq!(reboots(&script), 0);
}

#[tokio::test]
async fn another_config_before_the_reboot_needs_one_reboot_to_the_last_config() {
    let (sandbox, script) = (machine(), Script::new());
    let before = tree(&sandbox);
    let mut driver = start(&sandbox, &script, &one(), RebootPolicy::Ask);
    driver
        .until("pending", |report| report.phase == Phase::RebootPending)
        .await;
    driver.wants(&two());
    driver
        .until("pending again", |report| {
            report.phase == Phase::RebootPending && sandbox.journal().transactions.len() == 2
        })
        .await;
    // The file that the first config replaced is restored already.
    assert_eq!(sandbox.read("/etc/found").unwrap(), "found\n");
    driver.stop().await;
    boot(&sandbox, "boot-2");
    let mut driver = auto(&sandbox, &script, &two());
    let report = driver.until_on(&two()).await;
    assert_eq!(report.failure, None);
    driver.wants(&config("nothing"));
    script.wait_for_requests("reboot Logind").await;
    driver.stop().await;
    boot(&sandbox, "boot-3");
    let mut driver = auto(&sandbox, &script, &config("nothing"));
    driver.until_on(&config("nothing")).await;
    driver.stop().await;
    let after = tree(&sandbox);
    assert!(after == before, "{}", difference(&before, &after));
    assert_eq!(reboots(&script), 1);
}

#[tokio::test]
async fn a_rollback_before_the_reboot_restores_files_without_rebooting() {
    for reboot in [RebootPolicy::Auto, RebootPolicy::Ask] {
        let (sandbox, script) = (machine(), Script::new());
        let nothing = config("nothing");
        let conduct = || ReconcilerOptions {
            reboot,
            ..conduct(true)
        };
        let mut driver = start(&sandbox, &script, &nothing, RebootPolicy::Ask);
        driver.until_on(&nothing).await;
        driver.wants(&one());
        driver
            .until("pending", |report| report.phase == Phase::RebootPending)
            .await;
        driver.stop().await;
        let report = once(&sandbox, &script, conduct(), &nothing).await;
        assert_eq!(report.updates[0].outcome, Outcome::Withdrawn);
        assert_eq!(sandbox.read("/etc/found").unwrap(), "found\n");
        assert_eq!(reboots(&script), 0);
    }
}

/// A busy loop would never let this test end.
#[test]
fn waiting_for_a_manual_reboot_does_not_busy_loop_at_a_full_scan() {
    let (ended, ends) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let (sandbox, script) = (machine(), Script::new());
            let nothing = config("nothing").file("/etc/mine", "mine\n", 0o644);
            sandbox.write("/etc/mine", "mine\n");
            let mut driver = start(&sandbox, &script, &nothing, RebootPolicy::Ask);
            driver.patience = std::time::Duration::from_secs(3600);
            driver.until_on(&nothing).await;
            driver.wants(&one());
            driver
                .until("pending", |report| report.phase == Phase::RebootPending)
                .await;
            // Longer than the interval between two full checks.
            tokio::time::sleep(std::time::Duration::from_secs(10_000)).await;
            driver.stop().await;
        });
        ended.send(()).unwrap();
    });
    ends.recv_timeout(std::time::Duration::from_secs(60))
        .unwrap();
}

#[tokio::test]
async fn a_second_config_committed_by_recovery_still_gets_its_own_reboot() {
    let (sandbox, script) = (machine(), Script::new());
    let mut driver = start(&sandbox, &script, &one(), RebootPolicy::Ask);
    driver
        .until("pending", |report| report.phase == Phase::RebootPending)
        .await;
    driver.stop().await;
    let mut hand = StepwiseUpdate::live(&sandbox.root());
    hand.stage(&two()).unwrap();
    drop(hand);
    boot(&sandbox, "boot-2");
    let driver = auto(&sandbox, &script, &two());
    script.wait_for_requests("reboot Logind").await;
    driver.stop().await;
    boot(&sandbox, "boot-3");
    let mut driver = auto(&sandbox, &script, &two());
    driver.until_on(&two()).await;
    driver.stop().await;
    assert_eq!(reboots(&script), 1);
}

#[tokio::test]
async fn no_update_starts_on_top_of_a_stuck_rollback() {
    let (sandbox, script) = (machine(), Script::new());
    let mut driver = start(&sandbox, &script, &one(), RebootPolicy::Ask);
    driver
        .until("pending", |report| report.phase == Phase::RebootPending)
        .await;
    driver.stop().await;
    let mut journal = sandbox.journal();
    journal.transactions[0].direction = Direction::Undo;
    let store = StateStore::open(&sandbox.root()).unwrap();
    store.save(&journal).unwrap();
    drop(store);
    // The old object cannot be moved back.
    let broken = sandbox.root().with_fault(Arc::new(|op: &FsOp| {
        matches!(op.act, FsOpKind::Exchange(_)).then(|| std::io::Error::from_raw_os_error(5))
    }));
    let (_keep, desired) = watch::channel(two().desired());
    let services = Some(script.clone());
    let (updater, _) = Reconciler::new(&broken, services, Quiet, conduct(true), desired).unwrap();
    let report = updater.run_once(CancellationToken::new()).await.unwrap();
    assert_eq!(report.failure.as_ref().unwrap().code, Reason::Io);
    assert!(report.unverified);
    assert_eq!(sandbox.journal(), journal);
}

#[tokio::test]
async fn a_boot_that_finds_changed_files_is_rolled_back_with_one_more_reboot() {
    let (sandbox, script) = (machine(), Script::new());
    let before = tree(&sandbox);
    let driver = auto(&sandbox, &script, &one());
    script.wait_for_requests("reboot Logind").await;
    driver.stop().await;
    boot(&sandbox, "boot-2");
    sandbox.write("/etc/found", "not as asked\n");
    let driver = auto(&sandbox, &script, &one());
    script.until_asked_times("reboot Logind", 2).await;
    driver.stop().await;
    assert_eq!(tree(&sandbox), before);
    boot(&sandbox, "boot-3");
    let mut driver = auto(&sandbox, &script, &one());
    let report = driver.until_failed().await;
    assert_eq!(report.updates[0].outcome, Outcome::RolledBack);
    assert_eq!(report.failure.as_ref().unwrap().code, Reason::VerifyFailed);
    driver.stop().await;
    assert_eq!(reboots(&script), 2);
}

#[tokio::test]
async fn a_commit_in_an_unknown_boot_is_followed_by_exactly_one_reboot() {
    let (sandbox, script) = (machine(), Script::new());
    let id = sandbox.path("/proc/sys/kernel/random/boot_id");
    std::fs::remove_file(&id).unwrap();
    let mut driver = auto(&sandbox, &script, &one());
    let report = driver.until_failed().await;
    assert_eq!(
        report.failure.as_ref().unwrap().code,
        Reason::BootUnverified
    );
    driver.stop().await;
    assert_eq!(sandbox.journal().transactions.len(), 1);
    boot(&sandbox, "boot-2");
    let driver = auto(&sandbox, &script, &one());
    script.wait_for_requests("reboot Logind").await;
    driver.stop().await;
    boot(&sandbox, "boot-3");
    let mut driver = auto(&sandbox, &script, &one());
    driver.until_on(&one()).await;
    driver.stop().await;
    assert_eq!(reboots(&script), 1);
}

#[tokio::test(start_paused = true)]
async fn retries_do_not_accumulate_transactions() {
    let (sandbox, script) = (machine(), Script::new());
    std::fs::remove_file(sandbox.path("/proc/sys/kernel/random/boot_id")).unwrap();
    let mut driver = auto(&sandbox, &script, &one());
    driver.patience = std::time::Duration::from_secs(3600);
    let mut since = driver.until_failed().await.since;
    for _ in 0..3 {
        let again = driver
            .until("tried again", |report| {
                report.phase == Phase::Failed && report.since != since
            })
            .await;
        since = again.since;
    }
    driver.stop().await;
    assert_eq!(sandbox.journal().transactions.len(), 1);
}

#[tokio::test]
async fn a_manual_reboot_is_ordered_when_the_operator_requests_it() {
    let (sandbox, script) = (machine(), Script::new());
    let mut driver = start(&sandbox, &script, &one(), RebootPolicy::Ask);
    let pending = |report: &UpdateReport| report.phase == Phase::RebootPending;
    driver.until("no reboot requested", pending).await;
    assert_eq!(reboots(&script), 0);
    driver.confirm();
    script.wait_for_requests("reboot Logind").await;
    driver.stop().await;

    // The permission was for that update: the next one asks again.
    boot(&sandbox, "boot-2");
    let mut driver = start(&sandbox, &script, &one(), RebootPolicy::Ask);
    driver.until_on(&one()).await;
    driver.wants(&two());
    driver
        .until("the next reboot is not requested", pending)
        .await;
    assert_eq!(reboots(&script), 1);
    driver.stop().await;

    let (sandbox, script) = (machine(), Script::new());
    let mut driver = start(&sandbox, &script, &one(), RebootPolicy::Never);
    driver.until("no reboot requested", pending).await;
    driver.confirm();
    driver
        .until("request received", |report| report.requested == 1)
        .await;
    assert_eq!(reboots(&script), 0, "no reboot with reboot: never");
    driver.stop().await;
}
