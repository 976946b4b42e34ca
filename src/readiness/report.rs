//! Joins what the other tasks say into one status document and one list of gates, and tells systemd.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    Answers, Boot, ConfigState, DevicesReturn, FailedUnits, Failure, Gates, Inputs, Policy,
};
use crate::{
    clock::Clock,
    config::{DriftPolicy, Job, Settings},
    metrics::Metrics,
    path::AbsPath,
    plan::{Drift, DriftKind},
    readiness::measure::Signals,
    reason::Reason,
    status::{
        ActionStatus, Blocker, ConfigStatus, DriftStatus, FailureStatus, HeldStatus, Outcome,
        PhaseStatus, ResourceStatus, Status, UpdateStatus, VendorStatus, in_short,
    },
    update::{
        journal::{self, UpdateRecord},
        run::{Desired, UpdateReport},
    },
};

/// Everything the reporter listens to.
#[derive(Debug)]
pub struct Sources {
    /// The update driver.
    pub update: watch::Receiver<Arc<UpdateReport>>,
    /// The source of configs.
    pub desired: watch::Receiver<Desired>,
    /// What a person holds the machine on.
    pub held: watch::Receiver<Option<HeldStatus>>,
    /// Devices.
    pub devices: watch::Receiver<Arc<DevicesView>>,
    /// The cluster.
    pub cluster: watch::Receiver<ClusterView>,
    /// Another daemon that changes this machine's config: where it was seen.
    pub other_daemon: watch::Receiver<Option<String>>,
    /// What is measured on the host.
    pub signals: watch::Receiver<Arc<Signals>>,
    /// What was answered to the administrator's own gates.
    pub own: watch::Receiver<Answers>,
    /// The effective settings.
    pub settings: watch::Receiver<Arc<Settings>>,
}

impl Sources {
    /// The source was read, or nobody is to read one here.
    fn started(&self) -> bool {
        let asked = self.settings.borrow().does(Job::Config);
        !asked || !matches!(*self.desired.borrow(), Desired::Unknown)
    }
}

/// What the device side says, as the status document and the gates need it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DevicesView {
    /// Every resource.
    pub resources: Arc<Vec<ResourceStatus>>,
    /// What is wrong with declarations, one line each.
    pub problems: Vec<String>,
    /// Every vendor that has a program of its own.
    pub vendors: Vec<VendorStatus>,
    /// Why nobody knows who has which device.
    pub holders_unknown: Option<String>,
    /// The kubelet's device manager.
    pub manager: super::DeviceManager,
}

/// What the cluster says of this node, as the status document and the gates need it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterView {
    /// The Node's name; none where there is no cluster.
    pub node: Option<String>,
    /// The kubelet.
    pub kubelet: super::Kubelet,
    /// The Node's taints, each as `key:effect`; none where the Node is not seen.
    pub taints: Option<BTreeSet<String>>,
    /// Extended resources of which the Node counts none.
    pub zeros: Vec<String>,
    /// What keeps the desired config from being read.
    pub trouble: Option<Blocker>,
}

/// Where the result goes.
#[derive(Debug)]
pub struct Outlets {
    /// The status document.
    pub status: watch::Sender<Arc<Status>>,
    /// Counts of what ended.
    pub metrics: Metrics,
    /// The time.
    pub clock: Clock,
}

/// A burst of changes within one update is one document; a person sees no difference below this.
const DEBOUNCE: Duration = Duration::from_millis(10);

/// Publishes after every change, until `stop`. `told` hears every new document, and whether the first
/// look at the source is behind us.
pub async fn report(
    mut from: Sources,
    to: Outlets,
    stop: CancellationToken,
    told: impl Fn(&Status, bool) + Send,
) {
    let mut newest = from
        .update
        .borrow()
        .updates
        .first()
        .map(|update| update.id.clone());
    loop {
        count(&from.update.borrow().updates, &mut newest, &to.metrics);
        let turns = publish(&from, &to);
        let status = to.status.borrow().clone();
        told(&status, from.started());
        tokio::select! {
            () = stop.cancelled() => return,
            // Safe to drop, all of them: a change that is missed is still marked unseen.
            Ok(()) = from.update.changed() => {}
            Ok(()) = from.desired.changed() => {}
            Ok(()) = from.held.changed() => {}
            Ok(()) = from.devices.changed() => {}
            Ok(()) = from.cluster.changed() => {}
            Ok(()) = from.signals.changed() => {}
            Ok(()) = from.other_daemon.changed() => {}
            Ok(()) = from.own.changed() => {}
            Ok(()) = from.settings.changed() => {}
            // Safe to drop: the turn is found anew.
            () = until(turns) => {}
            else => return,
        }
        tokio::time::sleep(DEBOUNCE).await;
    }
}

/// Publishes what is known now. Returns after which time it changes though nothing happens.
pub fn publish(from: &Sources, to: &Outlets) -> Option<Duration> {
    let (status, turns) = compose(from, to);
    to.status.send_if_modified(|known| {
        let differs = **known != status;
        if differs {
            *known = Arc::new(status);
        }
        differs
    });
    turns
}

/// Waits so long; for ever when nothing turns by itself.
async fn until(turns: Option<Duration>) {
    match turns {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}

fn compose(from: &Sources, to: &Outlets) -> (Status, Option<Duration>) {
    let update = from.update.borrow().clone();
    let settings = from.settings.borrow().clone();
    let devices = from.devices.borrow().clone();
    let before = to.status.borrow().clone();
    let cluster = from.cluster.borrow().clone();
    let inputs = Inputs {
        kubelet: cluster.kubelet,
        other_daemon: from.other_daemon.borrow().clone(),
        taints: cluster.taints,
        own: from.own.borrow().clone(),
        ..inputs(&update, &settings, &devices, &from.signals.borrow())
    };
    let (policy, now) = (&settings.readiness.policy, to.clock.now());
    let gates = match is_asked(&before.gates, &inputs.own, policy) {
        true => Gates::evaluate(&before.gates, &inputs, policy, now),
        false => Gates::default(),
    };
    let turns = inputs.turns_at(policy, now);
    let turns = turns.and_then(|turn| turn.duration_since(now).try_into().ok());
    let status = Status {
        ready: from.started() && gates.iter().next().is_some() && gates.ready(),
        phase: update.phase.name().to_owned(),
        since: update.since,
        failure: update.hindrance().map(|failure| FailureStatus {
            code: failure.code,
            message: failure.message,
            again: failure.again,
        }),
        config: config(&update),
        held: from.held.borrow().clone(),
        asked: update.asked,
        node: cluster.node,
        blockers: blockers(&update).chain(cluster.trouble).collect(),
        gates,
        zero_resources: unlent(&cluster.zeros, &devices),
        devices: Arc::clone(&devices.resources),
        device_problems: devices.problems.clone(),
        holders_unknown: devices.holders_unknown.clone(),
        vendors: devices.vendors.clone(),
        updates: update.updates.iter().map(finished).collect(),
        ..(*before).clone()
    };
    (status, turns)
}

/// What the Node counts none of, and nobody lends by way of us: what is lent says itself why it has no devices.
fn unlent(zeros: &[String], devices: &DevicesView) -> Vec<String> {
    let lent = |name: &String| devices.resources.iter().any(|one| one.resource == *name);
    zeros.iter().filter(|name| !lent(name)).cloned().collect()
}

/// Nothing is judged before the administrator's own gates were asked once: a start of the agent alone must
/// not close a gate for a moment, in the eyes of everybody who follows the condition.
fn is_asked(before: &Gates, own: &Answers, policy: &Policy) -> bool {
    let asked = policy.own.iter().filter(|gate| gate.probe.is_asked());
    let mut answered = asked.map(|gate| own.contains_key(&gate.probe));
    before.iter().next().is_some() || answered.all(|answered| answered)
}

fn config(update: &UpdateReport) -> ConfigStatus {
    let name = |config: &Option<journal::ConfigName>| {
        config
            .as_ref()
            .map(|config| config.name.clone())
            .unwrap_or_default()
    };
    ConfigStatus {
        current: name(&update.config.current),
        desired: name(&update.config.desired),
        digest: update
            .config
            .current
            .as_ref()
            .map(|config| config.digest.to_string())
            .unwrap_or_default(),
        desired_digest: update
            .config
            .desired
            .as_ref()
            .map(|config| config.digest.to_string())
            .unwrap_or_default(),
        warnings: update.warnings.clone(),
        plan_warnings: update.plan_warnings.clone(),
        drift: update.drift.iter().map(DriftStatus::from).collect(),
        labels_pending: update
            .labels_pending
            .iter()
            .map(AbsPath::to_string)
            .collect(),
    }
}

fn inputs(
    update: &UpdateReport,
    settings: &Settings,
    devices: &DevicesView,
    host: &Signals,
) -> Inputs {
    let is_unwell_yet = |failure: &journal::Failure| {
        failure.code == Reason::MachineUnwell && update.is_boot_judged()
    };
    // What is half done fails by its own doing; that another config could not be read meanwhile is no part of it.
    let (failed, refused) = match update.unverified || update.unknown {
        true => (update.failure.clone().filter(|it| !is_unwell_yet(it)), None),
        false => (None, update.hindrance()),
    };
    let in_short = |failure: journal::Failure| Failure {
        reason: failure.code,
        message: in_short(&failure.message),
    };
    let (failed, refused) = (failed.map(in_short), refused.map(in_short));
    let drifted = update.drift.iter();
    let drifted = drifted.filter(|drift| settings.drift.policy(&drift.path) != DriftPolicy::Ignore);
    let mut repaired = update.drift.iter();
    // What a user has made unsafe is not put back, and holds nothing up.
    let repairs = |drift: &Drift| {
        drift.kind != DriftKind::Unsafe && settings.drift.policy(&drift.path) == DriftPolicy::Repair
    };
    Inputs {
        config: ConfigState {
            unverified: update.unverified.then(|| config(update).desired),
            failed,
            drifted: drifted.map(|drift| drift.path.to_string()).collect(),
            drift_holds: repaired.any(repairs),
            refused,
        },
        boot: Boot {
            current: update.boot.clone(),
            ordered_at: update.reboot_needed_in.clone(),
        },
        device_manager: devices.manager.clone(),
        devices: update
            .devices_before
            .as_ref()
            .map(|(before, since)| DevicesReturn {
                before: before.clone(),
                now: allocatable(devices),
                since: *since,
            }),
        other_daemon: None,
        failed_units: host.failed_units.as_ref().map(|now| FailedUnits {
            before: update.failed_units_before.iter().cloned().collect(),
            now: now.clone(),
        }),
        pressure: host.pressure,
        disk: host.disk.clone(),
        synchronised: host.synchronised,
        root_read_only: host.root_read_only,
        memory: host.memory,
        ..Inputs::default()
    }
}

/// Healthy devices of registered resources, by resource.
pub fn allocatable(devices: &DevicesView) -> BTreeMap<String, usize> {
    let healthy = |resource: &ResourceStatus| {
        resource
            .devices
            .iter()
            .filter(|device| device.health == "Healthy")
            .count()
    };
    let registered = devices
        .resources
        .iter()
        .filter(|resource| resource.registered);
    registered
        .map(|resource| (resource.resource.clone(), healthy(resource)))
        .collect()
}

/// What an update waits for that no window lets begin.
fn blockers(update: &UpdateReport) -> impl Iterator<Item = Blocker> {
    let window = update.opens.map(|opens| window(update, opens));
    let told = update.blockers.iter().map(|blocker| Blocker {
        kind: blocker.kind.clone(),
        namespace: blocker.namespace.clone(),
        name: blocker.name.clone(),
        reason: blocker.reason,
        message: blocker.message.clone(),
        since: blocker.since,
    });
    window.into_iter().chain(barred(update)).chain(told)
}

/// What is desired and may not be begun.
fn barred(update: &UpdateReport) -> Option<Blocker> {
    let barred = update.barred.as_ref().filter(|barred| barred.stands)?;
    let desired = update.config.desired.as_ref()?;
    Some(Blocker {
        kind: "MachineConfig".to_owned(),
        namespace: String::new(),
        name: desired.name.clone(),
        reason: barred.bar.reason,
        message: barred.bar.message.clone(),
        since: update.since,
    })
}

fn window(update: &UpdateReport, opens: Timestamp) -> Blocker {
    let (kind, name, what) = match update.opens_for_the_cluster {
        true => (
            "UpgradeConfig",
            "upgradeAt",
            "the cluster lets updates begin",
        ),
        false => ("Window", "update.windows", "the next window opens"),
    };
    Blocker {
        kind: kind.to_owned(),
        namespace: String::new(),
        name: name.to_owned(),
        reason: Reason::OutsideWindow,
        message: format!("{what} at {}", opens.strftime("%Y-%m-%d %H:%MZ")),
        since: update.since,
    }
}

/// A finished update as the status and `history` show it.
pub fn finished(update: &UpdateRecord) -> UpdateStatus {
    UpdateStatus {
        id: update.id.clone(),
        from: Some(update.from.clone()).filter(|from| !from.is_empty()),
        to: update.to.clone(),
        digest: update.digest.to_string(),
        started: update.started,
        finished: Some(update.finished),
        outcome: Some(outcome(update.outcome)),
        reason: update.reason,
        phases: update
            .phases
            .iter()
            .map(|phase| PhaseStatus {
                name: phase.name.clone(),
                started: phase.started,
                finished: phase.finished,
            })
            .collect(),
        actions: update.actions.iter().map(action).collect(),
    }
}

fn action(action: &journal::ActionRecord) -> ActionStatus {
    let state = match action.state {
        journal::ActionState::Pending => "Pending",
        journal::ActionState::Started { .. } => "Started",
        journal::ActionState::Done => "Done",
    };
    ActionStatus {
        kind: format!("{:?}", action.kind),
        unit: action.unit.clone(),
        state: state.to_owned(),
    }
}

const fn outcome(outcome: journal::Outcome) -> Outcome {
    match outcome {
        journal::Outcome::Done => Outcome::Done,
        journal::Outcome::AppliedOffline => Outcome::AppliedOffline,
        journal::Outcome::RolledBack => Outcome::RolledBack,
        journal::Outcome::Withdrawn => Outcome::Withdrawn,
        journal::Outcome::Failed => Outcome::Failed,
    }
}

/// Counts updates that ended since the last look; `newest` is the one that was newest then.
fn count(updates: &[UpdateRecord], newest: &mut Option<String>, metrics: &Metrics) {
    let known = newest.take();
    for update in updates
        .iter()
        .take_while(|update| Some(&update.id) != known.as_ref())
    {
        metrics.update_ended(outcome(update.outcome));
    }
    *newest = updates.first().map(|update| update.id.clone());
}

#[cfg(test)]
mod tests;
