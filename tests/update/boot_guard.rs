//! The guard of a boot, and the agent next to it.

use std::{sync::Arc, time::Duration};

use machinist_base::reason::Reason;
use machinist_update::{
    crash_recovery,
    journal::{Direction, Outcome},
    phase::Phase,
    reconciler::{DesiredConfig, RebootPolicy, Reconciler, ReconcilerOptions, UpdateReport},
    service_port::StartupState,
    store::StateStore,
};
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::update::{
    boots::{KUBELET, into_the_boot, one},
    harness::{Driver, boot, machine, tree},
};
use machinist_testkit::{
    sandbox::{Quiet, Sandbox, conduct, config},
    scripted_services::Script,
};

/// What `machinist guard` runs in a boot.
struct Guard {
    stop: CancellationToken,
    task: JoinHandle<Arc<UpdateReport>>,
}

impl Guard {
    /// As in a boot: recovery has run before.
    fn start(sandbox: &Sandbox, script: &Script, reboot: RebootPolicy) -> Self {
        crash_recovery::recover(&StateStore::open(&sandbox.root()).unwrap()).unwrap();
        let (_, desired) = watch::channel(DesiredConfig::Unknown);
        let conduct = ReconcilerOptions {
            reboot,
            ..conduct(true)
        };
        let services = Some(script.clone());
        let (updater, _) =
            Reconciler::new(&sandbox.root(), services, Quiet, conduct, desired).unwrap();
        let stop = CancellationToken::new();
        let judging = updater.judge_boot(stop.clone());
        let task = tokio::spawn(async move { judging.await.unwrap() });
        Self { stop, task }
    }

    async fn ends(self) -> Arc<UpdateReport> {
        let ended = tokio::time::timeout(Duration::from_secs(3600), self.task);
        ended.await.unwrap().unwrap()
    }

    /// systemd stops it, as at a shutdown.
    async fn stop(self) {
        self.stop.cancel();
        self.ends().await;
    }
}

async fn beside(sandbox: &Sandbox, script: &Script, desired: DesiredConfig) -> Driver {
    let mut driver = Driver::beside_the_guard(sandbox, script, desired, conduct(true))
        .await
        .unwrap();
    driver.patience = Duration::from_secs(3600);
    driver
}

#[tokio::test(start_paused = true)]
async fn the_boot_guard_alone_rolls_back_a_machine_that_stays_unhealthy() {
    let (sandbox, script) = (machine(), Script::new());
    let before = tree(&sandbox);
    into_the_boot(&sandbox, &script, "boot-2", 1).await;
    script.is_at(StartupState::Maintenance);
    let guard = Guard::start(&sandbox, &script, RebootPolicy::Auto);
    script.until_asked_times("reboot Logind", 2).await;
    guard.stop().await;
    boot(&sandbox, "boot-3");
    let guard = Guard::start(&sandbox, &script, RebootPolicy::Auto);
    script.until_asked_times("reboot Logind", 3).await;
    assert_eq!(tree(&sandbox), before);
    guard.stop().await;
    boot(&sandbox, "boot-4");
    let report = Guard::start(&sandbox, &script, RebootPolicy::Auto)
        .ends()
        .await;
    assert_eq!(report.updates[0].outcome, Outcome::RolledBack);
    assert_eq!(report.updates[0].reason, Some(Reason::HealthRegressed));
    assert_eq!(sandbox.journal().transactions, []);
    // In emergency mode or not, neither the guard nor the agent requests another reboot.
    boot(&sandbox, "boot-5");
    Guard::start(&sandbox, &script, RebootPolicy::Auto)
        .ends()
        .await;
    let mut driver = beside(&sandbox, &script, one().desired()).await;
    driver.until_failed().await;
    driver.stop().await;
    assert_eq!(script.asked(), ["reboot Logind"; 3]);
}

#[tokio::test(start_paused = true)]
async fn a_boot_guard_killed_at_any_point_is_resumed_by_the_next() {
    let (sandbox, script) = (machine(), Script::new());
    let before = tree(&sandbox);
    into_the_boot(&sandbox, &script, "boot-2", 1).await;
    script.unit_is(KUBELET, "failed");
    for _ in 0..3 {
        let guard = Guard::start(&sandbox, &script, RebootPolicy::Auto);
        tokio::time::sleep(Duration::from_secs(20)).await;
        guard.task.abort();
        let _ = guard.task.await;
    }
    assert_eq!(sandbox.journal().transactions[0].boots, 1);
    let guard = Guard::start(&sandbox, &script, RebootPolicy::Auto);
    script.until_asked_times("reboot Logind", 2).await;
    guard.stop().await;
    boot(&sandbox, "boot-3");
    let guard = Guard::start(&sandbox, &script, RebootPolicy::Auto);
    script.until_asked_times("reboot Logind", 3).await;
    // The power is cut while the rollback waits for its reboot: recovery finds it in the journal.
    guard.task.abort();
    let _ = guard.task.await;
    boot(&sandbox, "boot-4");
    let report = Guard::start(&sandbox, &script, RebootPolicy::Auto)
        .ends()
        .await;
    assert_eq!(report.updates[0].outcome, Outcome::RolledBack);
    assert_eq!(tree(&sandbox), before);
    assert_eq!(script.asked().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_agent_waits_and_reports_while_the_boot_guard_checks_health() {
    let (sandbox, script) = (machine(), Script::new());
    into_the_boot(&sandbox, &script, "boot-2", 1).await;
    script.unit_is(KUBELET, "activating");
    let guard = Guard::start(&sandbox, &script, RebootPolicy::Auto);
    let two = config("two").file("/etc/other", "two\n", 0o644);
    let mut driver = beside(&sandbox, &script, two.desired()).await;
    let report = driver
        .until("the guard's report", |report| report.failure.is_some())
        .await;
    assert_eq!((report.phase, report.unverified), (Phase::Verifying, true));
    let failure = report.failure.as_ref().unwrap();
    assert_eq!(
        failure.message,
        "kubelet.service is activating, but was running before"
    );
    assert_eq!(report.config.desired.as_ref().unwrap().name, "two");
    assert_eq!(sandbox.read("/etc/other"), None);
    script.unit_is(KUBELET, "active");
    let judged = guard.ends().await;
    assert_eq!(judged.updates[0].outcome, Outcome::Done);
    assert!(!judged.unverified);
    // The config that was requested meanwhile.
    script.until_asked_times("reboot Logind", 2).await;
    assert_eq!(sandbox.read("/etc/other").unwrap(), "two\n");
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_state_lock_held_by_another_process_fails_the_agent_start() {
    let sandbox = machine();
    let store = StateStore::open(&sandbox.root()).unwrap();
    let script = Script::new();
    let start = || Driver::beside_the_guard(&sandbox, &script, one().desired(), conduct(true));
    assert!(start().await.err().unwrap().is_locked());
    drop(store);
    start().await.unwrap().stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_started_while_the_boot_guard_ends_waits_for_the_lock() {
    let sandbox = machine();
    // Its verdict is in the journal, and nothing is pending.
    let store = StateStore::open(&sandbox.root()).unwrap();
    let ends = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(2)).await;
        drop(store);
    });
    let script = Script::new();
    let begun = Driver::beside_the_guard(&sandbox, &script, one().desired(), conduct(true));
    let driver = begun.await.unwrap();
    ends.await.unwrap();
    script.wait_for_requests("reboot Logind").await;
    driver.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_boot_guard_ignores_an_update_committed_in_this_boot() {
    let (sandbox, script) = (machine(), Script::new());
    let driver = Driver::conducted(&sandbox, &script, one().desired(), conduct(true));
    script.wait_for_requests("reboot Logind").await;
    driver.stop().await;
    // The guard was started by hand in the same boot.
    let report = Guard::start(&sandbox, &script, RebootPolicy::Auto)
        .ends()
        .await;
    assert!(report.unverified);
    assert_eq!(script.asked(), ["reboot Logind"]);
}

#[tokio::test(start_paused = true)]
async fn with_manual_reboots_the_boot_guard_restores_files_and_exits() {
    let (sandbox, script) = (machine(), Script::new());
    let before = tree(&sandbox);
    into_the_boot(&sandbox, &script, "boot-2", 1).await;
    script.is_at(StartupState::Maintenance);
    let report = Guard::start(&sandbox, &script, RebootPolicy::Ask)
        .ends()
        .await;
    assert_eq!(
        report.failure.as_ref().unwrap().code,
        Reason::HealthRegressed
    );
    assert_eq!(tree(&sandbox), before);
    let journal = sandbox.journal();
    assert_eq!(journal.transactions[0].direction, Direction::Undo);
    assert_eq!(script.asked(), ["reboot Logind"]);
    boot(&sandbox, "boot-3");
    Guard::start(&sandbox, &script, RebootPolicy::Ask)
        .ends()
        .await;
    assert_eq!(sandbox.journal().transactions, []);
}
