//! The keep of a trial: repeated, or undone because its update is rolled back.

use std::{fs, io, path::Path, sync::Arc, time::Duration};

use machinist_base::reason::Reason;
use machinist_rootfs::{FsOpKind, Root};
use machinist_testkit::sandbox::Written;
use machinist_update::{
    journal::{OsTrialState, Outcome},
    os::{DeploymentId, OsProvider, ProviderStep},
    phase::Phase,
    reconciler::{RebootPolicy, ReconcilerOptions, UpdateReport},
};
use tokio::time::Instant;

use crate::{
    os::grub_machine::{BEFORE, CUSTOM, mkconfig},
    update::{
        harness::Driver,
        os_trials::{Host, options, with_arguments},
        reboots::reboots,
    },
};

const KEPT: &str = "etc/default/grub.d/zz-machinist.cfg";

/// A config that changes arguments and a file.
pub(super) fn arguments_and_file() -> Written {
    with_arguments("one", &["nosmt"]).file("/etc/app", "1\n", 0o644)
}

/// A machine that runs on a trial.
async fn host_in_trial() -> Host {
    let mut host = Host::new();
    host.until_reboot(&arguments_and_file()).await;
    host.boot();
    assert_eq!(host.grub.running(), format!("{BEFORE} nosmt"));
    host
}

/// Checks that the update is rolled back with one more reboot, and that no later boot has its arguments.
async fn is_rolled_back(mut host: Host, agent: Driver, expected: Reason) {
    host.script.until_asked_times("reboot Logind", 2).await;
    agent.stop().await;
    host.script.failed(&[]);
    host.boot();
    assert_eq!(host.grub.running(), BEFORE);
    let mut agent = host.agent(&arguments_and_file());
    let report = agent.until_failed().await;
    assert_eq!(report.failure.as_ref().unwrap().code, expected);
    assert_eq!(report.updates[0].outcome, Outcome::RolledBack);
    agent.stop().await;
    assert_eq!(host.sandbox.read("/etc/app"), None);
    assert_eq!(host.grub.read("boot/grub/custom.cfg"), CUSTOM);
    // Also if the distribution writes the menu again.
    mkconfig(&host.sandbox.path("/"), "/boot/grub/grub.cfg");
    host.boot();
    assert_eq!(
        (host.grub.running(), reboots(&host.script)),
        (BEFORE.to_owned(), 2)
    );
}

/// Whether the boot loader has the arguments of the config, and the trial is gone.
fn is_in_force(directory: &Path) -> bool {
    let read = |path: &str| fs::read_to_string(directory.join(path)).unwrap_or_default();
    read("boot/grub/grub.cfg").contains("nosmt") && read("boot/grub/custom.cfg") == CUSTOM
}

#[tokio::test(start_paused = true)]
async fn arguments_that_were_kept_before_a_crash_are_taken_back_by_an_unhealthy_boot() {
    let mut host = host_in_trial().await;
    let directory = host.sandbox.path("/");
    // The process dies before `Verified` is in the journal.
    let hook = move |_: &_| is_in_force(&directory).then(|| io::ErrorKind::Other.into());
    let root = host.sandbox.root().with_fault(Arc::new(hook));
    let how = (arguments_and_file().desired(), options(RebootPolicy::Auto));
    let agent = Driver::on_os(&root, &host.script, host.grub.agent(), how);
    let directory = host.sandbox.path("/");
    let kept = async {
        while !is_in_force(&directory) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let kept = tokio::time::timeout(Duration::from_secs(3600), kept).await;
    kept.unwrap();
    agent.stop().await;
    let trial = host.sandbox.journal().os_trial.unwrap();
    assert!(
        trial.keeps && trial.state == OsTrialState::Booted,
        "{trial:?}"
    );
    host.boot();
    assert_eq!(host.grub.running(), format!("{BEFORE} nosmt"));
    host.script.failed(&["app.service"]);
    let agent = host.agent(&arguments_and_file());
    is_rolled_back(host, agent, Reason::HealthRegressed).await;
}

/// Another program restores the former settings right after the last operation of `keep`.
#[tokio::test(start_paused = true)]
async fn arguments_that_are_not_in_force_after_they_were_kept_fail_the_update() {
    let host = host_in_trial().await;
    let directory = host.sandbox.path("/");
    let former = host.grub.read(KEPT);
    let hook = {
        let directory = directory.clone();
        move |op: &machinist_rootfs::FsOp| {
            let is_last = op.path.as_str() == "/boot/grub/custom.cfg.machinist"
                && op.act == FsOpKind::Unlink
                && is_in_force(&directory);
            if is_last {
                fs::write(directory.join(KEPT), &former).unwrap();
                mkconfig(&directory, "/boot/grub/grub.cfg");
            }
            None
        }
    };
    let provider = host
        .grub
        .agent_on(Root::open(&directory).unwrap().with_fault(Arc::new(hook)));
    let how = (arguments_and_file().desired(), options(RebootPolicy::Auto));
    let agent = Driver::on_os(&host.sandbox.root(), &host.script, provider, how);
    is_rolled_back(host, agent, Reason::OSStepFailed).await;
}

/// A machine that runs on a trial while a package manager installs a kernel, with an agent that cannot keep the trial.
async fn host_with_busy_keep() -> (Host, Driver) {
    let mut host = Host::new();
    let one = with_arguments("one", &["nosmt"]);
    host.until_reboot(&one).await;
    host.boot();
    host.grub.unpack_kernel();
    let mut agent = host.agent(&one);
    let is_reported = |report: &UpdateReport| {
        let failure = report.failure.as_ref();
        report.phase == Phase::Verifying
            && failure.is_some_and(|it| it.code == Reason::OSStepFailed && it.retryable)
    };
    agent.until("busy", is_reported).await;
    (host, agent)
}

/// For five minutes.
#[tokio::test(start_paused = true)]
async fn a_keep_waits_for_the_installation_of_a_kernel() {
    let (mut host, mut agent) = host_with_busy_keep().await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(agent.reports.borrow().phase, Phase::Verifying);
    // A grub-mkconfig of the distribution may have read it, and writes grub.cfg later.
    assert!(host.grub.read(KEPT).contains("nosmt"));
    host.grub.install_kernel();
    let report = agent.until_on(&with_arguments("one", &["nosmt"])).await;
    assert_eq!(report.updates[0].outcome, Outcome::Done);
    assert_eq!(report.failure, None);
    agent.stop().await;
    host.boot();
    assert_eq!(host.grub.running(), format!("{BEFORE} nosmt"));
}

#[tokio::test(start_paused = true)]
async fn a_keep_that_waits_too_long_is_rolled_back() {
    let mut host = Host::new();
    host.until_reboot(&arguments_and_file()).await;
    host.boot();
    host.grub.unpack_kernel();
    let agent = host.agent(&arguments_and_file());
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(host.grub.read(KEPT).contains("nosmt"));
    tokio::time::sleep(Duration::from_secs(400)).await;
    assert!(!host.grub.read(KEPT).contains("nosmt"));
    is_rolled_back(host, agent, Reason::OSStepFailed).await;
}

/// The distribution writes grub.cfg for the new kernel with another argument of its own, so that the trial differs from
/// what would be kept. Its grub-mkconfig has read the file of the kept arguments, or has begun before that was there.
#[tokio::test(start_paused = true)]
async fn a_rollback_also_takes_arguments_from_a_grub_cfg_of_the_distribution() {
    for has_read_file in [true, false] {
        let mut host = Host::new();
        let former = host.grub.read(KEPT);
        host.until_reboot(&arguments_and_file()).await;
        host.boot();
        host.grub.unpack_kernel();
        let agent = host.agent(&arguments_and_file());
        tokio::time::sleep(Duration::from_secs(60)).await;
        let written = host.grub.read(KEPT);
        assert!(written.contains("nosmt"));
        let crash_kernel =
            "GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT crashkernel=1G\"\n";
        host.sandbox
            .write("/etc/default/grub.d/kdump.cfg", crash_kernel);
        if !has_read_file {
            host.sandbox.write(&format!("/{KEPT}"), &former);
        }
        host.grub.install_kernel();
        if !has_read_file {
            host.sandbox.write(&format!("/{KEPT}"), &written);
        }
        host.script.until_asked_times("reboot Logind", 2).await;
        agent.stop().await;
        assert!(!host.grub.read(KEPT).contains("nosmt"), "{has_read_file}");
        host.boot();
        let before = BEFORE.replace("tty0", "tty0 crashkernel=1G");
        assert_eq!(host.grub.running(), before, "{has_read_file}");
        let mut agent = host.agent(&arguments_and_file());
        let report = agent.until_failed().await;
        assert_eq!(report.updates[0].outcome, Outcome::RolledBack);
        agent.stop().await;
        assert_eq!(host.grub.read("boot/grub/custom.cfg"), CUSTOM);
        // The next config can be applied.
        let two = with_arguments("two", &["a=1"]);
        host.until_reboot(&two).await;
        host.boot();
        host.agent(&two).until_on(&two).await;
        mkconfig(&host.sandbox.path("/"), "/boot/grub/grub.cfg");
        host.boot();
        assert_eq!(host.grub.running(), format!("{before} a=1"));
    }
}

#[tokio::test(start_paused = true)]
async fn the_agent_can_be_stopped_while_a_keep_waits() {
    let (host, agent) = host_with_busy_keep().await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    let begin = Instant::now();
    agent.stop().await;
    assert!(begin.elapsed() < Duration::from_secs(1));
    host.grub.install_kernel();
    let one = with_arguments("one", &["nosmt"]);
    let mut agent = host.agent(&one);
    agent.until_on(&one).await;
    agent.stop().await;
    assert_eq!(reboots(&host.script), 1);
}

#[tokio::test(start_paused = true)]
async fn a_config_that_arrives_while_a_keep_waits_is_applied_after_it() {
    let (mut host, agent) = host_with_busy_keep().await;
    let two = with_arguments("two", &["a=1"]);
    agent.wants(&two);
    tokio::time::sleep(Duration::from_secs(60)).await;
    host.grub.install_kernel();
    host.script.until_asked_times("reboot Logind", 2).await;
    agent.stop().await;
    let kept = &host.sandbox.journal().history[0];
    assert_eq!((&*kept.to, kept.outcome), ("one", Outcome::Done));
    host.boot();
    assert_eq!(host.grub.running(), format!("{BEFORE} a=1"));
    let mut agent = host.agent(&two);
    agent.until_on(&two).await;
    agent.stop().await;
}

/// The machine has lost power before the keep had an effect, and may try the deployment again.
#[tokio::test(start_paused = true)]
async fn an_interrupted_keep_ends_with_its_boot() {
    let (mut host, agent) = host_with_busy_keep().await;
    agent.stop().await;
    assert!(host.sandbox.journal().os_trial.unwrap().keeps);
    host.boot();
    assert_eq!(host.grub.running(), BEFORE);
    let options = ReconcilerOptions {
        os_boot_attempts: 2,
        ..options(RebootPolicy::Ask)
    };
    let mut agent = host.agent_with(&with_arguments("one", &["nosmt"]), options);
    let is_pending = |report: &UpdateReport| report.phase == Phase::RebootPending;
    agent.until("pending", is_pending).await;
    agent.stop().await;
    assert!(!host.sandbox.journal().os_trial.unwrap().keeps);
}

/// The process before was killed after it had unlocked the deployment, and before it could record that.
#[tokio::test(start_paused = true)]
async fn a_deployment_that_was_unlocked_without_a_record_is_locked_at_the_next_start() {
    let host = Host::new();
    let one = with_arguments("one", &["nosmt"]);
    let is_pending = |report: &UpdateReport| report.phase == Phase::RebootPending;
    let mut agent = host.agent_with(&one, options(RebootPolicy::Ask));
    agent.until("pending", is_pending).await;
    agent.stop().await;
    let trial = host.sandbox.journal().os_trial.unwrap();
    assert_eq!(trial.state, OsTrialState::Staged);
    let id = DeploymentId::new(&trial.deployment);
    host.grub.agent().unlock(&id).await.unwrap();
    assert!(host.next_entry().is_some());
    let mut agent = host.agent_with(&one, options(RebootPolicy::Ask));
    agent.until("pending", is_pending).await;
    assert_eq!(host.next_entry(), None);
    agent.stop().await;
}

/// Such as while the distribution's update-grub writes grub.cfg.
#[tokio::test(start_paused = true)]
async fn a_keep_that_fails_once_is_repeated() {
    let mut host = Host::new();
    let one = with_arguments("one", &["nosmt"]);
    host.until_reboot(&one).await;
    host.boot();
    host.grub.fails_next(ProviderStep::Keep);
    let mut agent = host.agent(&one);
    let report = agent.until_on(&one).await;
    assert_eq!(report.updates[0].outcome, Outcome::Done);
    agent.stop().await;
    host.boot();
    assert_eq!(host.grub.running(), format!("{BEFORE} nosmt"));
}
