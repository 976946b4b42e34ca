//! What the agents of the model do to their own Nodes.

use super::{ApiServer, next_version, set};
use crate::{GrantOutcome, grant_ends, open_grant, with_end};
use machinist_kube_api::{
    NodeUpdateState,
    keys::{annotation, protocol},
};

/// A step of an agent. Each is one patch of the Node as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::tests) enum AgentStep {
    /// Acknowledge the grant, in one patch with the cordon.
    Acknowledge,
    /// End the grant without or after an update.
    End(GrantOutcome),
    /// Fail after the drain: the node stays cordoned, and the grant open.
    FailDrained,
    /// Report that pods block the drain.
    Block,
}

/// Carries out a step; `false` if the node is not in the state for it.
pub(in crate::tests) fn act(server: &mut ApiServer, name: &str, step: &AgentStep) -> bool {
    let now = server.now;
    let Some(node) = server.nodes.iter_mut().find(|it| it.name == name) else {
        return false;
    };
    let Some(grant) = open_grant(node).unwrap().filter(|it| it.uid == node.uid) else {
        return false;
    };
    let began = matches!(
        step,
        AgentStep::End(GrantOutcome::Done | GrantOutcome::Failed | GrantOutcome::Cancelled)
            | AgentStep::FailDrained
            | AgentStep::Block
    );
    // Nothing more happens after a failure until the grant has another target.
    let has_failed = node.state() == Some(NodeUpdateState::Degraded) && grant.acknowledged;
    let is_cancel = *step == AgentStep::End(GrantOutcome::Cancelled);
    if grant.acknowledged != began || (has_failed && (is_cancel || *step == AgentStep::Block)) {
        return false;
    }
    match step {
        AgentStep::Acknowledge => {
            set(node, annotation::GRANT_ACKNOWLEDGED, Some(&grant.id));
            set(node, protocol::STATE, Some("Working"));
            node.spec.unschedulable = true;
        }
        AgentStep::FailDrained => set(node, protocol::STATE, Some("Degraded")),
        AgentStep::Block => set(
            node,
            annotation::BLOCKED_BY,
            Some("shop/db-0 (DrainBlocked)"),
        ),
        AgentStep::End(outcome) => {
            let ends = grant_ends(node).unwrap();
            let text = with_end(&ends, grant.end(outcome.clone(), "", now));
            set(node, annotation::GRANT_ENDS, Some(&text));
            for name in [
                annotation::GRANT,
                annotation::GRANT_ACKNOWLEDGED,
                annotation::BLOCKED_BY,
                annotation::CANCEL,
            ] {
                set(node, name, None);
            }
            node.spec.unschedulable = false;
            let state = if outcome.is_failure() {
                "Degraded"
            } else {
                "Done"
            };
            set(node, protocol::STATE, Some(state));
            if *outcome == GrantOutcome::Done {
                set(node, protocol::CURRENT_CONFIG, Some(&grant.target));
                set(node, protocol::DESIRED_CONFIG, Some(&grant.target));
            }
        }
    }
    node.resource_version = next_version(&node.resource_version);
    true
}
