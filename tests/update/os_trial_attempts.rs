//! The attempts of a trial: which boots count, and that each one but the first is unlocked again.

use std::{
    fs, io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use machinist_base::reason::Reason;
use machinist_rootfs::{FsOp, Root};
use machinist_testkit::sandbox::{Written, config};
use machinist_update::{
    journal::{OsTrialState, Outcome},
    phase::Phase,
    reconciler::{RebootPolicy, ReconcilerOptions, UpdateReport},
    store::{self, StateStore},
};

use crate::{
    os::{grub_machine::BEFORE, ostree_files::Layout, ostree_machine},
    update::{
        harness::Driver,
        os_trials::{Host, options, with_arguments},
        os_trials_on_ostree,
        reboots::reboots,
    },
};

/// As with `update.bootAttempts: 2`.
pub(super) fn twice(options: ReconcilerOptions) -> ReconcilerOptions {
    ReconcilerOptions {
        os_boot_attempts: 2,
        ..options
    }
}

/// Runs the agent, which may try the deployment twice, until it has requested a reboot into it.
async fn until_armed(host: &Host, wanted: &Written) {
    let before = reboots(&host.script);
    let agent = host.agent_with(wanted, twice(options(RebootPolicy::Auto)));
    host.script
        .until_asked_times("reboot Logind", before + 1)
        .await;
    agent.stop().await;
    assert!(host.next_entry().is_some());
}

#[tokio::test]
async fn with_two_attempts_a_trial_that_fell_back_is_unlocked_once_more() {
    let one = with_arguments("one", &["nosmt"]);
    let mut host = Host::new();
    until_armed(&host, &one).await;
    host.grub.panics(&host.next_entry().unwrap());
    host.boot();
    assert_eq!(host.grub.running(), BEFORE);
    assert_eq!(host.next_entry(), None);
    until_armed(&host, &one).await;
    host.boot();
    assert_eq!(host.grub.running(), BEFORE);
    let mut agent = host.agent_with(&one, twice(options(RebootPolicy::Auto)));
    let report = agent.until_failed().await;
    let code = report.failure.as_ref().unwrap().code;
    assert_eq!(code, Reason::OSBootFailed);
    agent.stop().await;
    assert_eq!((host.next_entry(), reboots(&host.script)), (None, 2));
}

#[tokio::test(start_paused = true)]
async fn with_two_attempts_a_booted_trial_is_unlocked_once_more() {
    let one = with_arguments("one", &["nosmt"]);
    let mut host = Host::new();
    until_armed(&host, &one).await;
    host.boot();
    assert_eq!(host.next_entry(), None);
    host.script.failed(&["app.service"]);
    until_armed(&host, &one).await;
    host.script.failed(&[]);
    host.boot();
    let after = format!("{BEFORE} nosmt");
    assert_eq!(host.grub.running(), after);
    let mut agent = host.agent_with(&one, twice(options(RebootPolicy::Auto)));
    let report = agent.until_on(&one).await;
    assert_eq!(report.updates[0].outcome, Outcome::Done);
    agent.stop().await;
    host.boot();
    assert_eq!((host.grub.running(), reboots(&host.script)), (after, 2));
}

/// The machine on OSTree, whose agent may try a deployment twice, until it has requested a reboot.
async fn until_ostree_reboot(host: &os_trials_on_ostree::Host, wanted: &Written) {
    let before = reboots(&host.script);
    let options = twice(os_trials_on_ostree::options(Layout::Debian));
    let (root, provider) = (host.sandbox.root(), host.ostree.agent());
    let agent = Driver::on_os(&root, &host.script, provider, (wanted.desired(), options));
    host.script
        .until_asked_times("reboot Logind", before + 1)
        .await;
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn with_two_attempts_an_ostree_deployment_that_fell_back_is_tried_again() {
    let one = with_arguments("one", &["nosmt"]);
    let mut host = os_trials_on_ostree::Host::new();
    until_ostree_reboot(&host, &one).await;
    let trial = host.sandbox.journal().os_trial.unwrap();
    host.ostree.panics(&trial.deployment);
    for attempt in 1..=2 {
        host.reboot();
        assert_eq!(host.ostree.running(), ostree_machine::BEFORE);
        if attempt == 1 {
            until_ostree_reboot(&host, &one).await;
            let trial = host.sandbox.journal().os_trial.unwrap();
            assert_eq!(trial.state, OsTrialState::Armed);
        }
    }
    let failure = host.until_failed(&one).await;
    assert_eq!(failure, Reason::OSBootFailed);
    assert_eq!(reboots(&host.script), 2);
}

#[tokio::test(start_paused = true)]
async fn with_two_attempts_a_booted_ostree_deployment_is_tried_again() {
    let one = with_arguments("one", &["nosmt"]);
    let mut host = os_trials_on_ostree::Host::new();
    until_ostree_reboot(&host, &one).await;
    host.reboot();
    host.script.failed(&["app.service"]);
    until_ostree_reboot(&host, &one).await;
    host.script.failed(&[]);
    host.reboot();
    let after = format!("{} nosmt", ostree_machine::BEFORE);
    assert_eq!(host.ostree.running(), after);
    host.until_on(&one).await;
    host.reboot();
    assert_eq!((host.ostree.running(), reboots(&host.script)), (after, 2));
}

/// Until an operator approves the reboot, others may reboot the machine: the attempts begin with the trial.
#[tokio::test]
async fn a_reboot_between_staging_and_unlocking_uses_up_no_attempt() {
    let one = with_arguments("one", &["nosmt"]).file("/etc/app", "1\n", 0o644);
    let mut host = Host::new();
    for _ in 0..2 {
        let mut agent = host.agent_with(&one, options(RebootPolicy::Ask));
        let pending = agent.until("pending", |report| report.phase == Phase::RebootPending);
        pending.await;
        agent.stop().await;
        host.boot();
        assert_eq!(
            (host.grub.running(), host.next_entry()),
            (BEFORE.to_owned(), None)
        );
        assert_eq!(host.sandbox.read("/etc/app").unwrap(), "1\n");
    }
    let mut agent = host.agent_with(&one, options(RebootPolicy::Ask));
    agent
        .until("pending", |report| report.phase == Phase::RebootPending)
        .await;
    assert_eq!(host.sandbox.journal().transactions[0].boots, 0);
    agent.confirm();
    host.script.wait_for_requests("reboot Logind").await;
    agent.stop().await;
    host.grub.panics(&host.next_entry().unwrap());
    host.boot();
    // The first of two attempts.
    until_armed(&host, &one).await;
    assert_eq!(host.sandbox.journal().transactions[0].boots, 1);
}

/// A machine whose deployment is staged, with an agent that waits for the approval of the reboot.
async fn until_pending(wanted: &Written) -> (Host, Driver) {
    let host = Host::new();
    let mut agent = host.agent_with(wanted, options(RebootPolicy::Ask));
    agent
        .until("pending", |report| report.phase == Phase::RebootPending)
        .await;
    (host, agent)
}

const ENVIRONMENT: &str = "boot/grub/grubenv";

#[tokio::test(start_paused = true)]
async fn a_deployment_that_cannot_be_unlocked_for_a_moment_is_unlocked_later() {
    let one = with_arguments("one", &["nosmt"]);
    let (host, agent) = until_pending(&one).await;
    let environment = host.grub.read(ENVIRONMENT);
    fs::write(host.sandbox.path(ENVIRONMENT), "damaged").unwrap();
    agent.confirm();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(reboots(&host.script), 0);
    fs::write(host.sandbox.path(ENVIRONMENT), environment).unwrap();
    // By the first method: nothing has been requested before.
    host.script.wait_for_requests("reboot Logind").await;
    agent.stop().await;
    assert!(host.next_entry().is_some());
    let trial = host.sandbox.journal().os_trial.unwrap();
    assert_eq!(trial.state, OsTrialState::Armed);
}

/// Nothing has been requested, so that the attempts at a reboot do not end.
#[tokio::test(start_paused = true)]
async fn a_deployment_that_cannot_be_unlocked_waits_for_the_boot_loader() {
    let one = with_arguments("one", &["nosmt"]).file("/etc/app", "1\n", 0o644);
    let (host, mut agent) = until_pending(&one).await;
    fs::write(host.sandbox.path(ENVIRONMENT), "damaged").unwrap();
    agent.confirm();
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    let report = agent.until_failed().await;
    let failure = report.failure.as_ref().unwrap();
    assert_eq!(failure.code, Reason::OSStepFailed, "{failure:?}");
    assert!(failure.retryable);
    assert_eq!(reboots(&host.script), 0);
    // The config is withdrawn.
    agent.wants(&config("base"));
    agent
        .until("withdrawn", |report| report.phase == Phase::Idle)
        .await;
    agent.stop().await;
    assert_eq!(host.sandbox.read("/etc/app"), None);
    assert_eq!(reboots(&host.script), 0);
}

/// A process ended after it unlocked the deployment and before it recorded that.
#[tokio::test(start_paused = true)]
async fn a_deployment_that_was_unlocked_without_a_record_is_locked_at_the_start() {
    let one = with_arguments("one", &["nosmt"]);
    let host = Host::new();
    until_armed(&host, &one).await;
    let mut journal = host.sandbox.journal();
    journal.os_trial.as_mut().unwrap().state = OsTrialState::Staged;
    let store = StateStore::open(&host.sandbox.root()).unwrap();
    store.save(&journal).unwrap();
    drop(store);
    let mut agent = host.agent_with(&one, options(RebootPolicy::Never));
    agent
        .until("pending", |report| report.phase == Phase::RebootPending)
        .await;
    agent.stop().await;
    assert_eq!(host.next_entry(), None);
}

/// A power cut between the record and the lock must not count as a failed boot of the deployment.
#[tokio::test(start_paused = true)]
async fn the_journal_records_a_lock_before_the_boot_loader_has_it() {
    let host = Host::new();
    host.script
        .fails("reboot Logind", Reason::RebootInhibited, true);
    let directory = host.sandbox.path("/");
    let states = Arc::new(Mutex::new(Vec::new()));
    let hook = {
        let (states, directory) = (Arc::clone(&states), directory.clone());
        move |op: &FsOp| {
            let block = fs::read_to_string(directory.join("boot/grub/grubenv"));
            let is_unlocked = block.is_ok_and(|block| block.contains("next_entry=machinist-"));
            if is_unlocked && op.path.as_str() == "/boot/grub/grubenv.machinist" {
                let journal = store::peek(&Root::open(&directory).unwrap()).unwrap();
                states.lock().unwrap().push(journal.os_trial.unwrap().state);
            }
            None
        }
    };
    let root = Root::open(&directory).unwrap().with_fault(Arc::new(hook));
    let one = with_arguments("one", &["nosmt"]);
    let how = (one.desired(), options(RebootPolicy::Auto));
    let provider = host.grub.agent_on(root);
    let mut agent = Driver::on_os(&host.sandbox.root(), &host.script, provider, how);
    let is_inhibited = |report: &UpdateReport| report.failure.is_some();
    agent.until("the inhibitor", is_inhibited).await;
    agent.stop().await;
    let states = states.lock().unwrap();
    assert!(!states.is_empty());
    let is_staged = |state: &OsTrialState| *state == OsTrialState::Staged;
    assert!(states.iter().all(is_staged), "{states:?}");
}

/// The disk becomes read-only for the journal after the boot loader has got the request.
#[tokio::test(start_paused = true)]
async fn a_trial_is_locked_again_if_the_journal_cannot_be_written() {
    let host = Host::new();
    let has_failed = Arc::new(AtomicBool::new(false));
    let hook = {
        let (directory, has_failed) = (host.sandbox.path("/"), Arc::clone(&has_failed));
        move |op: &FsOp| {
            let block = fs::read_to_string(directory.join("boot/grub/grubenv"));
            let is_unlocked = block.is_ok_and(|block| block.contains("next_entry=machinist-"));
            let is_state = op.path.as_str().starts_with("/var/lib/machinist");
            let fails = is_unlocked && is_state;
            has_failed.fetch_or(fails, Ordering::Relaxed);
            fails.then(|| io::ErrorKind::ReadOnlyFilesystem.into())
        }
    };
    let root = host.sandbox.root().with_fault(Arc::new(hook));
    let how = (
        with_arguments("one", &["nosmt"]).desired(),
        options(RebootPolicy::Auto),
    );
    let agent = Driver::on_os(&root, &host.script, host.grub.agent(), how);
    let locked = async {
        while !has_failed.load(Ordering::Relaxed) || host.next_entry().is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let locked = tokio::time::timeout(Duration::from_secs(60), locked).await;
    locked.unwrap();
    agent.stop().await;
}
