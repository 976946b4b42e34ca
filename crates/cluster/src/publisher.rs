//! Publishes this machine's update state on the Node, from the update report and the gates, as
//! annotations and conditions.
//!
//! Everything is computed from the journal and the current gates, never from what the Node
//! contained before. After the API server is restored from a backup, the current state is published
//! again, and an old annotation never makes the machine roll back.

mod degraded_debounce;
mod image_sets;
mod mcn_conditions;
mod node_lifecycle;

use std::{collections::BTreeMap, sync::Arc};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

pub use degraded_debounce::{DegradedDebounce, DegradedInput, MachineFault, is_transient};
pub use mcn_conditions::conditions;

use super::node::{DesiredCondition, DesiredNodeStatus};
use machinist_base::{clock::Clock, reason::Reason};
use machinist_kube_api::{
    ConfigVersion, MAX_REASON_BYTES, MachineConfigNodeStatus, NodeImageSets, NodeUpdateState, keys,
};
use machinist_plan::escape_line;
use machinist_status::{
    Status,
    readiness::{GateEffect, Gates},
};
use machinist_update::{node_port::Blocker, phase::Phase, reconciler::UpdateReport};

/// Which parts of the Node machinist manages.
#[derive(Clone, Copy, Debug)]
pub struct ExternalWriters {
    /// Whether machinist manages the config; otherwise the annotations of the machine-config
    /// protocol belong to another component.
    pub config: bool,
    /// Whether readiness is published.
    pub readiness: bool,
}

/// Channels to the writers of the API objects.
#[derive(Debug)]
pub struct Publishers {
    /// Desired annotations, labels, taints and conditions of the Node.
    pub notice: watch::Sender<Option<DesiredNodeStatus>>,
    /// Desired status of the MachineConfigNode.
    pub progress: watch::Sender<Option<MachineConfigNodeStatus>>,
}

/// Publishes after every change, until `stop`: `update` comes from the reconciler, `status` from
/// its gates, `images` from the task that pulls images in advance.
pub async fn publish(
    mut update: watch::Receiver<Arc<UpdateReport>>,
    mut status: watch::Receiver<Arc<Status>>,
    duties: watch::Receiver<ExternalWriters>,
    mut images: watch::Receiver<Option<NodeImageSets>>,
    to: Publishers,
    clock: Clock,
    stop: CancellationToken,
) {
    let mut duties = duties;
    let mut damper = DegradedDebounce::default();
    loop {
        let report = without_old_failure(Arc::clone(&update.borrow_and_update()));
        let gates = status.borrow_and_update().gates.clone();
        let does = *duties.borrow_and_update();
        let fault = damper.record_state(degraded_input(&report), Instant::now());
        send(
            &to.notice,
            desired_node_status(&report, &gates, fault, does),
        );
        let before = to.progress.borrow().clone().unwrap_or_default();
        let sets = images.borrow_and_update().clone();
        let progress = does
            .config
            .then(|| progress(&report, fault, sets.as_ref(), &before, &clock));
        send(&to.progress, progress.flatten());
        tokio::select! {
            () = stop.cancelled() => return,
            // All of these are cancel-safe: changes stay marked as unseen, and the timer is
            // absolute.
            told = update.changed() => if told.is_err() { return },
            told = status.changed() => if told.is_err() { return },
            Ok(()) = duties.changed() => {}
            Ok(()) = images.changed() => {}
            () = at(damper.next_change()) => {}
        }
    }
}

/// The report without a failure of a config that is no longer desired, as long as the update to the
/// desired one has changed nothing. A failed rollback is kept, because it concerns the machine.
fn without_old_failure(report: Arc<UpdateReport>) -> Arc<UpdateReport> {
    use Phase as P;
    let unchanged = matches!(
        report.phase,
        P::Idle
            | P::Planned
            | P::Waiting
            | P::Fetching
            | P::Cordoned
            | P::DisablingDevices
            | P::Draining
            | P::Drained
            | P::Staging
    );
    let is_old = report.failure.as_ref().is_some_and(|failure| {
        let both = failure.digest.zip(report.config.desired.as_ref());
        failure.code != Reason::RollbackFailed
            && both.is_some_and(|(failed, desired)| failed != desired.digest)
    });
    match unchanged && is_old {
        true => Arc::new(UpdateReport {
            failure: None,
            ..(*report).clone()
        }),
        false => report,
    }
}

async fn at(when: Option<Instant>) {
    match when {
        Some(when) => sleep_until(when).await,
        None => std::future::pending().await,
    }
}

fn send<T: PartialEq>(to: &watch::Sender<T>, said: T) {
    to.send_if_modified(|known| {
        let differs = *known != said;
        if differs {
            *known = said;
        }
        differs
    });
}

/// The code of the failure that keeps the machine from its desired config, if any. A withdrawn and
/// rolled back config is not a failure.
pub fn failing(report: &UpdateReport) -> Option<Reason> {
    let refused = report.refused.first().map(|refusal| refusal.reason);
    let failure = report.failure.as_ref();
    let failure = failure.filter(|failure| !report.may_pass(failure));
    let failed = failure.map(|failure| failure.code);
    refused.or(failed).filter(|code| *code != Reason::Withdrawn)
}

/// The node is cordoned for an update that this process does not work on yet: it has just started, and the guard may
/// have verified the config already.
fn is_cordon_unresumed(report: &UpdateReport) -> bool {
    report.phase == Phase::Idle && report.cordoned.is_some()
}

/// The machine is on the desired config and no step is left.
fn is_settled(report: &UpdateReport) -> bool {
    let config = &report.config;
    let asked = config.desired.as_ref().or(config.current.as_ref());
    report.phase == Phase::Idle
        && !is_cordon_unresumed(report)
        && !report.unknown
        && failing(report).is_none()
        && config.current.is_some()
        && asked.map(|it| it.digest) == config.current.as_ref().map(|it| it.digest)
}

/// The update to the desired config has not begun, because the controller has not granted it. The node is done with its
/// current config: a node that is working would not be granted anything.
fn awaits_grant(report: &UpdateReport) -> bool {
    let blocked = report.blocked.as_ref().filter(|blocked| blocked.stands);
    report.phase == Phase::Idle
        && !is_cordon_unresumed(report)
        && !report.unknown
        && report.config.current.is_some()
        && blocked.is_some_and(|blocked| blocked.cause.reason == Reason::AwaitingGrant)
}

/// The config can never be applied on this machine, so waiting does not help.
fn is_unreconcilable(report: &UpdateReport) -> bool {
    // That a config cannot be found or read is not a property of the config.
    const SOURCE_REASONS: [Reason; 3] = [
        Reason::ConfigNotFound,
        Reason::SourceUnreadable,
        Reason::SourceEmpty,
    ];
    let refused = report.refused.iter();
    let by_itself = !report.refused.is_empty()
        && refused
            .clone()
            .all(|it| !SOURCE_REASONS.contains(&it.reason));
    let by_the_machine = report.phase == Phase::Idle
        && report.refused.is_empty()
        && report
            .failure
            .as_ref()
            .is_some_and(|it| !it.retryable && it.code != Reason::Withdrawn);
    by_itself || by_the_machine
}

/// Reduces the report to the input of the damper.
pub fn degraded_input(report: &UpdateReport) -> DegradedInput {
    let fault = failing(report).map(|code| MachineFault {
        code,
        state: match is_unreconcilable(report) {
            true => NodeUpdateState::Unreconcilable,
            false => NodeUpdateState::Degraded,
        },
        text: why(report),
    });
    let config = &report.config;
    let asked = config.desired.as_ref().or(config.current.as_ref());
    let is_blocked = report
        .blocked
        .as_ref()
        .is_some_and(|blocked| blocked.stands);
    DegradedInput {
        config: asked.map(|it| it.digest),
        refused: !report.refused.is_empty(),
        at_rest: is_settled(report) || is_blocked && report.phase == Phase::Idle,
        fault,
    }
}

/// The value of the state annotation; none before any config is known. Without a fault, Done is
/// published immediately, because rollouts wait for it.
pub fn state(report: &UpdateReport, fault: Option<&MachineFault>) -> Option<NodeUpdateState> {
    let nothing_known = report.config.current.is_none() && report.config.desired.is_none();
    if let Some(fault) = fault {
        Some(fault.state)
    } else if is_settled(report) || awaits_grant(report) {
        Some(NodeUpdateState::Done)
    } else if nothing_known && failing(report).is_none() {
        None
    } else {
        Some(NodeUpdateState::Working)
    }
}

/// The desired fields of the Node; none before the gates were evaluated.
pub fn desired_node_status(
    report: &UpdateReport,
    gates: &Gates,
    fault: Option<&MachineFault>,
    duties: ExternalWriters,
) -> Option<DesiredNodeStatus> {
    gates.iter().next()?;
    let mut notice = DesiredNodeStatus::default();
    if duties.config {
        notice.annotations = annotations(report, fault);
        notice.stand_back = node_lifecycle::excludes_remediation(report);
    }
    if duties.readiness {
        notice.conditions.push(ready(report, gates));
    }
    if duties.config {
        notice.conditions.extend(node_lifecycle::lifecycle(report));
    }
    Some(notice)
}

fn annotations(
    report: &UpdateReport,
    fault: Option<&MachineFault>,
) -> BTreeMap<&'static str, Option<String>> {
    use keys::{annotation, protocol};
    let mut all = BTreeMap::new();
    if let Some(state) = state(report, fault) {
        all.insert(protocol::STATE, Some(state.to_string()));
        let reason = match (fault, state) {
            (Some(fault), _) => fault.text.clone(),
            (None, NodeUpdateState::Done) if !awaits_grant(report) => String::new(),
            (None, _) => why(report),
        };
        let reason = machinist_kube_api::truncate_at_char(&escape_line(&reason), MAX_REASON_BYTES)
            .to_owned();
        all.insert(protocol::REASON, Some(reason));
    }
    // The current config is published only when pods may be scheduled again, in the same write as
    // Done.
    if let Some(current) = &report.config.current
        && !report.unknown
        && report.phase != Phase::Uncordoning
        && !is_cordon_unresumed(report)
    {
        all.insert(protocol::CURRENT_CONFIG, Some(current.name.clone()));
    }
    let action = match report.phase {
        Phase::RebootPending => "Rebooting",
        _ => "",
    };
    all.insert(protocol::POST_CONFIG_ACTION, Some(action.to_owned()));
    all.insert(annotation::BLOCKED_BY, blocked_by(report));
    all
}

/// The failure with its code; empty if there is none.
fn why(report: &UpdateReport) -> String {
    if failing(report).is_none() {
        return block_reason(report);
    }
    if !report.refused.is_empty() {
        let refusals = report
            .refused
            .iter()
            .map(|it| format!("{}: {it}", it.reason));
        return refusals.collect::<Vec<_>>().join("; ");
    }
    let failure = report.failure.as_ref();
    failure.map_or_else(String::new, |it| format!("{}: {}", it.code, it.message))
}

/// The reason why the update is not started.
fn block_reason(report: &UpdateReport) -> String {
    let blocked = report.blocked.as_ref().filter(|it| it.stands);
    let cause = blocked.map(|it| &it.cause);
    cause.map_or_else(String::new, |it| format!("{}: {}", it.reason, it.message))
}

/// The config whose update was cancelled by an operator, once no step of it is running. Its cordon
/// may still wait for gates, which may stay closed indefinitely.
pub fn cancelled(report: &UpdateReport) -> Option<&str> {
    let blocked = report.blocked.as_ref().filter(|it| it.stands)?;
    let resting = match report.phase {
        Phase::Idle | Phase::Failed => report.cordoned.is_none(),
        Phase::Uncordoning => true,
        _ => false,
    };
    let over = blocked.cause.reason == Reason::Cancelled && resting;
    let desired = report.config.desired.as_ref().filter(|_| over)?;
    Some(&desired.name)
}

fn blocked_by(report: &UpdateReport) -> Option<String> {
    let named = report.blockers.iter();
    let named = named.map(|it| format!("{} ({})", it.full_name(), it.reason));
    let named = named.collect::<Vec<_>>().join(", ");
    (!named.is_empty()).then(|| {
        machinist_kube_api::truncate_at_char(&escape_line(&named), MAX_REASON_BYTES).to_owned()
    })
}

/// The Ready condition. Closed gates that block appear with their messages; gates that only warn
/// appear by name, because their numbers change often. A blocked drain is the condition's reason,
/// so that it is published immediately.
fn ready(report: &UpdateReport, gates: &Gates) -> DesiredCondition {
    let closed = |effect| gates.closed(effect).collect::<Vec<_>>();
    let (holding, warning) = (closed(GateEffect::Hold), closed(GateEffect::Warn));
    let mut parts: Vec<String> = report
        .blockers
        .iter()
        .map(|it| match it.namespace.as_str() {
            "" => format!("{} {}: {}", it.kind, it.name, it.message),
            namespace => format!("{} {namespace}/{}: {}", it.kind, it.name, it.message),
        })
        .collect();
    parts.extend(
        holding
            .iter()
            .map(|it| format!("{}: {}", it.name, it.message)),
    );
    if !warning.is_empty() {
        let named: Vec<_> = warning.iter().map(|it| it.name.to_string()).collect();
        parts.push(format!("warnings: {}", named.join(", ")));
    }
    let blocked = report.blockers.first().map(|it| it.reason);
    let held = holding.first().map(|it| it.reason);
    let message = match parts.is_empty() {
        true => "all gates are open".to_owned(),
        false => parts.join("; "),
    };
    DesiredCondition {
        kind: keys::condition::READY,
        status: if holding.is_empty() { "True" } else { "False" },
        reason: blocked.or(held).unwrap_or(Reason::Ok).to_string(),
        message: machinist_kube_api::truncate_at_char(&escape_line(&message), MAX_REASON_BYTES)
            .to_owned(),
        names: report.blockers.iter().map(Blocker::full_name).collect(),
    }
}

/// The desired status of the MachineConfigNode; none before a config is desired.
fn progress(
    report: &UpdateReport,
    fault: Option<&MachineFault>,
    images: Option<&NodeImageSets>,
    before: &MachineConfigNodeStatus,
    clock: &Clock,
) -> Option<MachineConfigNodeStatus> {
    let config = &report.config;
    let desired = config.desired.as_ref().or(config.current.as_ref())?;
    let degraded = fault.map(|fault| escape_line(&fault.text));
    let mut conditions = conditions(
        report,
        is_settled(report),
        degraded.as_deref(),
        &before.conditions,
        clock.now(),
    );
    if let Some(images) = images {
        conditions.extend(image_sets::conditions(
            images,
            &before.conditions,
            clock.now(),
        ));
    }
    Some(MachineConfigNodeStatus {
        conditions,
        config_version: Some(ConfigVersion {
            current: config
                .current
                .as_ref()
                .map_or_else(String::new, |it| it.name.clone()),
            desired: desired.name.clone(),
        }),
        observed_generation: None,
        pinned_image_sets: images.map_or_else(Vec::new, |images| images.sets.clone()),
    })
}

#[cfg(test)]
mod tests;
