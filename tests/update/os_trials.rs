//! Updates that change kernel arguments, on a machine with GRUB: real files, a simulated boot loader.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use machinist_base::reason::Reason;
use machinist_plan::{HostKind, OsCapabilities};
use machinist_testkit::{
    sandbox::{Quiet, Sandbox, Written, conduct, config},
    scripted_services::Script,
};
use machinist_update::{
    journal::Outcome,
    os::ProviderStep,
    phase::Phase,
    reconciler::{RebootPolicy, Reconciler, ReconcilerOptions},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    os::grub_machine::{BEFORE, CUSTOM, GrubMachine, Initrd},
    update::{
        harness::{Driver, boot, machine},
        reboots::reboots,
    },
};

/// A machine that boots through GRUB, and its service manager.
pub(super) struct Host {
    pub(super) sandbox: Sandbox,
    pub(super) grub: GrubMachine,
    pub(super) script: Script,
    boots: u32,
}

pub(super) fn with_arguments(name: &str, arguments: &[&str]) -> Written {
    let mut wanted = config(name);
    wanted.0.kernel_arguments = arguments.iter().map(|one| (*one).to_owned()).collect();
    wanted
}

pub(super) fn options(reboot: RebootPolicy) -> ReconcilerOptions {
    let mut options = ReconcilerOptions {
        reboot,
        ..conduct(true)
    };
    options.capabilities.os = OsCapabilities {
        kernel_arguments: true,
        ..OsCapabilities::without_provider(HostKind::Packages)
    };
    options
}

impl Host {
    pub(super) fn new() -> Self {
        let sandbox = machine();
        let grub = GrubMachine::new(&sandbox.path("/"), Initrd::Always);
        Self {
            sandbox,
            grub,
            script: Script::new(),
            boots: 1,
        }
    }

    pub(super) fn agent_with(&self, wanted: &Written, options: ReconcilerOptions) -> Driver {
        let root = self.sandbox.root();
        let provider = self.grub.agent();
        Driver::on_os(&root, &self.script, provider, (wanted.desired(), options))
    }

    pub(super) fn agent(&self, wanted: &Written) -> Driver {
        self.agent_with(wanted, options(RebootPolicy::Auto))
    }

    /// Boots through the boot loader.
    pub(super) fn boot(&mut self) {
        self.grub.boot();
        self.kexec();
    }

    /// Boots the running kernel again, without the boot loader.
    fn kexec(&mut self) {
        self.boots += 1;
        boot(&self.sandbox, &format!("boot-{}", self.boots));
    }

    /// The entry that the next boot enters once.
    pub(super) fn next_entry(&self) -> Option<String> {
        let block = self.grub.read("boot/grub/grubenv");
        let line = block
            .lines()
            .find_map(|line| line.strip_prefix("next_entry="));
        line.filter(|entry| !entry.is_empty()).map(str::to_owned)
    }

    /// Runs the agent until it has requested the next reboot.
    pub(super) async fn until_reboot(&self, wanted: &Written) {
        let before = reboots(&self.script);
        let agent = self.agent(wanted);
        self.script
            .until_asked_times("reboot Logind", before + 1)
            .await;
        agent.stop().await;
    }

    /// Runs the agent until the file operation at which power is lost. Returns false if it ends before that.
    async fn until_power_cut(&self, wanted: &Written, operations: usize) -> bool {
        let (root, done) = self.grub.root_until(operations);
        let is_cut = || done.load(Ordering::Relaxed) > operations;
        let before = reboots(&self.script);
        let (_keep, desired) = watch::channel(wanted.desired());
        let options = options(RebootPolicy::Auto);
        let services = Some(self.script.clone());
        let Ok((reconciler, reports)) = Reconciler::new(&root, services, Quiet, options, desired)
        else {
            return true;
        };
        let provider = self.grub.agent_on(root.clone());
        let reconciler = reconciler.with_os_provider(Some(Arc::new(provider)));
        let stop = CancellationToken::new();
        let run = tokio::spawn(reconciler.run(stop.clone()));
        let is_over = || {
            let report = reports.borrow();
            let is_current = report.config.current.as_ref().map(|name| name.digest)
                == Some(machinist_ignition::digest(&wanted.0));
            is_current && report.phase == Phase::Idle && !report.unverified
        };
        while !is_cut() && !is_over() && reboots(&self.script) == before && !run.is_finished() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        stop.cancel();
        // It cannot write any more.
        let _ = run.await;
        is_cut()
    }

    /// Runs the agent and boots the machine whenever it asks for that, until it is on the config or has failed.
    async fn settle(&mut self, wanted: &Written) -> Phase {
        for _ in 0..5 {
            let before = reboots(&self.script);
            let agent = self.agent(wanted);
            let mut phase = None;
            while phase.is_none() && reboots(&self.script) == before {
                tokio::time::sleep(Duration::from_millis(2)).await;
                let report = agent.reports.borrow().clone();
                let is_over = report.phase == Phase::Failed
                    || (report.phase == Phase::Idle && report.config.current.is_some());
                phase = (is_over && !report.unverified).then_some(report.phase);
            }
            agent.stop().await;
            if let Some(phase) = phase {
                return phase;
            }
            self.boot();
        }
        panic!("the machine reboots again and again");
    }

    /// Applies a config with one reboot.
    pub(super) async fn applied(&mut self, wanted: &Written) {
        self.until_reboot(wanted).await;
        self.boot();
        let mut agent = self.agent(wanted);
        let report = agent.until_on(wanted).await;
        assert_eq!(report.updates[0].outcome, Outcome::Done);
        agent.stop().await;
    }
}

#[tokio::test]
async fn kernel_arguments_are_tried_by_one_boot_and_then_kept() {
    let mut host = Host::new();
    let one = with_arguments("one", &["nosmt", "\"a=b c\""]).file("/etc/app", "1\n", 0o644);
    host.until_reboot(&one).await;
    assert!(host.next_entry().is_some());
    assert_eq!(host.grub.running(), BEFORE);
    host.boot();
    let after = format!("{BEFORE} nosmt \"a=b c\"");
    assert_eq!(host.grub.running(), after);
    let mut agent = host.agent(&one);
    agent.until_on(&one).await;
    agent.stop().await;
    assert_eq!(host.grub.read("boot/grub/custom.cfg"), CUSTOM);
    for _ in 0..2 {
        host.boot();
        assert_eq!(host.grub.running(), after);
    }
    // The order counts, and what leaves the config is removed. What the host has by itself stays.
    host.applied(&with_arguments("two", &["a=1", "\"a=b c\"", "quiet"]))
        .await;
    assert_eq!(host.grub.running(), format!("{BEFORE} a=1 \"a=b c\""));
    let none = with_arguments("none", &[]);
    host.applied(&none).await;
    host.boot();
    assert_eq!(host.grub.running(), BEFORE);
    assert_eq!(reboots(&host.script), 3);
}

#[tokio::test]
async fn a_boot_that_never_reaches_userspace_rolls_the_update_back_once() {
    for with_file in [false, true] {
        let mut host = Host::new();
        let mut one = with_arguments("one", &["init=/bin/false"]);
        if with_file {
            one = one.file("/etc/app", "1\n", 0o644);
        }
        host.until_reboot(&one).await;
        host.grub.panics(&host.next_entry().unwrap());
        host.boot();
        assert_eq!(host.grub.running(), BEFORE);
        let mut agent = host.agent(&one);
        if with_file {
            // The boot has read the file.
            host.script.until_asked_times("reboot Logind", 2).await;
            agent.stop().await;
            host.boot();
            agent = host.agent(&one);
        }
        let report = agent.until_failed().await;
        let failure = report.failure.as_ref().unwrap();
        assert_eq!(failure.code, Reason::OSBootFailed);
        assert!(!failure.retryable);
        assert_eq!(report.updates[0].outcome, Outcome::RolledBack);
        assert_eq!(host.sandbox.read("/etc/app"), None);
        assert_eq!(host.grub.read("boot/grub/custom.cfg"), CUSTOM);
        agent.stop().await;
        // It is not tried again, but the next config is.
        let mut agent = host.agent(&one);
        agent.until_failed().await;
        agent.stop().await;
        assert_eq!(reboots(&host.script), 1 + usize::from(with_file));
        host.applied(&with_arguments("two", &["nosmt"])).await;
        assert_eq!(host.grub.running(), format!("{BEFORE} nosmt"));
    }
}

#[tokio::test]
async fn a_reboot_by_another_program_is_no_attempt() {
    let mut host = Host::new();
    let one = with_arguments("one", &["nosmt"]);
    for _ in 0..3 {
        let mut agent = host.agent_with(&one, options(RebootPolicy::Ask));
        agent
            .until("pending", |report| report.phase == Phase::RebootPending)
            .await;
        agent.stop().await;
        assert_eq!(host.next_entry(), None);
        host.boot();
        assert_eq!(host.grub.running(), BEFORE);
    }
    host.applied(&one).await;
    assert_eq!(host.grub.running(), format!("{BEFORE} nosmt"));
    assert_eq!(reboots(&host.script), 1);
}

#[tokio::test(start_paused = true)]
async fn the_deployment_is_locked_while_the_reboot_is_inhibited() {
    let mut host = Host::new();
    host.script
        .fails("reboot Logind", Reason::RebootInhibited, true);
    let one = with_arguments("one", &["nosmt"]);
    let mut agent = host.agent(&one);
    agent.patience = Duration::from_secs(3600);
    agent
        .until("the inhibitor", |report| report.failure.is_some())
        .await;
    // The failure is reported first.
    let locked = async {
        while host.next_entry().is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let locked = tokio::time::timeout(Duration::from_secs(60), locked).await;
    locked.unwrap();
    agent.stop().await;
    host.boot();
    assert_eq!(host.grub.running(), BEFORE);
    host.script.stop_failing("reboot Logind");
    host.applied(&one).await;
    assert_eq!(host.grub.running(), format!("{BEFORE} nosmt"));
}

#[tokio::test]
async fn a_reboot_without_the_boot_loader_is_repeated_once_and_then_reported() {
    let mut host = Host::new();
    let one = with_arguments("one", &["nosmt"]);
    host.until_reboot(&one).await;
    host.kexec();
    host.until_reboot(&one).await;
    assert_eq!(host.grub.running(), BEFORE);
    host.kexec();
    let mut agent = host.agent(&one);
    let report = agent.until_failed().await;
    let code = report.failure.as_ref().unwrap().code;
    assert_eq!(code, Reason::LoaderBypassed);
    assert_eq!(host.next_entry(), None);
    assert_eq!(host.grub.read("boot/grub/custom.cfg"), CUSTOM);
    agent.stop().await;
    host.boot();
    assert_eq!(host.grub.running(), BEFORE);
}

#[tokio::test(start_paused = true)]
async fn an_unhealthy_trial_is_not_kept() {
    let mut host = Host::new();
    let one = with_arguments("one", &["nosmt"]);
    host.until_reboot(&one).await;
    host.boot();
    host.script.failed(&["app.service"]);
    let mut agent = host.agent(&one);
    agent.patience = Duration::from_secs(3600);
    host.script.until_asked_times("reboot Logind", 2).await;
    agent.stop().await;
    assert_eq!(host.next_entry(), None);
    host.script.failed(&[]);
    host.boot();
    assert_eq!(host.grub.running(), BEFORE);
    let mut agent = host.agent(&one);
    let report = agent.until_failed().await;
    let code = report.failure.as_ref().unwrap().code;
    assert_eq!(code, Reason::HealthRegressed);
    agent.stop().await;
    assert_eq!(reboots(&host.script), 2);
}

#[tokio::test]
async fn a_deployment_that_cannot_be_kept_fails_the_update() {
    let mut host = Host::new();
    let one = with_arguments("one", &["nosmt"]);
    host.until_reboot(&one).await;
    host.boot();
    std::fs::remove_file(host.grub.path("usr/sbin/grub-mkconfig")).unwrap();
    let agent = host.agent(&one);
    host.script.until_asked_times("reboot Logind", 2).await;
    agent.stop().await;
    host.boot();
    assert_eq!(host.grub.running(), BEFORE);
    let mut agent = host.agent(&one);
    let report = agent.until_failed().await;
    let code = report.failure.as_ref().unwrap().code;
    assert_eq!(code, Reason::OSStepFailed);
    agent.stop().await;
}

#[tokio::test]
async fn a_config_that_is_withdrawn_or_replaced_before_the_reboot_leaves_no_deployment() {
    let mut host = Host::new();
    let none = with_arguments("none", &[]);
    let mut agent = host.agent_with(&none, options(RebootPolicy::Ask));
    agent.until_on(&none).await;
    agent.wants(&with_arguments("one", &["nosmt"]));
    let pending =
        |report: &machinist_update::reconciler::UpdateReport| report.phase == Phase::RebootPending;
    agent.until("pending", pending).await;
    agent.wants(&none);
    agent.until_on(&none).await;
    assert_eq!(host.grub.read("boot/grub/custom.cfg"), CUSTOM);
    agent.wants(&with_arguments("one", &["nosmt"]));
    agent.until("pending", pending).await;
    let two = with_arguments("two", &["mitigations=off"]);
    agent.wants(&two);
    let desired = machinist_ignition::digest(&two.0);
    agent
        .until("the other to be pending", |report| {
            let desired_now = report.config.desired.as_ref().map(|name| name.digest);
            pending(report) && desired_now == Some(desired)
        })
        .await;
    agent.stop().await;
    host.applied(&two).await;
    assert_eq!(host.grub.running(), format!("{BEFORE} mitigations=off"));
}

#[tokio::test]
async fn a_kernel_that_is_installed_before_the_trial_is_kept_changes_nothing() {
    let mut host = Host::new();
    let one = with_arguments("one", &["nosmt"]);
    let mut agent = host.agent_with(&one, options(RebootPolicy::Ask));
    agent
        .until("pending", |report| report.phase == Phase::RebootPending)
        .await;
    agent.stop().await;
    host.grub.install_kernel();
    host.applied(&one).await;
    host.boot();
    assert_eq!(host.grub.running(), format!("{BEFORE} nosmt"));
    assert!(host.grub.read("proc/cmdline").contains("vmlinuz-6.2"));
    let none = with_arguments("none", &[]);
    host.applied(&none).await;
    host.boot();
    assert_eq!(host.grub.running(), BEFORE);
}

/// A rollback that fails is repeated, and never boots the deployment again.
#[tokio::test(start_paused = true)]
async fn an_unhealthy_trial_that_cannot_be_discarded_is_not_booted_again() {
    let mut host = Host::new();
    let one = with_arguments("one", &["nosmt"]).file("/etc/app", "1\n", 0o644);
    host.until_reboot(&one).await;
    host.boot();
    host.script.failed(&["app.service"]);
    host.grub.fails_next(ProviderStep::Discard);
    let mut agent = host.agent(&one);
    agent.patience = Duration::from_secs(3600);
    let failed = |report: &machinist_update::reconciler::UpdateReport| {
        let failure = report.failure.as_ref();
        failure.is_some_and(|failure| failure.code == Reason::RollbackFailed)
    };
    agent.until("the rollback to fail", failed).await;
    assert_eq!(host.next_entry(), None);
    host.script.until_asked_times("reboot Logind", 2).await;
    agent.stop().await;
    assert_eq!(host.next_entry(), None);
    assert_eq!(host.sandbox.read("/etc/app"), None);
    host.boot();
    assert_eq!(host.grub.running(), BEFORE);
}

/// Without /boot, as in emergency mode, the boot loader's files cannot be read.
#[tokio::test(start_paused = true)]
async fn an_unhealthy_trial_is_left_by_a_reboot_when_the_boot_loader_cannot_be_read() {
    let mut host = Host::new();
    let one = with_arguments("one", &["nosmt"]).file("/etc/app", "1\n", 0o644);
    host.until_reboot(&one).await;
    host.boot();
    host.script.failed(&["boot.mount"]);
    let desired = (one.desired(), options(RebootPolicy::Auto));
    let agent = Driver::conducted(&host.sandbox, &host.script, desired.0, desired.1);
    host.script.until_asked_times("reboot Logind", 2).await;
    agent.stop().await;
    assert_eq!(host.sandbox.read("/etc/app"), None);
    host.script.failed(&[]);
    host.boot();
    assert_eq!(host.grub.running(), BEFORE);
    let mut agent = host.agent(&one);
    agent.until_failed().await;
    agent.stop().await;
    let agent = host.agent(&one);
    agent.stop().await;
    assert_eq!(host.grub.read("boot/grub/custom.cfg"), CUSTOM);
}

#[tokio::test]
async fn arguments_of_the_trial_are_not_those_of_a_config() {
    let mut host = Host::new();
    host.applied(&with_arguments("one", &["nosmt"])).await;
    // The kernel of the trial still runs, and has it.
    host.applied(&with_arguments("two", &["nosmt", "panic=10"]))
        .await;
    host.applied(&with_arguments("three", &["panic=10", "a=1"]))
        .await;
    host.boot();
    let line = host.grub.read("proc/cmdline");
    assert!(line.ends_with("quiet panic=10 a=1\n"), "{line}");
}

/// Power is lost at every file operation in turn: before the trial, and in it. Each boot enters a deployment that exists,
/// and in the end files and arguments belong to one config.
#[tokio::test]
async fn a_power_cut_at_any_moment_leaves_files_and_arguments_of_one_config() {
    let one = with_arguments("one", &["nosmt"]).file("/etc/app", "1\n", 0o644);
    let after = format!("{BEFORE} nosmt");
    let step = std::env::var("OS_POWER_CUT_STEP");
    let step = step.map_or(7, |step| step.parse().unwrap());
    for in_trial in [false, true] {
        for operations in (0..).step_by(step) {
            let mut host = Host::new();
            if in_trial {
                host.until_reboot(&one).await;
                host.boot();
            }
            let is_cut = host.until_power_cut(&one, operations).await;
            host.boot();
            let case = format!("after {operations} operations, in the trial: {in_trial}");
            let running = host.grub.running();
            assert!([BEFORE, &after].contains(&&*running), "{case}: {running}");
            let phase = host.settle(&one).await;
            let expected = match phase {
                Phase::Idle => (after.clone(), Some("1\n".to_owned())),
                // The trial was not kept, and has been tried once.
                _ => (BEFORE.to_owned(), None),
            };
            assert!(phase == Phase::Idle || in_trial, "{case}");
            let found = (host.grub.running(), host.sandbox.read("/etc/app"));
            assert_eq!(found, expected, "{case}");
            host.boot();
            assert_eq!(host.grub.running(), expected.0, "{case}");
            assert_eq!(host.grub.read("boot/grub/custom.cfg"), CUSTOM, "{case}");
            if !is_cut {
                break;
            }
        }
    }
}
