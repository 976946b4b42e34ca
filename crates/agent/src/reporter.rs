//! Merges the state of all other tasks into the status document and the list of gates, and
//! publishes them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{host_sampler::HostSignals, reported_updates::ReportedUpdates};
use machinist_base::{abs_path::AbsPath, clock::Clock, reason::Reason};
use machinist_plan::DriftEntry;
use machinist_status::readiness::{
    ConfigFacts, DevicesReturn, FailedUnits, Failure, GateInputs, GatePolicy, Gates, ProbeResults,
    RebootFacts,
};
use machinist_status::{
    ActionStatus, Blocker, ConfigStatus, DownloadStatus, DriftStatus, FailureStatus, PhaseStatus,
    PinStatus, ResourceStatus, Status, UpdateOutcomeStatus, UpdateStatus, VendorStatus, in_short,
    metrics::Metrics,
    settings::{AgentRole, DriftPolicy, Settings},
};
use machinist_update::{
    journal::{self, UpdateRecord},
    os::FetchProgress,
    reconciler::{DesiredConfig, UpdateReport},
};

/// Receivers of all inputs.
#[derive(Debug)]
pub struct ReporterInputs {
    /// The reconciler.
    pub update: watch::Receiver<Arc<UpdateReport>>,
    /// The config source.
    pub desired: watch::Receiver<DesiredConfig>,
    /// The config that an operator override holds the machine on.
    pub held: watch::Receiver<Option<PinStatus>>,
    /// Devices.
    pub devices: watch::Receiver<Arc<DevicesView>>,
    /// The cluster.
    pub cluster: watch::Receiver<ClusterView>,
    /// Where another daemon was detected that manages this machine's config.
    pub other_daemon: watch::Receiver<Option<String>>,
    /// Measurements of the host.
    pub signals: watch::Receiver<Arc<HostSignals>>,
    /// Results of the probes of custom gates.
    pub custom_probes: watch::Receiver<ProbeResults>,
    /// The effective settings.
    pub settings: watch::Receiver<Arc<Settings>>,
    /// The mistake in the files of settings or policies, because of which the last valid ones are in use.
    pub settings_mistake: watch::Receiver<Option<String>>,
}

impl ReporterInputs {
    /// Whether the source was read, or `config` is not a role of this agent.
    fn started(&self) -> bool {
        let asked = self.settings.borrow().has_role(AgentRole::Config);
        !asked || !matches!(*self.desired.borrow(), DesiredConfig::Unknown)
    }
}

/// The state of devices for the status document and the gates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DevicesView {
    /// All resources.
    pub resources: Arc<Vec<ResourceStatus>>,
    /// Errors in device declarations, one line each.
    pub problems: Vec<String>,
    /// All vendors with a device driver.
    pub vendors: Vec<VendorStatus>,
    /// Why the holders of devices are unknown.
    pub holders_unknown: Option<String>,
    /// The kubelet's device manager.
    pub manager: machinist_status::readiness::DeviceManager,
}

/// The state of this node in the cluster, for the status document and the gates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterView {
    /// The Node's name; none without a cluster.
    pub node: Option<String>,
    /// The Node's UID; empty while the Node is unknown.
    pub node_uid: String,
    /// The kubelet's readiness.
    pub kubelet: machinist_status::readiness::KubeletReadiness,
    /// The Node's taints, each as `key:effect`; none while the Node is unknown.
    pub taints: Option<BTreeSet<String>>,
    /// Extended resources with a count of zero on the Node.
    pub zeros: Vec<String>,
    /// Why the desired config cannot be read.
    pub trouble: Option<Blocker>,
}

/// Receivers of the result.
#[derive(Debug)]
pub struct ReporterOutputs {
    /// The status document.
    pub status: watch::Sender<Arc<Status>>,
    /// Counters of finished updates.
    pub metrics: Metrics,
    /// The time source.
    pub clock: Clock,
}

/// Debounce: a burst of changes within one update results in one document; users do not notice the
/// delay.
const STATUS_DEBOUNCE: Duration = Duration::from_millis(10);

/// Publishes after every change, until `stop`. `on_publish` is called with every new document, and with
/// whether the source was read for the first time.
pub async fn report(
    mut from: ReporterInputs,
    to: ReporterOutputs,
    mut reported: ReportedUpdates,
    stop: CancellationToken,
    on_publish: impl Fn(&Status, bool) + Send,
) {
    loop {
        let update = from.update.borrow().clone();
        for ended in reported.unreported(&update) {
            to.metrics.update_ended(outcome(ended.outcome));
        }
        let turns = publish(&from, &to);
        reported.record(&update).await;
        let status = to.status.borrow().clone();
        on_publish(&status, from.started());
        tokio::select! {
            () = stop.cancelled() => return,
            // All of these are cancel-safe: a missed change stays marked as unseen.
            Ok(()) = from.update.changed() => {}
            Ok(()) = from.desired.changed() => {}
            Ok(()) = from.held.changed() => {}
            Ok(()) = from.devices.changed() => {}
            Ok(()) = from.cluster.changed() => {}
            Ok(()) = from.signals.changed() => {}
            Ok(()) = from.other_daemon.changed() => {}
            Ok(()) = from.custom_probes.changed() => {}
            Ok(()) = from.settings.changed() => {}
            Ok(()) = from.settings_mistake.changed() => {}
            // Cancel-safe: the time is computed again.
            () = until(turns) => {}
            else => return,
        }
        tokio::time::sleep(STATUS_DEBOUNCE).await;
    }
}

/// Publishes the current state. Returns after which time it changes without any other input.
pub fn publish(from: &ReporterInputs, to: &ReporterOutputs) -> Option<Duration> {
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

/// Waits for this time; forever if there is none.
async fn until(turns: Option<Duration>) {
    match turns {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}

fn compose(from: &ReporterInputs, to: &ReporterOutputs) -> (Status, Option<Duration>) {
    let update = from.update.borrow().clone();
    let settings = from.settings.borrow().clone();
    let devices = from.devices.borrow().clone();
    let before = to.status.borrow().clone();
    let cluster = from.cluster.borrow().clone();
    let inputs = GateInputs {
        kubelet: cluster.kubelet,
        other_daemon: from.other_daemon.borrow().clone(),
        settings_mistake: from.settings_mistake.borrow().clone(),
        taints: cluster.taints,
        custom_probes: from.custom_probes.borrow().clone(),
        ..inputs(&update, &settings, &devices, &from.signals.borrow())
    };
    let (policy, now) = (&settings.readiness.policy, to.clock.now());
    let gates = match is_asked(&before.gates, &inputs.custom_probes, policy) {
        true => Gates::evaluate(&before.gates, &inputs, policy, now),
        false => Gates::default(),
    };
    let turns = inputs.next_change_at(policy, now);
    let turns = turns.and_then(|turn| turn.duration_since(now).try_into().ok());
    let status = Status {
        ready: from.started() && gates.iter().next().is_some() && gates.ready(),
        phase: update.phase.name().to_owned(),
        since: update.since,
        download: update.download.as_ref().map(download_status),
        failure: update.blocking_failure().map(|failure| FailureStatus {
            code: failure.code,
            message: failure.message,
            retryable: failure.retryable,
            refusals: failure.refusals,
        }),
        config: config(&update),
        held: from.held.borrow().clone(),
        requested: update.requested,
        node: cluster.node,
        node_uid: cluster.node_uid,
        blockers: blockers(&update).chain(cluster.trouble).collect(),
        gates,
        orphaned_resources: unadvertised(&cluster.zeros, &devices),
        devices: Arc::clone(&devices.resources),
        device_problems: devices.problems.clone(),
        holders_unknown: devices.holders_unknown.clone(),
        vendors: devices.vendors.clone(),
        updates: update.updates.iter().map(finished).collect(),
        ..(*before).clone()
    };
    (status, turns)
}

/// Resources with a count of zero that are not advertised. Advertised ones report by themselves why
/// they have no devices.
fn unadvertised(zeros: &[String], devices: &DevicesView) -> Vec<String> {
    let advertised = |name: &String| devices.resources.iter().any(|one| one.resource == *name);
    zeros
        .iter()
        .filter(|name| !advertised(name))
        .cloned()
        .collect()
}

/// Nothing is evaluated before all probes of custom gates have a first result: a restart of the agent must not
/// close a gate temporarily for clients that watch the condition.
fn is_asked(before: &Gates, results: &ProbeResults, policy: &GatePolicy) -> bool {
    let asked = policy
        .custom_gates
        .iter()
        .filter(|gate| gate.probe.is_asked());
    let mut answered = asked.map(|gate| results.contains_key(&gate.probe));
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
        drift: update
            .drift
            .iter()
            .map(|drift| DriftStatus {
                repair_suspended: update.suspended_repairs.contains(&drift.path),
                ..DriftStatus::from(drift)
            })
            .collect(),
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
    host: &HostSignals,
) -> GateInputs {
    // A partly applied update reports only its own failure; that another config could not be read
    // meanwhile is unrelated.
    let (failed, refused) = match update.unverified || update.unknown {
        true => (
            update.failure.clone().filter(|it| !update.may_pass(it)),
            None,
        ),
        false => (None, update.blocking_failure()),
    };
    let in_short = |failure: journal::UpdateFailure| Failure {
        reason: failure.code,
        message: in_short(&failure.message, &failure.refusals),
    };
    let (failed, refused) = (failed.map(in_short), refused.map(in_short));
    let drifted = update.drift.iter();
    let drifted = drifted.filter(|drift| settings.drift.policy(&drift.path) != DriftPolicy::Ignore);
    let mut repaired = update.drift.iter();
    // A user who changes a path faster than it is repaired must not keep the machine from being ready.
    let repairs = |drift: &DriftEntry| {
        !drift.by_user
            && drift.is_repairable()
            && settings.drift.policy(&drift.path) == DriftPolicy::Repair
    };
    let unverified = update.unverified && !update.repairs_users_path;
    GateInputs {
        config: ConfigFacts {
            unverified: unverified.then(|| config(update).desired),
            failed,
            drifted: drifted.map(|drift| drift.path.to_string()).collect(),
            drift_holds: repaired.any(repairs),
            refused,
        },
        boot: RebootFacts {
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
        ..GateInputs::default()
    }
}

/// Number of healthy devices of registered resources, by resource.
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

fn download_status(progress: &FetchProgress) -> DownloadStatus {
    DownloadStatus {
        received_bytes: progress.received_bytes,
        layers: progress.layers,
        needed_layers: progress.needed_layers,
        needed_size: progress.needed_size.clone(),
    }
}

/// The blockers of an update, including a closed maintenance window.
fn blockers(update: &UpdateReport) -> impl Iterator<Item = Blocker> {
    let window = update.opens.map(|opens| window(update, opens));
    let blockers = update.blockers.iter().map(|blocker| Blocker {
        kind: blocker.kind.clone(),
        namespace: blocker.namespace.clone(),
        name: blocker.name.clone(),
        reason: blocker.reason,
        message: blocker.message.clone(),
        since: blocker.since,
    });
    window
        .into_iter()
        .chain(blocked_update(update))
        .chain(blockers)
}

/// The desired config, if its update must not start.
fn blocked_update(update: &UpdateReport) -> Option<Blocker> {
    let blocked = update.blocked.as_ref().filter(|blocked| blocked.stands)?;
    let desired = update.config.desired.as_ref()?;
    Some(Blocker {
        kind: "MachineConfig".to_owned(),
        namespace: String::new(),
        name: desired.name.clone(),
        reason: blocked.cause.reason,
        message: blocked.cause.message.clone(),
        since: update.since,
    })
}

fn window(update: &UpdateReport, opens: Timestamp) -> Blocker {
    let (kind, name, what) = match update.opens_for_the_cluster {
        true => (
            "UpgradeConfig",
            "upgradeAt",
            "the cluster allows updates to start",
        ),
        false => (
            "Window",
            "update.windows",
            "the next maintenance window opens",
        ),
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

/// A finished update in the format of `status` and `history`.
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
        left_behind: update.left_behind.clone(),
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

const fn outcome(outcome: journal::Outcome) -> UpdateOutcomeStatus {
    match outcome {
        journal::Outcome::Done => UpdateOutcomeStatus::Done,
        journal::Outcome::AppliedOffline => UpdateOutcomeStatus::AppliedOffline,
        journal::Outcome::RolledBack => UpdateOutcomeStatus::RolledBack,
        journal::Outcome::Withdrawn => UpdateOutcomeStatus::Withdrawn,
        journal::Outcome::Failed => UpdateOutcomeStatus::Failed,
    }
}

#[cfg(test)]
mod tests;
