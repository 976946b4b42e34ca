//! Finds the nodes whose drain a PodDisruptionBudget would block now, so that these are updated last.
//!
//! Budgets are watched. Pods are read only before a grant, and only those of budgets that allow no disruption.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use tokio::time::Instant;

use crate::{
    failure_log::log_failure,
    inbox::ReportedChanges,
    requests::LeaderRequests,
    watched_budget::{BoundPod, WatchedBudget},
};
use machinist_cluster::ClusterError;
use machinist_drain::{BudgetForecast, DisruptionBudget, Pod, blocking_forecast, is_evicted};

/// How long the pods of a budget are used while it does not change: they may have moved.
const MAX_AGE: Duration = Duration::from_secs(60);

/// The shortest time between two reads: during drains budgets change several times a second.
const MIN_READ_INTERVAL: Duration = Duration::from_secs(5);

/// Nodes whose drain is blocked, with the blockers.
pub(crate) type BlockedNodes = BTreeMap<String, BTreeSet<String>>;

/// Caches budgets, the pods of those that allow no disruption, and the nodes that these block.
#[derive(Debug, Default)]
pub(crate) struct EvictionBlockers {
    /// By namespace and name.
    budgets: BTreeMap<String, WatchedBudget>,
    /// The pods of budgets that allow no disruption, and when they were read. A changed budget has none.
    pods: BTreeMap<String, (Vec<BoundPod>, Instant)>,
    nodes: BTreeMap<String, Vec<String>>,
    read: Option<Instant>,
    /// Whether a budget that allows no disruption has changed since the last read, or now allows some.
    is_stale: bool,
    is_forbidden: bool,
}

impl EvictionBlockers {
    /// Takes the reports of the watch on budgets.
    pub(crate) fn take_budgets(&mut self, reports: ReportedChanges<WatchedBudget>) {
        if let Some(listed) = reports.listed {
            let key = |it: &WatchedBudget| it.budget.to_string();
            self.budgets = listed.into_iter().map(|it| (key(&it), it)).collect();
            self.pods.clear();
            self.is_stale = true;
        }
        for (name, new) in reports.changes {
            let known = self.budgets.get(&name);
            let blocks = |it: Option<&WatchedBudget>| it.is_some_and(WatchedBudget::allows_none);
            if known != new.as_ref() && (blocks(known) || blocks(new.as_ref())) {
                self.pods.remove(&name);
                self.is_stale = true;
            }
            match new {
                Some(new) => drop(self.budgets.insert(name, new)),
                None => drop(self.budgets.remove(&name)),
            }
        }
    }

    /// Whether the cluster has no budget.
    pub(crate) fn is_empty(&self) -> bool {
        self.budgets.is_empty()
    }

    /// The budget of this namespace and name, separated by a slash.
    pub(crate) fn budget(&self, name: &str) -> Option<&DisruptionBudget> {
        self.budgets.get(name).map(|it| &it.budget)
    }

    /// The names of the budgets of pods that a drain evicts.
    pub(crate) fn budgets_of(&self, pods: &[Pod], now: Timestamp) -> Vec<String> {
        let evicted = pods.iter().filter(|pod| is_evicted(pod, now));
        let evicted: Vec<_> = evicted.collect();
        let budgets = self.budgets.iter().filter(|(_, it)| {
            let mut pods = evicted.iter();
            pods.any(|pod| it.budget.counts_pod(pod))
        });
        budgets.map(|(name, _)| name.clone()).collect()
    }

    /// The blocked nodes, as they were last read.
    pub(crate) fn by_node(&self) -> BTreeMap<&str, Vec<String>> {
        let nodes = self.nodes.iter();
        nodes
            .map(|(node, blockers)| (node.as_str(), blockers.clone()))
            .collect()
    }

    /// When pods may be read again.
    pub(crate) fn next_read(&self) -> Instant {
        let interval = match self.is_stale {
            true => MIN_READ_INTERVAL,
            false => MAX_AGE,
        };
        self.read.map_or_else(Instant::now, |read| read + interval)
    }

    /// Reads the pods of budgets that allow no disruption, unless they were read a short time ago.
    pub(crate) async fn read(
        &mut self,
        requests: &LeaderRequests,
        now: Timestamp,
    ) -> Result<(), ClusterError> {
        self.read_pods(requests).await?;
        let mut nodes = BlockedNodes::new();
        for (name, (pods, _)) in &self.pods {
            let (namespace, _) = name.split_once('/').unwrap_or_default();
            let budgets = self.budgets.values();
            let budgets = budgets.filter(|it| it.budget.namespace == namespace);
            let budgets: Vec<_> = budgets.map(|it| it.budget.clone()).collect();
            add_blocked(&mut nodes, pods, &budgets, now);
        }
        let listed = |(node, blockers): (String, BTreeSet<String>)| {
            (node, blockers.into_iter().collect::<Vec<_>>())
        };
        self.nodes = nodes.into_iter().map(listed).collect();
        self.read = Some(Instant::now());
        self.is_stale = false;
        Ok(())
    }

    async fn read_pods(&mut self, requests: &LeaderRequests) -> Result<(), ClusterError> {
        let Self { budgets, pods, .. } = self;
        let now = Instant::now();
        pods.retain(|name, (_, read)| {
            let is_blocking = budgets.get(name).is_some_and(WatchedBudget::allows_none);
            is_blocking && *read + MAX_AGE > now
        });
        let unread = budgets.iter();
        let unread = unread.filter(|(name, it)| it.allows_none() && !pods.contains_key(*name));
        let unread: Vec<_> = unread.collect();
        for (name, watched) in unread {
            let Some(selector) = watched.selector.as_deref() else {
                continue;
            };
            match requests.pods(&watched.budget.namespace, selector).await {
                Ok(found) => drop(pods.insert(name.clone(), (found, Instant::now()))),
                Err(error) if error.is_forbidden() => {
                    // Blocked nodes are then updated in their ordinary order.
                    log_failure(&error, !self.is_forbidden);
                    self.is_forbidden = true;
                    pods.clear();
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Adds the nodes of pods that a drain would evict and that their budgets keep.
fn add_blocked(
    nodes: &mut BlockedNodes,
    pods: &[BoundPod],
    budgets: &[DisruptionBudget],
    now: Timestamp,
) {
    for BoundPod { node, pod } in pods {
        let forecast = blocking_forecast(pod, budgets, now);
        if let Some(blocker) = forecast.and_then(|forecast| blocker(pod, &forecast)) {
            nodes.entry(node.clone()).or_default().insert(blocker);
        }
    }
}

/// What keeps the pod, named by the budget, because many pods may have the same one.
fn blocker(pod: &Pod, forecast: &BudgetForecast<'_>) -> Option<String> {
    match forecast {
        BudgetForecast::Free | BudgetForecast::Allowed(_) => None,
        BudgetForecast::Later(budget) | BudgetForecast::Never(budget) => {
            let allowed = match budget.counts {
                Some(_) => "0 disruptions allowed, ",
                None => "",
            };
            Some(format!(
                "PodDisruptionBudget {budget} ({}): {allowed}{}",
                budget.rule,
                budget.counts_text()
            ))
        }
        BudgetForecast::Several(budgets) => {
            let names: Vec<_> = budgets.iter().map(|it| it.name.as_str()).collect();
            Some(format!(
                "pod {} is selected by several PodDisruptionBudgets: {}",
                pod.id,
                names.join(", ")
            ))
        }
    }
}

#[cfg(test)]
mod tests;
