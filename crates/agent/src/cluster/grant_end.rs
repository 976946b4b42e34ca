//! Ends the grant of this node's update: the end mark on the Node frees its slot for the next node.
//!
//! How an update ended is derived from the Node and the update report alone, so that an agent that was restarted or a
//! Node that was created again ends its grant like any other.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use machinist_base::{clock::Clock, error_chain::chain, reason::Reason};
use machinist_cluster::{
    node::{OwnNode, update_grant},
    publisher,
};
use machinist_kube_api::{NodeUpdateState, NodeView};
use machinist_pool::{Grant, GrantEnd, GrantOutcome, UpdateTimes};
use machinist_status::PinStatus;
use machinist_update::{journal::UpdateRecord, phase::Phase, reconciler::UpdateReport};

/// Retry interval after a failed request.
const END_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The reason of a grant that is declined because an operator has pinned this machine to another config.
const PINNED: &str = "Pinned";

/// Ends grants until `stop`.
pub(super) async fn end_grants(
    node: OwnNode,
    update: watch::Receiver<Arc<UpdateReport>>,
    held: watch::Receiver<Option<PinStatus>>,
    clock: Clock,
    stop: CancellationToken,
) {
    // Cancel-safe: a grant that has not ended stays on the Node.
    stop.run_until_cancelled(ending(node, update, held, clock))
        .await;
}

async fn ending(
    node: OwnNode,
    mut update: watch::Receiver<Arc<UpdateReport>>,
    mut held: watch::Receiver<Option<PinStatus>>,
    clock: Clock,
) {
    let mut snapshots = node.snapshots();
    loop {
        let report = Arc::clone(&update.borrow_and_update());
        let is_pinned = held.borrow_and_update().is_some();
        let view = snapshots.borrow_and_update().node.clone();
        let mut failed = false;
        if let Some(view) = view
            && let Some(grant) = update_grant(&view)
            && let Some((outcome, reason)) = outcome(&grant, &view, &report, is_pinned)
        {
            let mark = GrantEnd {
                times: update_times(&grant, &report),
                ..grant.end(outcome, &reason, clock.now())
            };
            if let Err(error) = node.end_grant(&view, mark).await {
                // A conflict means that the Node has changed; its next version decides.
                if !error.is_conflict() {
                    tracing::warn!(reason = %error.reason(), "{}", chain(&error));
                }
                failed = true;
            }
        }
        tokio::select! {
            // All of these are cancel-safe: a change stays marked as unseen, and the timer is only
            // a retry.
            changed = update.changed() => if changed.is_err() { return },
            Ok(()) = snapshots.changed() => {}
            Ok(()) = held.changed() => {}
            () = tokio::time::sleep(END_RETRY_INTERVAL), if failed => {}
        }
    }
}

/// How the update of a grant has ended, with the code of an outcome other than `Done`; `None` while it has not.
///
/// The Node has to show the result first: a grant that ends before its node is `Done` would make a node look free that
/// still counts as updating.
fn outcome(
    grant: &Grant,
    view: &NodeView,
    report: &UpdateReport,
    is_pinned: bool,
) -> Option<(GrantOutcome, String)> {
    let ended = |outcome, reason: Reason| Some((outcome, reason.to_string()));
    let is_waiting = report.phase == Phase::Waiting && !grant.acknowledged;
    if is_waiting && report.opens.is_some() && !report.opens_for_the_cluster {
        return ended(GrantOutcome::Declined, Reason::OutsideWindow);
    }
    if !is_at_rest(report) {
        return None;
    }
    if is_pinned {
        return Some((GrantOutcome::Declined, PINNED.to_owned()));
    }
    if let Some(refusal) = report.refused.first() {
        // Refusals of an earlier config say nothing about this one.
        let target = Some(grant.target.as_str());
        let is_refused = refusal.config.as_deref() == target && view.desired_config() == target;
        let ended = ended(GrantOutcome::Failed, refusal.reason);
        return ended.filter(|_| is_refused && view.state().is_some_and(is_failure));
    }
    let desired = report.config.desired.as_ref().map(|it| it.name.as_str());
    if desired != view.desired_config() {
        // The reconciler has not received it yet.
        return None;
    }
    if desired != Some(grant.target.as_str()) {
        return ended(GrantOutcome::Cancelled, Reason::DesiredConfigChanged);
    }
    if let Some(block) = report.blocked.as_ref().filter(|block| block.stands) {
        return match (block.cause.reason, grant.acknowledged) {
            // The report is older than the grant.
            (Reason::AwaitingGrant, _) => None,
            (Reason::Cancelled, true) => ended(GrantOutcome::Cancelled, Reason::Cancelled),
            (reason, _) => ended(GrantOutcome::Declined, reason),
        };
    }
    if let Some(code) = publisher::failing(report) {
        let failure = report.failure.as_ref();
        let outcome = match failure.is_some_and(|failure| failure.refusals.is_empty()) {
            true => GrantOutcome::RolledBack,
            // It was refused before anything changed.
            false => GrantOutcome::Failed,
        };
        return ended(outcome, code).filter(|_| view.state().is_some_and(is_failure));
    }
    let current = report.config.current.as_ref().map(|it| it.name.as_str());
    let is_done = current == desired
        && view.current_config() == current
        && view.state() == Some(NodeUpdateState::Done);
    is_done.then(|| (GrantOutcome::Done, String::new()))
}

/// How long the update of a grant took; `None` if none began under it.
fn update_times(grant: &Grant, report: &UpdateReport) -> Option<UpdateTimes> {
    let is_of_grant =
        |it: &&UpdateRecord| it.to == grant.target && it.finished >= grant.time && !it.repair;
    let update = report.updates.iter().find(is_of_grant)?;
    let mut phases = BTreeMap::new();
    for phase in &update.phases {
        let time = phase.finished.unwrap_or(update.finished);
        let seconds = time.duration_since(phase.started).as_secs();
        *phases.entry(phase.name.clone()).or_default() += u64::try_from(seconds).unwrap_or(0);
    }
    Some(UpdateTimes {
        phases,
        blocked: update.blocked_for,
    })
}

const fn is_failure(state: NodeUpdateState) -> bool {
    matches!(
        state,
        NodeUpdateState::Degraded | NodeUpdateState::Unreconcilable
    )
}

/// Whether nothing of an update is left: no step, no cordon of ours, nothing to verify and nothing to undo. A refused plan
/// that the agent would make again by itself must not hold back the other nodes or the stop of the rollout.
fn is_at_rest(report: &UpdateReport) -> bool {
    let failure = report.failure.as_ref();
    let has_no_step = match report.phase {
        Phase::Idle => true,
        Phase::Failed => failure.is_some_and(|failure| !failure.refusals.is_empty()),
        _ => false,
    };
    has_no_step && report.cordoned.is_none() && !report.unverified && !report.unknown
}

#[cfg(test)]
mod tests;
