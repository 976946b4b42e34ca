//! Writes the status of pools: only on change, and at most once a second per pool.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use tokio::time::Instant;

use crate::{
    pool_events::PoolEvents,
    pool_status::{RenderOutcome, StatusScope, status_patch},
    requests::LeaderRequests,
    rollout_view::RolloutView,
};
use machinist_base::error_chain::chain;
use machinist_cluster::ClusterError;
use machinist_pool::{Decision, split};

/// The shortest time between two writes of one pool's status.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// Writes the status of pools.
#[derive(Debug, Default)]
pub(crate) struct StatusWriter {
    written: BTreeMap<String, Instant>,
    /// The last warnings of each pool, so that each is logged once.
    warnings: BTreeMap<String, Vec<String>>,
    /// The last holds of each pool.
    holds: BTreeMap<String, Option<&'static str>>,
}

impl StatusWriter {
    /// Writes what has changed. Returns when a write that had to wait is due.
    pub(crate) async fn write(
        &mut self,
        view: &mut RolloutView,
        decision: &Decision,
        renders: &BTreeMap<String, RenderOutcome>,
        scope: StatusScope,
        requests: &LeaderRequests,
        now: Timestamp,
    ) -> Result<Option<Instant>, ClusterError> {
        self.log(decision, view, requests.events());
        let mut patches = Vec::new();
        for members in &split(view.pools(), view.nodes()).pools {
            let name = members.pool.name.as_str();
            let decided = decision.pools.iter().find(|it| it.pool == name);
            let Some(decided) = decided else { continue };
            let render = renders.get(name);
            let patch = status_patch(members, &decided.conditions, render, scope, now);
            patches.extend(patch.map(|patch| (name.to_owned(), patch)));
        }
        let mut due = None;
        for (name, patch) in patches {
            let next = self.written.get(&name).map(|at| *at + STATUS_INTERVAL);
            if let Some(next) = next.filter(|next| *next > Instant::now()) {
                due = Some(due.map_or(next, |due: Instant| due.min(next)));
                continue;
            }
            self.written.insert(name.clone(), Instant::now());
            match requests.patch_pool_status(&name, &patch).await {
                Ok(pool) => view.put_pool(&name, Some(pool)),
                Err(error) if matches!(error.code(), 404 | 409) => {
                    tracing::debug!("{}", chain(&error));
                    view.put_pool(&name, requests.pool(&name).await?);
                    due = Some(Instant::now() + STATUS_INTERVAL);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(due)
    }

    /// Logs what has changed about each pool, and emits events of holds.
    fn log(&mut self, decision: &Decision, view: &RolloutView, events: &PoolEvents) {
        for pool in &decision.pools {
            let name = &pool.pool;
            let known = self.warnings.get(name).map(Vec::as_slice);
            let known = known.unwrap_or_default();
            for warning in pool.warnings.iter().filter(|it| !known.contains(it)) {
                tracing::warn!("{warning}");
            }
            self.warnings.insert(name.clone(), pool.warnings.clone());
            let hold = pool.holds.first().filter(|_| pool.pending > 0);
            let code = hold.map(|hold| hold.reason.as_str());
            let before = self.holds.insert(name.clone(), code);
            if before != Some(code)
                && let Some(hold) = hold
            {
                tracing::info!(
                    "pool {name} waits: {}: {}",
                    hold.reason.as_str(),
                    hold.message
                );
                let target = pool.target.as_deref();
                if let Some(pool) = view.pool(name) {
                    events.held(pool, target, hold);
                }
            }
        }
    }
}
