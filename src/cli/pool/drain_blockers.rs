//! Finds the PodDisruptionBudgets that would block the drains of nodes now.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Serialize;

use machinist_base::reason::Reason;
use machinist_drain::{BudgetForecast, DisruptionBudget, Pod, WaitReason, blocking_forecast};

/// Budgets that allow no eviction of a pod now, and the nodes whose drains wait for them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct DrainBlocker {
    /// The budgets, as `namespace/name`; several if they match the same pod, which no eviction satisfies.
    pub(super) budgets: Vec<String>,
    /// The rule as written, such as `maxUnavailable 0`; empty for several budgets.
    pub(super) rule: String,
    /// Why the eviction is not allowed.
    pub(super) reason: Reason,
    pub(super) message: String,
    pub(super) nodes: BTreeSet<String>,
    /// The matching pods, as `namespace/name`.
    pub(super) pods: BTreeSet<String>,
}

/// The budgets that block the drains of these nodes.
pub(super) fn drain_blockers(
    nodes: &[&str],
    pods: &BTreeMap<String, Vec<Pod>>,
    budgets: &[DisruptionBudget],
    now: Timestamp,
) -> Vec<DrainBlocker> {
    let mut found: BTreeMap<Vec<String>, DrainBlocker> = BTreeMap::new();
    for node in nodes {
        for pod in pods.get(*node).into_iter().flatten() {
            let Some(forecast) = blocking_forecast(pod, budgets, now) else {
                continue;
            };
            let Some(why) = WaitReason::from_prospect(pod, &forecast) else {
                continue;
            };
            let blocker = blocker(&forecast, why.reason());
            let entry = found.entry(blocker.budgets.clone()).or_insert(blocker);
            entry.nodes.insert((*node).to_owned());
            entry.pods.insert(pod.id.to_string());
        }
    }
    found.into_values().collect()
}

fn blocker(forecast: &BudgetForecast<'_>, reason: Reason) -> DrainBlocker {
    let (budgets, rule, message) = match forecast {
        BudgetForecast::Several(all) => (
            all.iter().map(ToString::to_string).collect(),
            String::new(),
            "match the same pod, which the API server refuses to evict".to_owned(),
        ),
        BudgetForecast::Later(one) | BudgetForecast::Never(one) | BudgetForecast::Allowed(one) => {
            (vec![one.to_string()], one.rule.clone(), allowance(one))
        }
        BudgetForecast::Free => (Vec::new(), String::new(), String::new()),
    };
    DrainBlocker {
        budgets,
        rule,
        reason,
        message,
        nodes: BTreeSet::new(),
        pods: BTreeSet::new(),
    }
}

fn allowance(budget: &DisruptionBudget) -> String {
    match budget.counts {
        None => "has no current status, so that it allows no disruption yet".to_owned(),
        Some(_) if budget.never_allows() => {
            "allows 0 disruptions, and never more with this rule and number of pods".to_owned()
        }
        Some(counts) => format!("allows {} disruptions ({counts})", counts.allowed),
    }
}
