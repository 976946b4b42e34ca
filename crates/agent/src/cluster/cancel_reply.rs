//! Replies to cancellation requests of operators, on the Node and by an event.

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use machinist_base::{error_chain::chain, reason::Reason};
use machinist_cluster::{
    events::{EventSubject, Events},
    node::{NodeSnapshot, OwnNode},
    publisher,
};
use machinist_kube_api::EventReason;
use machinist_update::{phase::Phase, reconciler::UpdateReport};

/// Retry interval after a failed request.
const CANCEL_REPLY_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The reply to the cancellation request on the Node.
#[derive(Debug, PartialEq, Eq)]
enum CancelReply {
    /// The Node already names another config, so the request is obsolete.
    Over,
    /// The request came too late; the text explains why.
    Refused(String),
}

/// Replies to requests that are late or obsolete, and emits an event for each cancelled update,
/// until `stop`. A successful cancellation is published with the machine's state, not here.
pub(super) async fn reply_to_cancellations(
    node: OwnNode,
    update: watch::Receiver<Arc<UpdateReport>>,
    events: Events,
    stop: CancellationToken,
) {
    // Cancel-safe: an unanswered request stays on the Node.
    stop.run_until_cancelled(answering(node, update, events))
        .await;
}

async fn answering(node: OwnNode, mut update: watch::Receiver<Arc<UpdateReport>>, events: Events) {
    let mut snapshots = node.snapshots();
    // A cancellation that the Node already shows was reported by the previous process.
    let mut told = match snapshots.wait_for(|snapshot| snapshot.asked).await {
        Ok(snapshot) => snapshot
            .node
            .as_ref()
            .and_then(|node| node.cancelled().map(str::to_owned)),
        Err(_) => return,
    };
    loop {
        let report = Arc::clone(&update.borrow_and_update());
        let asked = asked(&snapshots.borrow_and_update());
        let cancelled = publisher::cancelled(&report).map(str::to_owned);
        if cancelled.is_some() && cancelled != told {
            let note =
                "the machine was not changed; it is uncordoned as soon as its gates are open";
            let note = format!("update to {} cancelled: {note}", report_name(&report));
            events.emit(EventSubject::Node, EventReason::UpdateCancelled, note);
        }
        told = cancelled.or(told.filter(|_| asked.is_some()));
        let mut failed = false;
        if let Some((config, desired)) = asked
            && let Some(answer) = judge(&config, desired.as_deref(), &report)
        {
            let why = match &answer {
                CancelReply::Over => None,
                CancelReply::Refused(why) => Some(why.as_str()),
            };
            match node.answer_cancel(&config, why).await {
                Ok(()) => {
                    if let Some(why) = why {
                        let note = format!("cannot cancel the update to {config}: {why}");
                        events.emit(EventSubject::Node, EventReason::CancelRefused, note);
                    }
                }
                Err(error) => {
                    tracing::warn!(reason = %error.reason(), "{}", chain(&error));
                    failed = true;
                }
            }
        }
        tokio::select! {
            // All of these are cancel-safe: a change stays marked as unseen, and the timer is only
            // a retry.
            changed = update.changed() => if changed.is_err() { return },
            Ok(()) = snapshots.changed() => {}
            () = tokio::time::sleep(CANCEL_REPLY_RETRY_INTERVAL), if failed => {}
        }
    }
}

/// The config whose update is to be cancelled, and the Node's desired config.
fn asked(snapshot: &NodeSnapshot) -> Option<(String, Option<String>)> {
    let node = snapshot.node.as_ref()?;
    let desired = node.desired_config().map(str::to_owned);
    Some((node.cancel()?.to_owned(), desired))
}

fn report_name(report: &UpdateReport) -> &str {
    let desired = report.config.desired.as_ref();
    desired.map_or("unknown config", |config| config.name.as_str())
}

/// None while the request is pending, or while the reconciler has not processed it yet.
fn judge(config: &str, desired: Option<&str>, report: &UpdateReport) -> Option<CancelReply> {
    if desired != Some(config) {
        return Some(CancelReply::Over);
    }
    // During a reboot the reconciler processes no requests; an update that has reached it cannot be
    // cancelled.
    let late = report.unverified || {
        let blocked = report.blocked.as_ref()?;
        !blocked.stands && blocked.cause.reason == Reason::Cancelled
    };
    if !late || report.config.desired.as_ref()?.name != config {
        return None;
    }
    let current = report.config.current.as_ref();
    let on_it = current.is_some_and(|current| current.name == config);
    Some(CancelReply::Refused(match report.phase {
        _ if on_it => "it is already applied".to_owned(),
        Phase::RebootPending => {
            "its files are in place and a reboot is pending; to revert it, run machinist rollback"
                .to_owned()
        }
        phase => format!(
            "its changes are already being applied ({}); to revert them, run machinist rollback",
            phase.name()
        ),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use machinist_base::digest::Digest;
    use machinist_update::{
        journal::ConfigName,
        reconciler::{BlockReason, BlockedUpdate, UpdateConfigState},
    };

    fn report(stands: bool, current: &str, phase: Phase) -> UpdateReport {
        let name = |name: &str| ConfigName::new(name, Digest::of(name.as_bytes()));
        let cause = BlockReason {
            reason: Reason::Cancelled,
            message: String::new(),
        };
        UpdateReport {
            phase,
            blocked: Some(BlockedUpdate {
                cause: Arc::new(cause),
                stands,
            }),
            config: UpdateConfigState {
                current: Some(name(current)),
                desired: Some(name("new")),
            },
            ..UpdateReport::default()
        }
    }

    #[test]
    fn cancel_request_is_dropped_on_another_config_and_refused_when_too_late() {
        let refused = |report: &UpdateReport| match judge("new", Some("new"), report) {
            Some(CancelReply::Refused(why)) => why,
            other => panic!("{other:?}"),
        };
        let waits = report(true, "old", Phase::Draining);
        assert_eq!(judge("new", Some("new"), &waits), None);
        assert_eq!(judge("new", Some("newer"), &waits), Some(CancelReply::Over));
        assert_eq!(judge("new", None, &waits), Some(CancelReply::Over));
        assert!(refused(&report(false, "old", Phase::RunningActions)).contains("(RunningActions)"));
        assert!(refused(&report(false, "old", Phase::RebootPending)).contains("reboot is pending"));
        assert!(refused(&report(false, "new", Phase::Idle)).contains("already applied"));
        let unseen = UpdateReport {
            blocked: None,
            ..waits
        };
        assert_eq!(judge("new", Some("new"), &unseen), None);
        let reboots = UpdateReport {
            unverified: true,
            phase: Phase::RebootPending,
            ..unseen
        };
        assert!(refused(&reboots).contains("reboot is pending"));
    }
}
