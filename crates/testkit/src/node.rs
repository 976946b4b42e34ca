//! A node of a cluster that survives the reconciler: all requests are recorded in a file.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use machinist_base::reason::Reason;
use machinist_update::node_port::{
    Blocker, DeviceHolderCounts, DeviceUsers, DrainOrder, DrainProgress, DrainResult,
    IrreversibleStep, NodeError, NodeFuture, NodePort, StepDecision,
};
use tokio::sync::Notify;

use crate::sandbox::Sandbox;

/// Below `/proc`, so that it is not part of the tree that tests compare.
const FILE: &str = "/proc/cluster";

/// The API server's side of a node, and the device allocation.
#[derive(Clone)]
pub struct FakeNode {
    file: PathBuf,
    knobs: Arc<Mutex<Knobs>>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct Knobs {
    /// Requests that fail this often before they succeed.
    failing: BTreeMap<&'static str, (u32, Reason, bool)>,
    /// A pod cannot be evicted.
    blocked: bool,
    refills: u32,
    device_users: Vec<DeviceUsers>,
    spent: Vec<Duration>,
    control_plane: bool,
    /// Pods that use a device, of those that must be evicted.
    held: Vec<Blocker>,
    stop_units: BTreeSet<String>,
    earliest: Option<jiff::Timestamp>,
    /// How often a drain was cancelled.
    taken_back: usize,
    /// Why the node must not be cordoned yet.
    delay: Option<Blocker>,
    /// The Node's desired config, where the update depends on it.
    desired: Option<String>,
}

impl FakeNode {
    pub fn of(sandbox: &Sandbox) -> Self {
        Self::at(sandbox.path(FILE))
    }

    /// The same node, for a process that knows only the directory.
    pub fn below(root: &std::path::Path) -> Self {
        Self::at(root.join(FILE.trim_start_matches('/')))
    }

    fn at(file: PathBuf) -> Self {
        Self {
            file,
            knobs: Arc::default(),
            changed: Arc::default(),
        }
    }

    /// The changes of the node, in order: `cordon NAME`, `drain`, `uncordon NAME`. Requests that
    /// change nothing are not logged.
    pub fn log(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn note(&self, what: &str) {
        let mut log = self.log();
        log.push(what.to_owned());
        std::fs::write(&self.file, log.join("\n")).unwrap();
    }

    /// Whether the node is cordoned.
    pub fn is_cordoned(&self) -> bool {
        let log = self.log();
        let last = log.iter().rfind(|what| what.contains("cordon"));
        last.is_some_and(|what| what.starts_with("cordon"))
    }

    fn with<T>(&self, what: impl FnOnce(&mut Knobs) -> T) -> T {
        let done = what(&mut self.knobs.lock().unwrap());
        self.changed.notify_waiters();
        done
    }

    /// Makes a request fail this often: `cordon`, the change of device allocation, `check_step`,
    /// `reboot` (the permission) or `uncordon`.
    pub fn fails(&self, request: &'static str, times: u32, retryable: bool) {
        let failing = (times, Reason::ManagerUnreachable, retryable);
        self.with(|knobs| knobs.failing.insert(request, failing));
    }

    /// Adds a pod that cannot be evicted, or removes it.
    pub fn blocks(&self, blocked: bool) {
        self.with(|knobs| knobs.blocked = blocked);
    }

    /// This often, new pods arrive before the final check; they can be evicted once nothing
    /// `blocks` any more.
    pub fn refills(&self, times: u32) {
        self.with(|knobs| knobs.refills = times);
    }

    /// The cluster permits no update to begin earlier.
    pub fn not_before(&self, earliest: jiff::Timestamp) {
        self.with(|knobs| knobs.earliest = Some(earliest));
    }

    /// The node must not be cordoned for this reason, or for none any more.
    pub fn delays_cordon(&self, delay: Option<Blocker>) {
        self.with(|knobs| knobs.delay = delay);
    }

    /// Permits steps only towards a config of this name.
    pub fn desires(&self, name: &str) {
        self.with(|knobs| knobs.desired = Some(name.to_owned()));
    }

    pub fn is_control_plane_node(&self) {
        self.with(|knobs| knobs.control_plane = true);
    }

    /// These pods still use a device.
    pub fn held_by(&self, pods: &[&str]) {
        let held = |name: &&str| Blocker {
            name: (*name).to_owned(),
            reason: Reason::DeviceHeld,
            ..unevictable_pod()
        };
        self.with(|knobs| knobs.held = pods.iter().map(held).collect());
    }

    /// These units use devices and have to be stopped.
    pub fn stops(&self, units: &[&str]) {
        self.with(|knobs| knobs.stop_units = units.iter().map(|unit| (*unit).to_owned()).collect());
    }

    /// How often a drain was cancelled.
    pub fn taken_back(&self) -> usize {
        self.with(|knobs| knobs.taken_back)
    }

    /// The recorded changes of device allocation, in order.
    pub fn device_users_history(&self) -> Vec<DeviceUsers> {
        self.with(|knobs| knobs.device_users.clone())
    }

    /// The time already spent at the start of each drain.
    pub fn drains(&self) -> Vec<Duration> {
        self.with(|knobs| knobs.spent.clone())
    }

    fn may(&self, request: &'static str) -> Result<(), NodeError> {
        let refused = self.with(|knobs| match knobs.failing.get_mut(request) {
            Some((times, reason, retryable)) if *times > 0 => {
                *times -= 1;
                Some((*reason, *retryable))
            }
            _ => None,
        });
        let Some((reason, retryable)) = refused else {
            return Ok(());
        };
        Err(refusal(request, reason, retryable, retryable))
    }
}

fn refusal(request: &str, reason: Reason, retryable: bool, unanswered: bool) -> NodeError {
    NodeError {
        what: format!("{request} the node"),
        node: "double".to_owned(),
        reason,
        retryable,
        unanswered,
        source: None,
    }
}

impl NodePort for FakeNode {
    fn cordon(&self, to: String) -> NodeFuture<'_, ()> {
        Box::pin(async move {
            self.may("cordon")?;
            if !self.is_cordoned() {
                self.note(&format!("cordon {to}"));
            }
            Ok(())
        })
    }

    fn set_device_users(&self, users: DeviceUsers) -> NodeFuture<'_, ()> {
        Box::pin(async move {
            self.may("lend")?;
            self.with(|knobs| knobs.device_users.push(users));
            Ok(())
        })
    }

    fn holders(&self) -> NodeFuture<'_, Option<DeviceHolderCounts>> {
        let counts = BTreeMap::from([("acme.dev/x".to_owned(), 1)]);
        Box::pin(async {
            Ok(Some(DeviceHolderCounts::from([(
                "lab/reads/main".to_owned(),
                counts,
            )])))
        })
    }

    fn evicted_holders(&self) -> NodeFuture<'_, Vec<Blocker>> {
        Box::pin(async move {
            self.may("held")?;
            Ok(self.with(|knobs| knobs.held.clone()))
        })
    }

    fn stop_units(&self) -> BTreeSet<String> {
        self.with(|knobs| knobs.stop_units.clone())
    }

    fn drain(&self, order: DrainOrder) -> NodeFuture<'_, DrainResult> {
        Box::pin(async move {
            self.may("drain")?;
            assert!(self.is_cordoned(), "no eviction before the cordon");
            self.with(|knobs| knobs.spent.push(order.spent));
            let begun = tokio::time::Instant::now();
            loop {
                let next = self.changed.notified();
                tokio::pin!(next);
                next.as_mut().enable();
                if !self.knobs.lock().unwrap().blocked {
                    self.note("drain");
                    return Ok(DrainResult::Complete);
                }
                let progress = || DrainProgress {
                    spent: order.spent + begun.elapsed(),
                    blockers: vec![unevictable_pod()],
                };
                order.progress.send_replace(progress());
                tokio::select! {
                    () = &mut next => {}
                    () = tokio::time::sleep(Duration::from_secs(1)) => {}
                    () = order.stop.cancelled() => {
                        order.progress.send_replace(progress());
                        return Ok(DrainResult::Stopped);
                    }
                }
            }
        })
    }

    fn cancel_drain(&self, _on: String) -> NodeFuture<'_, ()> {
        Box::pin(async move {
            self.with(|knobs| knobs.taken_back += 1);
            Ok(())
        })
    }

    fn cordon_delay(&self) -> Option<Blocker> {
        self.with(|knobs| knobs.delay.clone())
    }

    fn wait_before_cordon(&self) -> NodeFuture<'_, ()> {
        Box::pin(async move {
            loop {
                let changed = self.changed.notified();
                if self.knobs.lock().unwrap().delay.is_none() {
                    return Ok(());
                }
                changed.await;
            }
        })
    }

    fn earliest_start(&self) -> NodeFuture<'_, Option<jiff::Timestamp>> {
        Box::pin(async move { Ok(self.with(|knobs| knobs.earliest)) })
    }

    fn check_step(
        &self,
        step: IrreversibleStep,
        to: Option<String>,
    ) -> NodeFuture<'_, StepDecision> {
        Box::pin(async move {
            let desired = self.with(|knobs| knobs.desired.clone());
            if to.is_some() && desired.is_some() && to != desired {
                return Err(refusal("permit", Reason::DesiredConfigChanged, true, false));
            }
            self.may(match step {
                IrreversibleStep::Stage { .. } => "permit",
                IrreversibleStep::Reboot { .. } => "reboot",
            })?;
            let drained = matches!(
                step,
                IrreversibleStep::Stage { drained: true }
                    | IrreversibleStep::Reboot { drained: true }
            );
            let refilled = self.with(|knobs| {
                let refilled = knobs.refills > 0;
                knobs.blocked |= refilled;
                knobs.refills = knobs.refills.saturating_sub(1);
                refilled
            });
            if refilled {
                self.note("uncordon by another client");
            }
            match drained && !self.is_cordoned() {
                true => Ok(StepDecision::DrainAgain),
                false => Ok(StepDecision::Proceed),
            }
        })
    }

    fn uncordon(&self, on: String) -> NodeFuture<'_, ()> {
        Box::pin(async move {
            self.may("uncordon")?;
            if self.is_cordoned() {
                self.note(&format!("uncordon {on}"));
            }
            Ok(())
        })
    }

    fn is_control_plane(&self) -> bool {
        self.with(|knobs| knobs.control_plane)
    }
}

/// The pod that cannot be evicted.
pub fn unevictable_pod() -> Blocker {
    Blocker {
        kind: "Pod".to_owned(),
        namespace: "default".to_owned(),
        name: "stubborn".to_owned(),
        reason: Reason::ManagerUnreachable,
        message: "its budget allows no disruption".to_owned(),
        since: jiff::Timestamp::UNIX_EPOCH,
    }
}
