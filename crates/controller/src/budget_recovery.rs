//! Holds the next grant back until the PodDisruptionBudgets of drained pods have recovered.
//!
//! The budgets are recorded on the Node when its grant is placed, because the pods are gone when the grant ends, and
//! another replica may be the leader then.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::atomic::{AtomicBool, Ordering},
};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{
    eviction_blockers::EvictionBlockers, failure_log::log_failure, requests::LeaderRequests,
    rollout_view::RolloutView,
};
use machinist_base::text::join_limited;
use machinist_cluster::ClusterError;
use machinist_drain::DisruptionBudget;
use machinist_kube_api::{NodeView, keys::annotation};
use machinist_pool::{ClosedGate, Grant, NodeChange, RolloutSettings, grant_ends};

/// How many budgets are recorded on a Node: more would not fit beside its other annotations.
const MAX_BUDGETS: usize = 64;

/// The age at which a drain that another leader has seen holds nothing back, even if the pool sets no timeout.
const MAX_UNSEEN_DRAIN_AGE: SignedDuration = SignedDuration::from_hours(24);

/// How many budgets a message names.
const MAX_NAMED_BUDGETS: usize = 5;

/// The value of the annotation with the budgets of a node's drain.
#[derive(Debug, Serialize, Deserialize)]
struct GrantBudgets {
    grant: String,
    pool: String,
    budgets: Vec<String>,
}

/// A drain that has ended.
#[derive(Clone, Debug)]
struct EndedDrain {
    grant: String,
    pool: String,
    budgets: Vec<String>,
    ended: Timestamp,
    /// This process has waited for its budgets.
    has_waited: bool,
    /// Its budgets have recovered, or were waited for long enough.
    is_settled: bool,
}

/// The gates of budgets that have not recovered.
#[derive(Debug, Default)]
pub(crate) struct BudgetGates {
    pub(crate) closed: Vec<ClosedGate>,
    /// When the next gate opens without an event.
    pub(crate) next_opening: Option<Timestamp>,
    /// Budgets that have not recovered in time, with their pools; each drain is named once.
    pub(crate) overdue: Vec<(String, String)>,
}

/// Remembers which drains have ended.
#[derive(Debug, Default)]
pub(crate) struct BudgetRecovery {
    /// The last drain of each Node that has ended.
    drains: HashMap<String, EndedDrain>,
    /// The generation of the view that they were read from.
    seen: u64,
    /// Whether it was logged that the pods of a Node cannot be read.
    is_forbidden: AtomicBool,
}

impl BudgetRecovery {
    /// Returns the value of the Node's annotation if a grant is about to be placed; `None` if it does not change.
    pub(crate) async fn budgets_of_grant(
        &self,
        node: &NodeView,
        change: &NodeChange,
        blockers: &EvictionBlockers,
        requests: &LeaderRequests,
        now: Timestamp,
    ) -> Result<Option<String>, ClusterError> {
        let NodeChange::PlaceGrant { grant, .. } = change else {
            return Ok(None);
        };
        let Ok(Grant { id, pool, .. }) = serde_json::from_str(grant) else {
            return Ok(None);
        };
        let is_recorded = recorded(node).is_some_and(|it| it.grant == id);
        if blockers.is_empty() || is_recorded {
            // A grant with a new target was drained before.
            return Ok(None);
        }
        let pods = match requests.pods_of_node(&node.name).await {
            Ok(pods) => pods,
            Err(error) if error.is_forbidden() || error.is_not_found() => {
                // Then nothing waits for budgets.
                let is_known = self.is_forbidden.swap(true, Ordering::Relaxed);
                log_failure(&error, !is_known);
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let mut budgets = blockers.budgets_of(&pods, now);
        budgets.truncate(MAX_BUDGETS);
        let record = GrantBudgets {
            grant: id,
            pool,
            budgets,
        };
        Ok(serde_json::to_string(&record).ok())
    }

    /// Evaluates the gates.
    pub(crate) fn gates(
        &mut self,
        view: &RolloutView,
        blockers: &EvictionBlockers,
        now: Timestamp,
    ) -> BudgetGates {
        self.read_drains(view);
        let timeouts = timeouts(view);
        let mut gates = BudgetGates::default();
        let mut reasons: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for (node, drain) in self.drains.iter_mut().filter(|(_, it)| !it.is_settled) {
            let Some(timeout) = timeouts.get(drain.pool.as_str()) else {
                continue;
            };
            let known = drain.budgets.iter();
            let known = known.filter_map(|name| blockers.budget(name));
            let pending = known.filter(|it| !it.has_recovered());
            let pending: Vec<_> = pending.map(|it| describe(it, node)).collect();
            // Whether the budgets of an old drain had recovered before, a new leader does not know.
            let limit = timeout.or((!drain.has_waited).then_some(MAX_UNSEEN_DRAIN_AGE));
            let open_at = limit.and_then(|limit| drain.ended.checked_add(limit).ok());
            if pending.is_empty() {
                drain.is_settled = true;
            } else if open_at.is_none_or(|at| now < at) {
                drain.has_waited = true;
                reasons.entry(&drain.pool).or_default().extend(pending);
                let openings = open_at.into_iter().chain(gates.next_opening);
                gates.next_opening = openings.min();
            } else {
                drain.is_settled = true;
                if drain.has_waited {
                    let all = join_limited(pending.iter(), MAX_NAMED_BUDGETS);
                    gates.overdue.push((drain.pool.clone(), all));
                }
            }
        }
        gates.closed = reasons
            .into_iter()
            .map(|(pool, reasons)| ClosedGate {
                pool: Some(pool.to_owned()),
                message: join_limited(reasons.iter(), MAX_NAMED_BUDGETS),
            })
            .collect();
        gates
    }

    /// Reads the drains of Nodes that have changed.
    fn read_drains(&mut self, view: &RolloutView) {
        for node in view.nodes_changed_since(self.seen) {
            let known = self.drains.remove(&node.name);
            let Some(mut drain) = ended_drain(node) else {
                continue;
            };
            if let Some(known) = known.filter(|it| it.grant == drain.grant) {
                (drain.has_waited, drain.is_settled) = (known.has_waited, known.is_settled);
            }
            self.drains.insert(node.name.clone(), drain);
        }
        if view.last_removal() > self.seen {
            self.drains.retain(|node, _| view.node(node).is_some());
        }
        self.seen = view.generation();
    }
}

/// How long each pool's grants wait for budgets, `None` for as long as it takes; without the pools that do not wait, and
/// those whose settings cannot be used, which grant nothing.
fn timeouts(view: &RolloutView) -> BTreeMap<&str, Option<SignedDuration>> {
    let all = view.pools().iter().filter_map(|pool| {
        let settings = RolloutSettings::of(pool).ok()?;
        Some((pool.name.as_str(), settings.budget_recovery_timeout))
    });
    all.filter(|(_, timeout)| *timeout != Some(SignedDuration::ZERO))
        .collect()
}

fn recorded(node: &NodeView) -> Option<GrantBudgets> {
    let text = node.annotation(annotation::GRANT_BUDGETS)?;
    // Another writer's text holds nothing back.
    serde_json::from_str(text).ok()
}

/// The drain of the Node's last grant; `None` if it has not ended or evicted nothing.
fn ended_drain(node: &NodeView) -> Option<EndedDrain> {
    let GrantBudgets {
        grant,
        pool,
        mut budgets,
    } = recorded(node)?;
    let ends = grant_ends(node).ok()?;
    let end = ends
        .iter()
        .find(|end| end.id == grant && end.may_have_drained())?;
    budgets.truncate(MAX_BUDGETS);
    Some(EndedDrain {
        grant,
        pool,
        budgets,
        ended: end.time,
        has_waited: false,
        is_settled: false,
    })
}

fn describe(budget: &DisruptionBudget, node: &str) -> String {
    format!(
        "PodDisruptionBudget {budget} has not recovered since the drain of {node}: {}",
        budget.counts_text()
    )
}

#[cfg(test)]
mod tests;
