//! The guard of a boot, and the agent next to it.

use std::{sync::Arc, time::Duration};

use machinist_base::reason::Reason;
use machinist_update::{
    crash_recovery,
    journal::{Direction, OsTrialState, Outcome},
    os::OsProvider,
    phase::Phase,
    reconciler::{DesiredConfig, RebootPolicy, Reconciler, ReconcilerOptions, UpdateReport},
    service_port::StartupState,
    store::StateStore,
};
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{
    os::grub_machine::BEFORE,
    update::{
        boots::{KUBELET, into_the_boot, one},
        harness::{Driver, boot, machine, tree},
        os_trial_attempts::twice,
        os_trials::{self, Host, with_arguments},
        reboots::reboots,
    },
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
        let conduct = ReconcilerOptions {
            reboot,
            ..conduct(true)
        };
        Self::on_os(sandbox, script, conduct, None)
    }

    /// On a host whose operating system machinist may be able to change.
    fn on_os(
        sandbox: &Sandbox,
        script: &Script,
        options: ReconcilerOptions,
        provider: Option<Arc<dyn OsProvider>>,
    ) -> Self {
        crash_recovery::recover(&StateStore::open(&sandbox.root()).unwrap()).unwrap();
        let (_, desired) = watch::channel(DesiredConfig::Unknown);
        let services = Some(script.clone());
        let (updater, _) =
            Reconciler::new(&sandbox.root(), services, Quiet, options, desired).unwrap();
        let updater = updater.with_os_provider(provider);
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

/// A machine with GRUB that has booted into a trial with two attempts, or that could not.
async fn after_the_trial(panics: bool) -> Host {
    let mut host = Host::new();
    host.until_reboot(&with_arguments("one", &["nosmt"])).await;
    if panics {
        host.grub.panics(&host.next_entry().unwrap());
    }
    host.boot();
    host
}

fn guard_of(host: &Host, attempts: u32) -> Guard {
    let options = os_trials::options(RebootPolicy::Auto);
    let options = match attempts {
        1 => options,
        _ => twice(options),
    };
    let provider: Arc<dyn OsProvider> = Arc::new(host.grub.agent());
    Guard::on_os(&host.sandbox, &host.script, options, Some(provider))
}

#[tokio::test(start_paused = true)]
async fn the_boot_guard_unlocks_an_unhealthy_trial_before_each_further_attempt() {
    let mut host = after_the_trial(false).await;
    host.script.is_at(StartupState::Maintenance);
    let guard = guard_of(&host, 2);
    host.script.until_asked_times("reboot Logind", 2).await;
    guard.stop().await;
    assert!(host.next_entry().is_some(), "it reboots into the trial");
    host.boot();
    assert_eq!(host.grub.running(), format!("{BEFORE} nosmt"));
    // The last attempt: it reboots into the previous deployment.
    let guard = guard_of(&host, 2);
    host.script.until_asked_times("reboot Logind", 3).await;
    guard.stop().await;
    assert_eq!(host.next_entry(), None);
    host.script.is_at(StartupState::Finished);
    host.boot();
    assert_eq!(host.grub.running(), BEFORE);
    let report = guard_of(&host, 2).ends().await;
    assert_eq!(report.updates[0].outcome, Outcome::RolledBack);
    assert_eq!(reboots(&host.script), 3);
}

#[tokio::test(start_paused = true)]
async fn the_boot_guard_keeps_a_healthy_trial_and_leaves_an_unhealthy_one() {
    for healthy in [true, false] {
        let mut host = after_the_trial(false).await;
        if !healthy {
            host.script.failed(&["app.service"]);
        }
        let guard = guard_of(&host, 1);
        let expected = match healthy {
            true => {
                let report = guard.ends().await;
                assert_eq!(report.updates[0].outcome, Outcome::Done);
                format!("{BEFORE} nosmt")
            }
            false => {
                host.script.until_asked_times("reboot Logind", 2).await;
                guard.stop().await;
                BEFORE.to_owned()
            }
        };
        assert_eq!(host.next_entry(), None);
        host.boot();
        assert_eq!(host.grub.running(), expected);
    }
}

/// In the boot of the previous deployment there is nothing to judge, and the agent unlocks the trial.
#[tokio::test(start_paused = true)]
async fn the_boot_guard_requests_no_reboot_after_a_trial_that_fell_back() {
    let host = after_the_trial(true).await;
    assert_eq!(host.grub.running(), BEFORE);
    let report = guard_of(&host, 2).ends().await;
    assert!(report.unverified);
    assert_eq!((reboots(&host.script), host.next_entry()), (1, None));
    let trial = host.sandbox.journal().os_trial.unwrap();
    assert_eq!(trial.state, OsTrialState::Staged);
    let options = twice(os_trials::options(RebootPolicy::Auto));
    let agent = host.agent_with(&with_arguments("one", &["nosmt"]), options);
    host.script.until_asked_times("reboot Logind", 2).await;
    agent.stop().await;
    assert!(host.next_entry().is_some());
}
