//! A running reconciler, and a test that waits for its reports.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use machinist_plan::Plan;
use machinist_rootfs::{Root, TreeSnapshot};
use machinist_update::{
    os::OsProvider,
    phase::Phase,
    reconciler::{
        BlockReason, DesiredConfig, Reconciler, ReconcilerHooks, ReconcilerOptions, UpdateError,
        UpdateReport,
    },
    service_port::RecoveryInstaller,
};
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use machinist_testkit::{
    WAIT_TIMEOUT,
    node::FakeNode,
    sandbox::{Quiet, Sandbox, Written, restarting},
    scripted_services::Script,
};

type Watched = watch::Receiver<DesiredConfig>;
type Made = (
    Reconciler<Script, Quiet>,
    watch::Receiver<Arc<UpdateReport>>,
);

pub(crate) const UNIT: &str = "x.service";

/// A live machine in its first boot.
pub(crate) fn machine() -> Sandbox {
    let sandbox = Sandbox::new();
    std::fs::create_dir_all(sandbox.path("/run/systemd/system")).unwrap();
    boot(&sandbox, "boot-1");
    sandbox.write("/etc/found", "found\n");
    sandbox
}

/// The machine has rebooted.
pub(crate) fn boot(sandbox: &Sandbox, id: &str) {
    sandbox.write("/proc/sys/kernel/random/boot_id", id);
}

/// The tree as other processes see it, without the kernel's files.
pub(crate) fn tree(sandbox: &Sandbox) -> TreeSnapshot {
    let tree = machinist_testkit::sandbox::without_staging(&sandbox.tree());
    let machine = |path: &machinist_base::abs_path::AbsPath| !path.as_str().starts_with("/proc");
    TreeSnapshot(
        tree.0
            .into_iter()
            .filter(|(path, _)| machine(path))
            .collect(),
    )
}

/// A desired config for which no update may begin.
pub(crate) fn blocked_config(
    config: &Written,
    reason: machinist_base::reason::Reason,
) -> DesiredConfig {
    let DesiredConfig::Config(config, digest) = config.desired() else {
        panic!("a config");
    };
    let cause = BlockReason {
        reason,
        message: "requested by the test".to_owned(),
    };
    DesiredConfig::Blocked(config, digest, Arc::new(cause))
}

/// The agent's reconciler, until it is stopped.
pub(crate) struct Driver {
    pub(crate) desired: watch::Sender<DesiredConfig>,
    words: watch::Sender<u64>,
    pub(crate) reports: watch::Receiver<Arc<UpdateReport>>,
    /// How long a test waits for a report; longer than any back-off where the clock is paused.
    pub(crate) patience: Duration,
    stop: CancellationToken,
    task: JoinHandle<Result<(), UpdateError>>,
}

impl Driver {
    pub(crate) fn start(sandbox: &Sandbox, script: &Script, desired: DesiredConfig) -> Self {
        Self::conducted(sandbox, script, desired, restarting(UNIT))
    }

    pub(crate) fn conducted(
        sandbox: &Sandbox,
        script: &Script,
        desired: DesiredConfig,
        conduct: ReconcilerOptions,
    ) -> Self {
        Self::on(&sandbox.root(), script, desired, conduct)
    }

    /// On a root with fault injection or recording.
    pub(crate) fn on(
        root: &Root,
        script: &Script,
        desired: DesiredConfig,
        conduct: ReconcilerOptions,
    ) -> Self {
        Self::stopped_by(&CancellationToken::new(), root, script, desired, conduct)
    }

    /// A reconciler that the token can stop from its first step on.
    pub(crate) fn stopped_by(
        stop: &CancellationToken,
        root: &Root,
        script: &Script,
        desired: DesiredConfig,
        conduct: ReconcilerOptions,
    ) -> Self {
        let (desired, source) = watch::channel(desired);
        let made = Self::made(root, script, conduct, source);
        Self::turning(made, desired, stop.clone())
    }

    fn made(root: &Root, script: &Script, conduct: ReconcilerOptions, desired: Watched) -> Made {
        let begun = std::time::Instant::now();
        // A process that another test starts meanwhile inherits every lock of this one until its
        // exec.
        let made = loop {
            let services = Some(script.clone());
            match Reconciler::new(root, services, Quiet, conduct.clone(), desired.clone()) {
                Err(error) if error.is_locked() && begun.elapsed() < WAIT_TIMEOUT => {
                    std::thread::yield_now();
                }
                made => break made,
            }
        };
        made.unwrap()
    }

    /// On a machine that is a node.
    pub(crate) fn on_node(
        root: &Root,
        script: &Script,
        node: &FakeNode,
        desired: DesiredConfig,
        conduct: ReconcilerOptions,
    ) -> Self {
        let (desired, source) = watch::channel(desired);
        let (updater, reports) = Self::made(root, script, conduct, source);
        let node = Arc::new(node.clone());
        Self::turning(
            (updater.on_node(node), reports),
            desired,
            CancellationToken::new(),
        )
    }

    /// On a node whose agent installs the recovery unit on the host.
    pub(crate) fn installing_recovery(
        root: &Root,
        script: &Script,
        node: &FakeNode,
        host: impl RecoveryInstaller,
        (desired, conduct): (DesiredConfig, ReconcilerOptions),
    ) -> Self {
        let (desired, source) = watch::channel(desired);
        let (updater, reports) = Self::made(root, script, conduct, source);
        let updater = updater.on_node(Arc::new(node.clone()));
        let made = (updater.with_recovery_install(Some(Arc::new(host))), reports);
        Self::turning(made, desired, CancellationToken::new())
    }

    /// On a host whose operating system machinist can change.
    pub(crate) fn on_os(
        root: &Root,
        script: &Script,
        provider: impl OsProvider,
        (desired, conduct): (DesiredConfig, ReconcilerOptions),
    ) -> Self {
        let (desired, source) = watch::channel(desired);
        let (updater, reports) = Self::made(root, script, conduct, source);
        let updater = updater.with_os_provider(Some(Arc::new(provider)));
        Self::turning((updater, reports), desired, CancellationToken::new())
    }

    /// On a node whose operating system changes as well.
    pub(crate) fn on_os_of_node(
        (root, node): (&Root, &FakeNode),
        script: &Script,
        provider: impl OsProvider,
        (desired, conduct): (DesiredConfig, ReconcilerOptions),
    ) -> Self {
        let (desired, source) = watch::channel(desired);
        let (updater, reports) = Self::made(root, script, conduct, source);
        let updater = updater.with_os_provider(Some(Arc::new(provider)));
        let updater = updater.on_node(Arc::new(node.clone()));
        Self::turning((updater, reports), desired, CancellationToken::new())
    }

    /// As the agent starts it in a boot that the guard may be judging.
    pub(crate) async fn beside_the_guard(
        sandbox: &Sandbox,
        script: &Script,
        desired: DesiredConfig,
        conduct: ReconcilerOptions,
    ) -> Result<Self, UpdateError> {
        let (desired, source) = watch::channel(desired);
        let services = Some(script.clone());
        let root = sandbox.root();
        let made = Reconciler::new_with_guard(&root, services, Quiet, conduct, source).await;
        Ok(Self::turning(made?, desired, CancellationToken::new()))
    }

    fn turning(
        (updater, reports): Made,
        desired: watch::Sender<DesiredConfig>,
        stop: CancellationToken,
    ) -> Self {
        let (words, received) = watch::channel(0);
        let task = tokio::spawn(updater.with_operator_requests(received).run(stop.clone()));
        Self {
            desired,
            words,
            reports,
            patience: WAIT_TIMEOUT,
            stop,
            task,
        }
    }

    pub(crate) fn wants(&self, config: &Written) {
        self.desired.send_replace(config.desired());
    }

    /// The same config, with updates forbidden.
    pub(crate) fn bars(&self, config: &Written, reason: machinist_base::reason::Reason) {
        self.desired.send_replace(blocked_config(config, reason));
    }

    /// An operator confirms the desired config.
    pub(crate) fn confirm(&self) {
        self.desired
            .send_modify(|_| self.words.send_modify(|word| *word += 1));
    }

    /// The first report from now on that satisfies the condition.
    pub(crate) async fn until(
        &mut self,
        what: &str,
        wanted: impl Fn(&UpdateReport) -> bool,
    ) -> Arc<UpdateReport> {
        let mut reports = self.reports.clone();
        let waiting = reports.wait_for(|report| wanted(report));
        match tokio::time::timeout(self.patience, waiting).await {
            Ok(Ok(report)) => Arc::clone(&report),
            Ok(Err(_)) => panic!("the reconciler ended: {what}"),
            Err(_) => {
                let report = self.reports.borrow();
                panic!(
                    "timed out: {what}; {:?} {:?} {:?}",
                    report.phase, report.failure, report.drift
                )
            }
        }
    }

    pub(crate) async fn until_on(&mut self, config: &Written) -> Arc<UpdateReport> {
        let digest = machinist_ignition::digest(&config.0);
        self.until(&format!("on {}", config.0.name), |report| {
            let current = report.config.current.as_ref().map(|name| name.digest);
            current == Some(digest) && report.phase == Phase::Idle && !report.unverified
        })
        .await
    }

    pub(crate) async fn until_failed(&mut self) -> Arc<UpdateReport> {
        self.until("failed", |report| report.phase == Phase::Failed)
            .await
    }

    /// SIGTERM, or the stop at a shutdown.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        let ended = tokio::time::timeout(WAIT_TIMEOUT, self.task).await;
        assert!(ended.is_ok(), "the reconciler does not stop");
        ended.unwrap().unwrap().unwrap();
    }
}

/// Approves no plan, as when the user of `machinist apply` declines, and counts the plans.
#[derive(Default)]
pub(crate) struct DecliningHooks(Arc<AtomicUsize>);

impl DecliningHooks {
    /// The number of plans that it was asked to approve.
    pub(crate) fn asked(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.0)
    }
}

impl ReconcilerHooks for DecliningHooks {
    fn approve(&self, _: &Plan) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        false
    }

    fn record_beat(&self) {}

    async fn probe_requested(&self) {
        std::future::pending().await
    }

    fn allocatable(&self) -> BTreeMap<String, usize> {
        BTreeMap::new()
    }
}
