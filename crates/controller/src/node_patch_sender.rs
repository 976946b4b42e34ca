//! Sends the patches of Nodes that a decision requests.

use futures_util::{StreamExt as _, stream};

use crate::{
    budget_recovery::BudgetRecovery, eviction_blockers::EvictionBlockers, node_patch::node_patch,
    requests::LeaderRequests, rollout_log::log_patch, rollout_view::RolloutView,
    taint_budget::TaintBudget,
};
use machinist_base::{clock::Clock, error_chain::chain};
use machinist_cluster::ClusterError;
use machinist_kube_api::NodeView;
use machinist_pool::{NodeChange, NodePatchRequest};

/// How many Nodes are patched at the same time: a large pool starts hundreds of updates at once.
const MAX_CONCURRENT_PATCHES: usize = 8;

/// Sends patches of Nodes, and records what later decisions need to know about them.
#[derive(Debug)]
pub(crate) struct NodePatchSender {
    clock: Clock,
    /// How many taints may still be changed.
    pub(crate) taints: TaintBudget,
    /// The budgets of the pods that granted drains evict.
    pub(crate) recovery: BudgetRecovery,
}

/// The response to a patch.
#[derive(Debug)]
enum PatchOutcome {
    Patched(NodeView),
    /// The Node has changed since the decision; `live` is what it is now.
    Changed {
        live: Option<NodeView>,
    },
    /// The API server refuses this Node; others may be patched.
    Refused(ClusterError),
    /// The patch itself is refused: the Node has not changed.
    Invalid {
        live: Option<NodeView>,
        error: ClusterError,
    },
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
        let changes = patches.iter().map(|request| &request.change);
        let is_taint =
            |it: &&NodeChange| matches!(it, NodeChange::AddTaint | NodeChange::RemoveTaint);
        self.taints.take(changes.filter(is_taint).count());
        let (outcomes, failure) = self.outcomes(patches, view, blockers, requests).await;
        let mut is_refused = false;
        let mut refusal = None;
        for (request, outcome) in outcomes {
            match outcome {
                PatchOutcome::Patched(node) => {
                    log_patch(request);
                    view.put_node(&request.node, Some(node));
                }
                PatchOutcome::Changed { live } => {
                    view.put_node(&request.node, live);
                    is_refused = true;
                }
                PatchOutcome::Invalid { live, error } => {
                    tracing::warn!(reason = %error.reason(), "{}", chain(&error));
                    view.put_node(&request.node, live);
                    refusal = refusal.or(Some(error));
                }
                PatchOutcome::Refused(error) => {
                    tracing::warn!(reason = %error.reason(), "{}", chain(&error));
                    refusal = refusal.or(Some(error));
                }
            }
        }
        match failure.or(refusal) {
            Some(error) => Err(error),
            None => Ok(is_refused),
        }
    }

    /// Sends patches until all are sent or one fails in a way that concerns all Nodes. The responses up to then are
    /// returned; a request that was under way is noticed by the watch.
    async fn outcomes<'r>(
        &self,
        patches: &[&'r NodePatchRequest],
        view: &RolloutView,
        blockers: &EvictionBlockers,
        requests: &LeaderRequests,
    ) -> (
        Vec<(&'r NodePatchRequest, PatchOutcome)>,
        Option<ClusterError>,
    ) {
        let known = patches
            .iter()
            .filter_map(|request| Some((*request, view.node(&request.node)?)));
        let each = known.map(|(request, node)| async move {
            let outcome = self.patch(request, node, blockers, requests).await;
            outcome.map(|outcome| (request, outcome))
        });
        // The list makes the type of the futures independent of the iterator's closures.
        let each: Vec<_> = each.collect();
        let mut sent = stream::iter(each).buffer_unordered(MAX_CONCURRENT_PATCHES);
        let mut outcomes = Vec::new();
        while let Some(outcome) = sent.next().await {
            match outcome {
                Ok(outcome) => outcomes.push(outcome),
                Err(error) => return (outcomes, Some(error)),
            }
        }
        (outcomes, None)
    }

    async fn patch(
        &self,
        request: &NodePatchRequest,
        node: &NodeView,
        blockers: &EvictionBlockers,
        requests: &LeaderRequests,
    ) -> Result<PatchOutcome, ClusterError> {
        let (recovery, now) = (&self.recovery, self.clock.now());
        let budgets = recovery.budgets_of_grant(node, &request.change, blockers, requests, now);
        let operations = node_patch(node, request, budgets.await?.as_deref());
        match requests.patch_node(&request.node, &operations).await {
            Ok(node) => Ok(PatchOutcome::Patched(node)),
            Err(error) if error.is_conflict() || error.is_not_found() => {
                tracing::debug!("{}", chain(&error));
                let live = requests.node(&request.node).await?;
                let is_same = |it: &NodeView| it.resource_version == request.resource_version;
                Ok(match live.as_ref().is_some_and(is_same) {
                    true => PatchOutcome::Invalid { live, error },
                    false => PatchOutcome::Changed { live },
                })
            }
            Err(error) if matches!(error.code(), 400..=428 | 430..=499) => {
                Ok(PatchOutcome::Refused(error))
            }
            Err(error) => Err(error),
        }
    }
}
