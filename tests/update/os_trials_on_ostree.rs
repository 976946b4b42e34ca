//! Updates that change kernel arguments on a machine with OSTree, where each deployment has a /etc of its own.

use std::{fs, sync::Arc, time::Duration};

use machinist_base::reason::Reason;
use machinist_plan::{HostKind, OsCapabilities};
use machinist_testkit::{
    WAIT_TIMEOUT,
    sandbox::{Quiet, Sandbox, Written, conduct, config},
    scripted_services::Script,
};
use machinist_update::{
    crash_recovery,
    journal::Outcome,
    phase::Phase,
    reconciler::{DesiredConfig, RebootPolicy, Reconciler, ReconcilerOptions, UpdateReport},
    service_port::StartupState,
    store::StateStore,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    os::{
        ostree_files::Layout,
        ostree_foreign_changes::stage_foreign,
        ostree_machine::{BEFORE, CUSTOM, OstreeMachine},
    },
    update::{
        harness::{Driver, boot, machine},
        reboots::reboots,
    },
};

/// The file of the configs.
const FILE: &str = "/etc/example.conf";

pub(super) struct Host {
    pub(super) sandbox: Sandbox,
    pub(super) ostree: OstreeMachine,
    pub(super) script: Script,
    layout: Layout,
    boots: u32,
}

/// Longer than any limit of a step.
const LONGEST_JUDGEMENT: Duration = Duration::from_hours(4);

/// A config with a file that has its name.
fn with_arguments(name: &str, arguments: &[&str]) -> Written {
    let mut wanted = config(name).file(FILE, name, 0o644);
    wanted.0.kernel_arguments = arguments.iter().map(|one| (*one).to_owned()).collect();
    wanted
}

pub(super) fn options(layout: Layout) -> ReconcilerOptions {
    let mut options = ReconcilerOptions {
        reboot: RebootPolicy::Auto,
        ..conduct(true)
    };
    let has_rpm_ostree = layout == Layout::RpmOstree;
    let kind = match has_rpm_ostree {
        true => HostKind::RpmOstree,
        false => HostKind::Ostree,
    };
    options.capabilities.os = OsCapabilities {
        image: true,
        kernel_arguments: true,
        kernel_type: has_rpm_ostree,
        extensions: has_rpm_ostree,
        ..OsCapabilities::without_provider(kind)
    };
    options
}

impl Host {
    pub(super) fn new() -> Self {
        Self::with_layout(Layout::Debian)
    }

    pub(super) fn with_layout(layout: Layout) -> Self {
        let sandbox = machine();
        let ostree = OstreeMachine::with_layout(&sandbox.path("/"), layout);
        Self {
            sandbox,
            ostree,
            script: Script::new(),
            layout,
            boots: 1,
        }
    }

    pub(super) fn agent(&self, wanted: &Written) -> Driver {
        let root = self.sandbox.root();
        let provider = self.ostree.agent();
        let how = (wanted.desired(), options(self.layout));
        let mut agent = Driver::on_os(&root, &self.script, provider, how);
        agent.patience = Duration::from_secs(3600);
        agent
    }

    /// An agent that leaves reboots to an operator.
    fn agent_that_asks(&self, wanted: &Written) -> Driver {
        let options = ReconcilerOptions {
            reboot: RebootPolicy::Ask,
            ..options(self.layout)
        };
        let root = self.sandbox.root();
        let how = (wanted.desired(), options);
        let mut agent = Driver::on_os(&root, &self.script, self.ostree.agent(), how);
        agent.patience = LONGEST_JUDGEMENT;
        agent
    }

    /// Judges a boot as `machinist guard` does, until it ends or requests a reboot.
    async fn guard(&self) {
        let root = self.sandbox.root();
        crash_recovery::recover(&StateStore::open(&root).unwrap()).unwrap();
        let (_, desired) = watch::channel(DesiredConfig::Unknown);
        let services = Some(self.script.clone());
        let guard = Reconciler::new(&root, services, Quiet, options(self.layout), desired);
        let (guard, _) = guard.unwrap();
        let guard = guard.with_os_provider(Some(Arc::new(self.ostree.agent())));
        let (stop, before) = (CancellationToken::new(), reboots(&self.script));
        let judged = async {
            let judged = tokio::time::timeout(LONGEST_JUDGEMENT, guard.judge_boot(stop.clone()));
            judged.await.unwrap().unwrap();
        };
        let rebooting = async {
            self.script
                .until_asked_times("reboot Logind", before + 1)
                .await;
            stop.cancel();
        };
        tokio::pin!(judged);
        tokio::select! {
            () = &mut judged => return,
            () = rebooting => {}
        }
        judged.await;
    }

    fn booted(&mut self) {
        self.boots += 1;
        boot(&self.sandbox, &format!("boot-{}", self.boots));
    }

    /// Shuts down properly and boots.
    pub(super) fn reboot(&mut self) {
        self.ostree.reboot();
        self.booted();
    }

    /// Loses power and boots.
    pub(super) fn power_cut(&mut self) {
        self.ostree.boot();
        self.booted();
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

    /// Applies a config with one reboot.
    pub(super) async fn apply(&mut self, wanted: &Written) {
        self.until_reboot(wanted).await;
        self.reboot();
        self.until_on(wanted).await;
    }

    pub(super) async fn until_on(&self, wanted: &Written) {
        let mut agent = self.agent(wanted);
        let report = agent.until_on(wanted).await;
        assert_eq!(report.updates[0].outcome, Outcome::Done);
        agent.stop().await;
        self.assert_settled();
    }

    /// Runs the agent until it reports a failed update without another reboot.
    pub(super) async fn until_failed(&self, wanted: &Written) -> Reason {
        let before = reboots(&self.script);
        let mut agent = self.agent(wanted);
        let report = agent.until_failed().await;
        agent.stop().await;
        assert_eq!(reboots(&self.script), before);
        self.assert_settled();
        report.failure.as_ref().unwrap().code
    }

    /// Checks that nothing of a trial is left.
    fn assert_settled(&self) {
        assert_eq!(self.ostree.grub_file("custom.cfg"), CUSTOM);
        assert!(!self.ostree.grub_file("grubenv").contains("machinist"));
        assert!(!self.ostree.menu()[0].1.contains("machinist"));
    }

    /// Checks the arguments of the running kernel, and the text of the file.
    pub(super) fn assert_on(&self, arguments: &str, file: &str) {
        assert_eq!(self.ostree.running(), format!("{BEFORE} {arguments}"));
        assert_eq!(self.sandbox.read(FILE).as_deref(), Some(file));
    }
}

#[tokio::test(start_paused = true)]
async fn a_deployment_is_tried_with_the_files_of_the_config_and_kept() {
    let mut host = Host::new();
    host.apply(&with_arguments("one", &["nosmt"])).await;
    host.assert_on("nosmt", "one");
    host.apply(&with_arguments("two", &["a=1"])).await;
    host.assert_on("a=1", "two");
    host.power_cut();
    host.assert_on("a=1", "two");
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_deployment_rolls_back_the_files_of_the_previous_one() {
    let mut host = Host::new();
    host.apply(&with_arguments("one", &["nosmt"])).await;
    let two = with_arguments("two", &["init=/bin/false"]);
    host.until_reboot(&two).await;
    let trial = host.sandbox.journal().os_trial.unwrap();
    host.ostree.panics(&trial.deployment);
    host.reboot();
    // The previous kernel has booted with the files of the update.
    host.assert_on("nosmt", "two");
    host.until_reboot(&two).await;
    host.assert_on("nosmt", "one");
    host.reboot();
    assert_eq!(host.until_failed(&two).await, Reason::OSBootFailed);
    host.assert_on("nosmt", "one");
    host.apply(&with_arguments("three", &["a=3"])).await;
    host.assert_on("a=3", "three");
}

#[tokio::test(start_paused = true)]
async fn an_unhealthy_deployment_is_left_before_files_are_rolled_back() {
    let mut host = Host::new();
    host.apply(&with_arguments("one", &["nosmt"])).await;
    let two = with_arguments("two", &["a=1"]);
    host.until_reboot(&two).await;
    host.reboot();
    host.script.failed(&["app.service"]);
    host.until_reboot(&two).await;
    host.assert_on("a=1", "two");
    // Another process starts in the same boot.
    host.until_reboot(&two).await;
    host.assert_on("a=1", "two");
    host.script.failed(&[]);
    host.reboot();
    assert_eq!(host.until_failed(&two).await, Reason::HealthRegressed);
    host.assert_on("nosmt", "one");
    host.apply(&with_arguments("three", &["a=3"])).await;
    host.assert_on("a=3", "three");
}

/// A person selects the deployment in GRUB's menu once more, to look at the failure.
#[tokio::test(start_paused = true)]
async fn a_deployment_that_is_left_may_be_booted_once_more() {
    let mut host = Host::new();
    host.apply(&with_arguments("one", &["nosmt"])).await;
    let two = with_arguments("two", &["a=1"]);
    host.until_reboot(&two).await;
    host.reboot();
    host.script.failed(&["app.service"]);
    host.until_reboot(&two).await;
    host.ostree.reboot_into_first();
    host.booted();
    host.until_reboot(&two).await;
    host.assert_on("a=1", "two");
    host.script.failed(&[]);
    host.reboot();
    assert_eq!(host.until_failed(&two).await, Reason::HealthRegressed);
    host.assert_on("nosmt", "one");
}

/// `rpm-ostree upgrade` while an operator is asked for the reboot, or while an inhibitor lock delays it.
#[tokio::test(start_paused = true)]
async fn a_deployment_with_the_arguments_of_a_waiting_trial_is_removed_at_once() {
    for is_inhibited in [false, true] {
        let mut host = Host::with_layout(Layout::RpmOstree);
        let one = with_arguments("one", &["nosmt"]);
        if is_inhibited {
            let inhibited = Reason::RebootInhibited;
            host.script.fails("reboot Logind", inhibited, true);
        }
        let mut agent = match is_inhibited {
            true => host.agent(&one),
            false => host.agent_that_asks(&one),
        };
        let waits = |report: &UpdateReport| {
            report.phase == Phase::RebootPending && report.failure.is_some() == is_inhibited
        };
        agent.until("pending", waits).await;
        stage_foreign(
            &host.ostree,
            "quiet nosmt panic=10 machinist.trial=machinist-0123456789abcdef",
        );
        let staged = host.sandbox.path("/run/ostree/staged-deployment");
        let copy = fs::read(&staged).unwrap();
        let is_there = || fs::read(&staged).is_ok_and(|staged| staged == copy);
        let begin = std::time::Instant::now();
        let asked = reboots(&host.script);
        while is_there() && begin.elapsed() < WAIT_TIMEOUT {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(!is_there());
        assert_eq!(reboots(&host.script), asked);
        host.script.stop_failing("reboot Logind");
        agent.confirm();
        host.script
            .until_asked_times("reboot Logind", asked + 1)
            .await;
        agent.stop().await;
        host.reboot();
        host.until_on(&one).await;
        host.assert_on("nosmt", "one");
    }
}

/// No agent runs, such as in emergency mode.
#[tokio::test(start_paused = true)]
async fn the_boot_guard_alone_leaves_an_unhealthy_deployment() {
    let mut host = Host::new();
    host.apply(&with_arguments("one", &["nosmt"])).await;
    let two = with_arguments("two", &["a=1"]);
    host.until_reboot(&two).await;
    let before = reboots(&host.script);
    host.reboot();
    host.script.is_at(StartupState::Maintenance);
    host.guard().await;
    host.assert_on("a=1", "two");
    assert_eq!(reboots(&host.script), before + 1);
    host.reboot();
    host.script.is_at(StartupState::Finished);
    host.guard().await;
    host.assert_on("nosmt", "one");
    assert_eq!(host.sandbox.journal().transactions, []);
    assert_eq!(reboots(&host.script), before + 1);
    assert_eq!(host.until_failed(&two).await, Reason::HealthRegressed);
}

/// Versions of libostree differ in whether they keep equal arguments.
#[tokio::test(start_paused = true)]
async fn an_argument_of_the_config_may_equal_one_of_a_trial() {
    let mut host = Host::new();
    host.apply(&with_arguments("one", &["rd.shell=0", "a=1"]))
        .await;
    host.assert_on("rd.shell=0 a=1", "one");
    let two = with_arguments("two", &["rd.shell=0", "a=2"]);
    host.until_reboot(&two).await;
    let trial = host.sandbox.journal().os_trial.unwrap();
    host.ostree.panics(&trial.deployment);
    host.reboot();
    host.until_reboot(&two).await;
    host.reboot();
    assert_eq!(host.until_failed(&two).await, Reason::OSBootFailed);
    host.assert_on("rd.shell=0 a=1", "one");
    host.apply(&with_arguments("three", &["a=3"])).await;
    host.assert_on("a=3", "three");
}

#[tokio::test(start_paused = true)]
async fn a_power_cut_before_a_deployment_is_finalized_is_no_attempt() {
    let mut host = Host::new();
    let one = with_arguments("one", &["nosmt"]);
    host.until_reboot(&one).await;
    host.power_cut();
    assert_eq!(host.ostree.running(), BEFORE);
    host.apply(&one).await;
    host.assert_on("nosmt", "one");
    let two = with_arguments("two", &["a=1"]);
    for _ in 0..2 {
        host.until_reboot(&two).await;
        host.power_cut();
    }
    host.until_reboot(&two).await;
    host.reboot();
    assert_eq!(host.until_failed(&two).await, Reason::OSStepFailed);
    host.assert_on("nosmt", "one");
}

/// `rpm-ostree rollback` selects the previous deployment as this does.
#[tokio::test(start_paused = true)]
async fn an_administrators_rollback_of_a_trial_rolls_the_update_back() {
    let mut host = Host::new();
    host.apply(&with_arguments("one", &["nosmt"])).await;
    let two = with_arguments("two", &["a=1"]);
    host.until_reboot(&two).await;
    host.reboot();
    host.assert_on("a=1", "two");
    host.ostree.admin(&["set-default", "1"]);
    host.until_reboot(&two).await;
    host.reboot();
    assert_eq!(host.until_failed(&two).await, Reason::OSStepFailed);
    host.assert_on("nosmt", "one");
    host.apply(&with_arguments("three", &["a=3"])).await;
    host.assert_on("a=3", "three");
}

/// Such as an automatic update, while an operator is to approve the reboot that leaves a failed deployment.
#[tokio::test(start_paused = true)]
async fn what_is_staged_from_a_failed_trial_is_discarded_before_the_reboot() {
    let mut host = Host::new();
    let one = with_arguments("one", &["nosmt"]);
    host.until_reboot(&one).await;
    host.reboot();
    host.script.failed(&["app.service"]);
    let mut agent = host.agent_that_asks(&one);
    agent
        .until("pending", |report| report.phase == Phase::RebootPending)
        .await;
    let copied = host.ostree.menu()[0].1.clone();
    stage_foreign(&host.ostree, &copied);
    let before = reboots(&host.script);
    agent.confirm();
    host.script
        .until_asked_times("reboot Logind", before + 1)
        .await;
    agent.stop().await;
    host.reboot();
    assert_eq!(host.ostree.running(), BEFORE);
    assert_eq!(host.ostree.menu().len(), 2);
}

/// The deployment that runs is judged first: a failed boot into another one would lead back to it.
#[tokio::test(start_paused = true)]
async fn a_config_that_arrives_during_a_trial_waits_for_its_end() {
    let mut host = Host::new();
    let one = with_arguments("one", &["nosmt"]);
    let two = with_arguments("two", &["a=1"]);
    host.until_reboot(&one).await;
    host.reboot();
    host.until_reboot(&two).await;
    let journal = host.sandbox.journal();
    assert_eq!(journal.history[0].to, one.0.name, "it is verified first");
    assert_eq!(host.ostree.menu()[0].1, format!("{BEFORE} nosmt"));
    host.reboot();
    host.until_on(&two).await;
    host.assert_on("a=1", "two");
}
