//! Updates that need a reboot.

use std::{sync::Arc, time::Duration};

use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_rootfs::{FsOp, FsOpKind};
use machinist_update::{
    journal::Outcome,
    phase::Phase,
    reconciler::{RebootPolicy, Reconciler, ReconcilerOptions, UpdateReport},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::update::harness::{Driver, boot, machine, tree};
use machinist_testkit::{
    WAIT_TIMEOUT,
    sandbox::{Quiet, Sandbox, Written, conduct, config},
    scripted_services::Script,
};

/// A file that no policy covers: the built-in policies require a reboot.
pub(crate) fn one() -> Written {
    config("one").file("/etc/found", "one\n", 0o644)
}

pub(crate) fn two() -> Written {
    config("two").file("/etc/other", "two\n", 0o644)
}

pub(crate) fn start(
    sandbox: &Sandbox,
    script: &Script,
    config: &Written,
    reboot: RebootPolicy,
) -> Driver {
    let conduct = ReconcilerOptions {
        reboot,
        ..conduct(true)
    };
    Driver::conducted(sandbox, script, config.desired(), conduct)
}

pub(crate) fn auto(sandbox: &Sandbox, script: &Script, config: &Written) -> Driver {
    start(sandbox, script, config, RebootPolicy::Auto)
}

pub(crate) async fn once(
    sandbox: &Sandbox,
    script: &Script,
    conduct: ReconcilerOptions,
    config: &Written,
) -> Arc<UpdateReport> {
    let (_keep, desired) = watch::channel(config.desired());
    let services = Some(script.clone());
    let (updater, _) = Reconciler::new(&sandbox.root(), services, Quiet, conduct, desired).unwrap();
    let ran = updater.run_once(CancellationToken::new());
    let ran = tokio::time::timeout(WAIT_TIMEOUT, ran);
    ran.await.unwrap().unwrap()
}

pub(crate) fn reboots(script: &Script) -> usize {
    let asked = script.asked();
    asked
        .iter()
        .filter(|asked| asked.starts_with("reboot"))
        .count()
}

#[tokio::test]
async fn the_next_boot_verifies_without_a_second_reboot() {
    let (sandbox, script) = (machine(), Script::new());
    let driver = auto(&sandbox, &script, &one());
    script.wait_for_requests("reboot Logind").await;
    assert_eq!(sandbox.read("/etc/found").unwrap(), "one\n");
    driver.stop().await;
    // Restarted in the same boot, the request still counts and the next method is tried.
    boot(&sandbox, "boot-2");
    let mut driver = auto(&sandbox, &script, &one());
    let report = driver.until_on(&one()).await;
    assert_eq!(report.updates[0].outcome, Outcome::Done);
    driver.stop().await;
    boot(&sandbox, "boot-3");
    let mut driver = auto(&sandbox, &script, &one());
    driver.until_on(&one()).await;
    driver.stop().await;
    assert_eq!(reboots(&script), 1);
}

#[tokio::test]
async fn the_reconcilers_first_report_reflects_the_journal() {
    let (sandbox, script) = (machine(), Script::new());
    let driver = auto(&sandbox, &script, &one());
    script.wait_for_requests("reboot Logind").await;
    driver.stop().await;
    boot(&sandbox, "boot-2");
    let (_keep, desired) = watch::channel(one().desired());
    let (services, conduct) = (Some(script), conduct(true));
    let (_updater, reports) =
        Reconciler::new(&sandbox.root(), services, Quiet, conduct, desired).unwrap();
    let report = reports.borrow();
    assert_eq!(report.phase, Phase::Booted);
    assert!(report.unverified);
}

#[tokio::test(start_paused = true)]
async fn a_reboot_that_does_not_happen_is_retried_three_ways_and_reported() {
    let (sandbox, script) = (machine(), Script::new());
    script.reboots_do_not_happen();
    let mut driver = auto(&sandbox, &script, &one());
    driver.patience = Duration::from_secs(3600);
    let report = driver.until_failed().await;
    assert_eq!(report.failure.as_ref().unwrap().code, Reason::RebootTimeout);
    assert_eq!(
        script.asked(),
        [
            "reboot Logind",
            "reboot TransientUnit",
            "reboot RebootTarget"
        ]
    );
    assert!(report.unverified);
    // An operator asks for another attempt, as with `machinist apply`.
    driver.confirm();
    script.until_asked_times("reboot RebootTarget", 2).await;
    let report = driver.until_failed().await;
    assert_eq!(report.failure.as_ref().unwrap().code, Reason::RebootTimeout);
    assert_eq!(reboots(&script), 6);
    // An operator reboots it.
    driver.stop().await;
    boot(&sandbox, "boot-2");
    let mut driver = auto(&sandbox, &script, &one());
    let report = driver.until_on(&one()).await;
    assert_eq!(report.failure, None);
    driver.stop().await;
    assert_eq!(reboots(&script), 6);
}

#[tokio::test(start_paused = true)]
async fn an_inhibited_reboot_is_retried_slowly_and_reported() {
    let (sandbox, script) = (machine(), Script::new());
    script.fails("reboot Logind", Reason::RebootInhibited, true);
    let mut driver = auto(&sandbox, &script, &one());
    driver.patience = Duration::from_secs(3600);
    let began = tokio::time::Instant::now();
    script.until_asked_times("reboot Logind", 10).await;
    assert!(began.elapsed() >= Duration::from_secs(9 * 30));
    let report = driver
        .until("the holder to be named", |report| report.failure.is_some())
        .await;
    assert_eq!(report.phase, Phase::RebootPending);
    assert_eq!(
        report.failure.as_ref().unwrap().code,
        Reason::RebootInhibited
    );
    // Also after a restart of the agent.
    driver.stop().await;
    script.stop_failing("reboot Logind");
    let driver = auto(&sandbox, &script, &one());
    script.until_asked_times("reboot Logind", 11).await;
    driver.stop().await;
    assert_eq!(reboots(&script), 11);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_reboot_is_reported_and_the_config_can_be_withdrawn() {
    let (sandbox, script) = (machine(), Script::new());
    let nothing = config("nothing");
    let mut driver = start(&sandbox, &script, &nothing, RebootPolicy::Auto);
    driver.patience = Duration::from_secs(3600);
    driver.until_on(&nothing).await;
    let before = tree(&sandbox);
    script.reboots_do_not_happen();
    driver.wants(&one());
    let report = driver
        .until("called off", |report| report.failure.is_some())
        .await;
    assert_eq!(report.phase, Phase::RebootPending);
    let code = report.failure.as_ref().unwrap().code;
    assert_eq!(code, Reason::RebootCancelled);
    driver.wants(&nothing);
    let report = driver.until_on(&nothing).await;
    assert_eq!(report.updates[0].outcome, Outcome::Withdrawn);
    assert_eq!(tree(&sandbox), before);
    driver.stop().await;
    assert_eq!(reboots(&script), 1);
}

#[tokio::test(start_paused = true)]
async fn an_agent_restart_in_the_same_boot_is_not_taken_for_a_reboot() {
    let (sandbox, script) = (machine(), Script::new());
    let driver = auto(&sandbox, &script, &one());
    script.wait_for_requests("reboot Logind").await;
    // Nothing more is written after the reboot was accepted.
    let accepted = std::fs::read(sandbox.path("/var/lib/machinist/journal")).unwrap();
    tokio::time::sleep(Duration::from_secs(50)).await;
    driver.stop().await;
    let journal = std::fs::read(sandbox.path("/var/lib/machinist/journal")).unwrap();
    assert!(journal == accepted);
    let mut driver = auto(&sandbox, &script, &one());
    let report = driver
        .until("pending", |report| report.phase == Phase::RebootPending)
        .await;
    assert!(report.unverified && report.updates.is_empty());
    script.wait_for_requests("reboot TransientUnit").await;
    driver.stop().await;
    let journal = sandbox.journal();
    assert_eq!((journal.transactions[0].boots, journal.base), (0, None));
}

#[tokio::test]
async fn shutdowns_are_inhibited_exactly_while_files_are_partly_updated() {
    let (sandbox, script) = (machine(), Script::new());
    let exchanges = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (seen, watching) = (Arc::clone(&exchanges), script.clone());
    let root = sandbox.root().with_fault(Arc::new(move |op: &FsOp| {
        // The journal is exchanged with its spare file as well.
        let ours = |path: &AbsPath| path.as_str() == "/etc/found";
        if matches!(&op.act, FsOpKind::Exchange(with) if ours(&op.path) || ours(with)) {
            seen.lock().unwrap().push(watching.locks_held());
        }
        None
    }));
    let nothing = config("nothing");
    let conduct = ReconcilerOptions {
        reboot: RebootPolicy::Ask,
        ..conduct(true)
    };
    let mut driver = Driver::on(&root, &script, nothing.desired(), conduct);
    driver.until_on(&nothing).await;
    driver.wants(&one());
    driver
        .until("pending", |report| report.phase == Phase::RebootPending)
        .await;
    let committed = exchanges.lock().unwrap().len();
    assert_eq!(script.locks_held(), 0);
    driver.wants(&nothing);
    driver.until_on(&nothing).await;
    let exchanges = exchanges.lock().unwrap().clone();
    assert!(
        committed > 0 && exchanges.len() > committed,
        "{exchanges:?}"
    );
    assert!(exchanges.iter().all(|held| *held == 1), "{exchanges:?}");
    assert_eq!(script.locks_held(), 0);
    driver.stop().await;
}
