//! Sends requests to the API server, each in a task of its own.

use std::sync::Arc;

use tokio::time::Instant;

use super::{DrainTask, PodCallResult, reads::ReadOutcome};
use crate::{
    Grace,
    eviction::{
        BudgetMode, EvictionMethod, PodApi, bounded, eviction_queue::DueRequest, preflight::survey,
    },
};

impl<P: PodApi> DrainTask<'_, P> {
    pub(super) fn send_request(&mut self, request: DueRequest, started_at: Instant) {
        let (pods, options) = (Arc::clone(&self.drain.pods), &self.drain.options);
        let evict = options.way == BudgetMode::Evict && !request.forced;
        let how = EvictionMethod {
            grace: match request.forced {
                true => Grace::Own,
                false => options.grace,
            },
            dry_run: false,
        };
        if request.forced {
            let pod = &request.pod;
            let budget_note = if request.blocked_by_budget {
                " despite its PodDisruptionBudget"
            } else {
                ""
            };
            tracing::warn!(%pod, "forced drain: pod deleted{budget_note}, with its own grace period");
        }
        self.evictions.spawn(async move {
            let response = match evict {
                true => bounded(pods.evict(&request.pod, how)).await,
                false => bounded(pods.delete(&request.pod, how)).await,
            };
            PodCallResult {
                request,
                started_at,
                response,
            }
        });
    }

    pub(super) fn start_survey(&mut self, now: Instant) {
        let drain = self.drain;
        let (pods, node) = (Arc::clone(&drain.pods), drain.node.clone());
        let (rules, clock) = (drain.options.rules.clone(), drain.clock.clone());
        let sets = self.queue.daemon_sets();
        self.survey.record_start(now);
        self.reads.spawn(async move {
            let review = survey(pods.as_ref(), &node, &rules, sets, &clock);
            ReadOutcome::Survey(now, Box::new(review.await))
        });
    }

    pub(super) fn start_watch(&mut self, now: Instant) {
        let drain = self.drain;
        let (pods, node) = (Arc::clone(&drain.pods), drain.node.clone());
        let version = self.watch.record_request(now);
        self.reads
            .spawn(async move { ReadOutcome::Watch(bounded(pods.watch(&node, &version)).await) });
    }
}
