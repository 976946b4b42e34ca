//! Soft reboots of a machine with a trial: they restart userspace and not the kernel, so that no boot loader runs.

use std::{sync::Arc, time::Duration};

use machinist_plan::Policies;
use machinist_update::{
    boot_id,
    journal::{OsTrialState, Outcome},
    phase::Phase,
    reconciler::{RebootPolicy, ReconcilerOptions},
};

use crate::{
    os::grub_machine::BEFORE,
    update::{
        boots::KUBELET,
        harness::Driver,
        os_trial_keep::arguments_and_file,
        os_trials::{Host, options},
    },
};

/// As the agent starts: it first asks systemd which userspace is running.
async fn soft_agent(host: &Host, reboot: RebootPolicy) -> Driver {
    boot_id::record_userspace(&host.sandbox.root(), &host.script).await;
    let options = ReconcilerOptions {
        policies: Arc::new(Policies::default().with_soft_reboots(true)),
        ..options(reboot)
    };
    let mut agent = host.agent_with(&arguments_and_file(), options);
    agent.patience = Duration::from_secs(3600);
    agent
}

/// A machine that another program reboots softly, after the agent has requested its own reboot or waits for an approval.
async fn soft_rebooted(reboot: RebootPolicy) -> Host {
    let host = Host::new();
    host.script.userspace_is(100, Some(0));
    let mut first = soft_agent(&host, reboot).await;
    first
        .until("pending", |report| report.phase == Phase::RebootPending)
        .await;
    if reboot == RebootPolicy::Auto {
        host.script.until_reboot().await;
    }
    first.stop().await;
    host.script.userspace_is(200, Some(1));
    host
}

/// The agent reboots into the trial by this method, which is another one than before in the boot of the same kernel.
async fn is_kept_after_the_next_boot(mut host: Host, method: &str) {
    let last = soft_agent(&host, RebootPolicy::Auto).await;
    host.script.wait_for_requests(method).await;
    last.stop().await;
    assert!(host.next_entry().is_some());
    host.boot();
    assert_eq!(host.grub.running(), format!("{BEFORE} nosmt"));
    let mut last = soft_agent(&host, RebootPolicy::Auto).await;
    let report = last.until_on(&arguments_and_file()).await;
    assert_eq!(report.updates[0].outcome, Outcome::Done);
    last.stop().await;
    assert!(
        !host
            .script
            .asked()
            .iter()
            .any(|asked| asked.contains("soft"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_soft_reboot_by_another_program_leaves_a_staged_trial_staged() {
    let host = soft_rebooted(RebootPolicy::Ask).await;
    let mut waiting = soft_agent(&host, RebootPolicy::Ask).await;
    waiting
        .until("pending", |report| report.phase == Phase::RebootPending)
        .await;
    waiting.stop().await;
    let journal = host.sandbox.journal();
    assert_eq!(journal.os_trial.unwrap().state, OsTrialState::Staged);
    assert_eq!(journal.transactions[0].boots, 0);
    assert_eq!(host.next_entry(), None);
    is_kept_after_the_next_boot(host, "reboot Logind").await;
}

#[tokio::test(start_paused = true)]
async fn a_soft_reboot_by_another_program_locks_an_armed_trial_again() {
    let host = soft_rebooted(RebootPolicy::Auto).await;
    assert!(host.next_entry().is_some());
    // The operator has taken the decision over: the next reboot is not machinist's.
    let mut waiting = soft_agent(&host, RebootPolicy::Ask).await;
    waiting
        .until("pending", |report| report.phase == Phase::RebootPending)
        .await;
    waiting.stop().await;
    let journal = host.sandbox.journal();
    let trial = journal.os_trial.unwrap();
    // Nothing has bypassed the boot loader: the kernel still runs.
    assert_eq!((trial.state, trial.bypassed), (OsTrialState::Staged, 0));
    assert_eq!(journal.transactions[0].boots, 0);
    assert_eq!(host.next_entry(), None);
    is_kept_after_the_next_boot(host, "reboot TransientUnit").await;
}

#[tokio::test(start_paused = true)]
async fn a_booted_trial_is_judged_after_a_soft_reboot_by_another_program() {
    let mut host = soft_rebooted(RebootPolicy::Auto).await;
    host.boot();
    let after = format!("{BEFORE} nosmt");
    assert_eq!(host.grub.running(), after);
    host.script.unit_is(KUBELET, "activating");
    let mut judging = soft_agent(&host, RebootPolicy::Auto).await;
    judging
        .until("verifying", |report| report.phase == Phase::Verifying)
        .await;
    judging.stop().await;
    let trial = host.sandbox.journal().os_trial.unwrap();
    assert_eq!(trial.state, OsTrialState::Booted);
    host.script.userspace_is(300, Some(2));
    host.script.unit_is(KUBELET, "active");
    let mut last = soft_agent(&host, RebootPolicy::Auto).await;
    let report = last.until_on(&arguments_and_file()).await;
    assert_eq!(report.updates[0].outcome, Outcome::Done);
    last.stop().await;
    host.boot();
    assert_eq!(host.grub.running(), after);
    assert_eq!(host.script.asked(), ["reboot Logind"]);
}
