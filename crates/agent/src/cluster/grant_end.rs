//! Ends the grant of this node's update: the end mark on the Node frees its slot for the next node.
//!
//! How an update ended is derived from the Node and the update report alone, so that an agent that was restarted or a
//! Node that was created again ends its grant like any other.

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use machinist_base::{clock::Clock, error_chain::chain, reason::Reason};
use machinist_cluster::{
    node::{OwnNode, update_grant},
    publisher,
};
use machinist_kube_api::{NodeUpdateState, NodeView};
use machinist_pool::{Grant, GrantOutcome};
use machinist_status::PinStatus;
use machinist_update::{phase::Phase, reconciler::UpdateReport};

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
            let mark = grant.end(outcome, &reason, clock.now());
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
    if let Some(block) = report.barred.as_ref().filter(|block| block.stands) {
        return match (block.bar.reason, grant.acknowledged) {
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

const fn is_failure(state: NodeUpdateState) -> bool {
    matches!(
        state,
        NodeUpdateState::Degraded | NodeUpdateState::Unreconcilable
    )
}

/// Whether nothing of an update is left: no step, no cordon of ours, nothing to verify and nothing to undo.
fn is_at_rest(report: &UpdateReport) -> bool {
    report.phase == Phase::Idle
        && report.cordoned.is_none()
        && !report.unverified
        && !report.unknown
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use machinist_base::digest::Digest;
    use machinist_ignition::Refusal;
    use machinist_kube_api::keys::protocol;
    use machinist_pool::GrantKind;
    use machinist_update::{
        journal::{ConfigName, UpdateFailure},
        reconciler::{BlockReason, BlockedUpdate, UpdateConfigState},
    };

    use super::*;

    fn grant(acknowledged: bool) -> Grant {
        Grant {
            id: "g1".to_owned(),
            kind: GrantKind::Config,
            pool: "worker".to_owned(),
            node: "a".to_owned(),
            uid: "uid".to_owned(),
            target: "new".to_owned(),
            time: Timestamp::UNIX_EPOCH,
            acknowledged,
            failed: false,
            rollback: false,
            rest: std::collections::BTreeMap::new(),
        }
    }

    /// A Node with this current config, desired config and state.
    fn node(text: &str) -> NodeView {
        let mut view = NodeView::default();
        let names = [
            protocol::CURRENT_CONFIG,
            protocol::DESIRED_CONFIG,
            protocol::STATE,
        ];
        for (name, value) in names.into_iter().zip(text.split(' ')) {
            view.annotations.insert(name.to_owned(), value.to_owned());
        }
        view
    }

    fn ended(node: &str, report: &UpdateReport, acknowledged: bool) -> String {
        match outcome(&grant(acknowledged), &self::node(node), report, false) {
            Some((outcome, reason)) => format!("{} {reason}", String::from(outcome)),
            None => String::new(),
        }
    }

    fn report(current: &str, desired: &str) -> UpdateReport {
        let name = |name: &str| Some(ConfigName::new(name, Digest::of(name.as_bytes())));
        UpdateReport {
            config: UpdateConfigState {
                current: name(current),
                desired: name(desired),
            },
            ..UpdateReport::default()
        }
    }

    fn blocked(reason: Reason) -> UpdateReport {
        let bar = BlockReason {
            reason,
            message: String::new(),
        };
        UpdateReport {
            barred: Some(BlockedUpdate {
                bar: Arc::new(bar),
                stands: true,
            }),
            ..report("old", "new")
        }
    }

    fn failed() -> UpdateReport {
        UpdateReport {
            failure: Some(UpdateFailure {
                code: Reason::VerifyFailed,
                message: String::new(),
                retryable: false,
                digest: Some(Digest::of(b"new")),
                refusals: Vec::new(),
            }),
            ..report("old", "new")
        }
    }

    #[test]
    fn a_grant_ends_when_the_node_shows_how_its_update_ended() {
        let cordoned = UpdateReport {
            cordoned: Some(Timestamp::UNIX_EPOCH),
            ..failed()
        };
        let rebooting = UpdateReport {
            unverified: true,
            ..report("old", "new")
        };
        let done = || report("new", "new");
        for (what, node, report, acknowledged, expected) in [
            ("done", "new new Done", done(), true, "Done "),
            ("done, not shown", "old new Working", done(), true, ""),
            ("equal content", "new new Done", done(), false, "Done "),
            (
                "failed",
                "old new Degraded",
                failed(),
                true,
                "RolledBack VerifyFailed",
            ),
            ("failed, not shown", "old new Working", failed(), true, ""),
            (
                "failed after its drain",
                "old new Degraded",
                cordoned,
                true,
                "",
            ),
            ("in a reboot", "old new Working", rebooting, true, ""),
        ] {
            assert_eq!(ended(node, &report, acknowledged), expected, "{what}");
        }
    }

    #[test]
    fn a_refused_config_ends_its_grant_as_a_failure() {
        let refused = |config: &str| {
            let mut refusal = Refusal::new(Reason::SourceRemote, "");
            refusal.config = Some(config.into());
            UpdateReport {
                refused: Arc::new(vec![refusal]),
                ..report("old", "new")
            }
        };
        let mut plan_refused = failed();
        if let Some(failure) = &mut plan_refused.failure {
            failure.code = Reason::ReadOnly;
            failure.refusals = vec![Refusal::new(Reason::ReadOnly, "")];
        }
        for (what, report, expected) in [
            ("refused", refused("new"), "Failed SourceRemote"),
            ("an earlier one", refused("older"), ""),
            ("no plan", plan_refused, "Failed ReadOnly"),
        ] {
            assert_eq!(
                ended("old new Degraded", &report, false),
                expected,
                "{what}"
            );
        }
    }

    #[test]
    fn a_grant_of_an_update_that_does_not_begin_is_declined_or_cancelled() {
        let waiting = UpdateReport {
            phase: Phase::Waiting,
            opens: Some(Timestamp::UNIX_EPOCH),
            ..report("old", "new")
        };
        let withdrawn = report("old", "old");
        for (node, report, acknowledged, expected) in [
            (
                "old new Done",
                blocked(Reason::Cancelled),
                true,
                "Cancelled Cancelled",
            ),
            (
                "old new Done",
                blocked(Reason::Cancelled),
                false,
                "Declined Cancelled",
            ),
            (
                "old new Done",
                blocked(Reason::OtherDaemon),
                false,
                "Declined OtherDaemon",
            ),
            // The report is older than the grant.
            ("old new Done", blocked(Reason::AwaitingGrant), false, ""),
            (
                "old new Working",
                waiting.clone(),
                false,
                "Declined OutsideWindow",
            ),
            // It began before the window closed.
            ("old new Working", waiting, true, ""),
            (
                "old old Done",
                withdrawn,
                true,
                "Cancelled DesiredConfigChanged",
            ),
            // The desired config of the Node was not received yet.
            ("old old Done", report("old", "new"), true, ""),
        ] {
            assert_eq!(
                ended(node, &report, acknowledged),
                expected,
                "{node} {report:?}"
            );
        }
        let node = node("old new Done");
        let pinned = outcome(&grant(false), &node, &report("old", "new"), true);
        assert_eq!(pinned, Some((GrantOutcome::Declined, PINNED.to_owned())));
    }
}
