//! Sends the patches of Nodes that a decision requests.

use crate::{
    budget_recovery::BudgetRecovery, eviction_blockers::EvictionBlockers, node_patch::node_patch,
    requests::LeaderRequests, rollout_log::log_patch, rollout_view::RolloutView,
    taint_budget::TaintBudget,
};
use machinist_base::{clock::Clock, error_chain::chain};
use machinist_cluster::ClusterError;
use machinist_kube_api::NodeView;
use machinist_pool::{NodeChange, NodePatchRequest};

/// Sends patches of Nodes, and records what later decisions need to know about them.
#[derive(Debug)]
pub(crate) struct NodePatchSender {
    clock: Clock,
    /// How many taints may still be changed.
    pub(crate) taints: TaintBudget,
    /// The budgets of the pods that granted drains evict.
    pub(crate) recovery: BudgetRecovery,
}

impl NodePatchSender {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            taints: TaintBudget::new(),
            recovery: BudgetRecovery::default(),
        }
    }

    /// Sends patches of Nodes, which are independent of each other. Returns whether one was refused because the Node has
    /// changed.
    pub(crate) async fn send(
        &mut self,
        patches: &[&NodePatchRequest],
        view: &mut RolloutView,
        blockers: &EvictionBlockers,
        requests: &LeaderRequests,
    ) -> Result<bool, ClusterError> {
        let mut is_refused = false;
        let mut failure = None;
        for request in patches {
            let Some(node) = view.node(&request.node) else {
                continue;
            };
            let now = self.clock.now();
            let recovery = &mut self.recovery;
            let budgets = recovery.budgets_of_grant(node, &request.change, blockers, requests, now);
            let budgets = budgets.await?;
            let operations = node_patch(node, request, budgets.as_deref());
            if matches!(
                request.change,
                NodeChange::AddTaint | NodeChange::RemoveTaint
            ) {
                self.taints.take();
            }
            match requests.patch_node(&request.node, &operations).await {
                Ok(node) => {
                    log_patch(request);
                    view.put_node(&request.node, Some(node));
                }
                Err(error) if error.is_conflict() || error.is_not_found() => {
                    tracing::debug!("{}", chain(&error));
                    let live = requests.node(&request.node).await?;
                    let is_same = |it: &NodeView| it.resource_version == request.resource_version;
                    if live.as_ref().is_some_and(is_same) {
                        // The version is not why it was refused: the object itself is invalid.
                        tracing::warn!(reason = %error.reason(), "{}", chain(&error));
                        failure = failure.or(Some(error));
                    }
                    view.put_node(&request.node, live);
                    is_refused = true;
                }
                // The API server refuses this Node; others may be patched.
                Err(error) if matches!(error.code(), 400..=428 | 430..=499) => {
                    tracing::warn!(reason = %error.reason(), "{}", chain(&error));
                    failure = failure.or(Some(error));
                }
                Err(error) => return Err(error),
            }
        }
        match failure {
            Some(error) => Err(error),
            None => Ok(is_refused),
        }
    }
}
