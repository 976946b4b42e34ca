//! Sends requests to the API server, each in a task of its own.

use std::sync::Arc;

use tokio::time::Instant;

use super::{DrainTask, MIN_REQUEST_SPACING, PodCallResult, ReadOutcome};
use crate::{
    Grace,
    eviction::{
        BudgetMode, EvictionMethod, PodApi, bounded, eviction_queue::DueRequest, preflight::survey,
    },
};

impl<P: PodApi> DrainTask<'_, P> {
    pub(super) fn send_request(&mut self, request: DueRequest, asked: Instant) {
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
            let past = if request.kept {
                " despite its PodDisruptionBudget"
            } else {
                ""
            };
            tracing::warn!(%pod, "forced drain: pod deleted{past}, with its own grace period");
        }
        self.asks.spawn(async move {
            let answer = match evict {
                true => bounded(pods.evict(&request.pod, how)).await,
                false => bounded(pods.delete(&request.pod, how)).await,
            };
            PodCallResult {
                request,
                asked,
                answer,
            }
        });
    }

    pub(super) fn start_survey(&mut self, now: Instant) {
        let drain = self.drain;
        let (pods, node) = (Arc::clone(&drain.pods), drain.node.clone());
        let (rules, clock) = (drain.options.rules.clone(), drain.clock.clone());
        let sets = self.book.sets();
        (self.looking, self.look_at, self.looked) = (true, None, Some(now));
        self.looks.spawn(async move {
            let found = survey(pods.as_ref(), &node, &rules, sets, &clock);
            ReadOutcome::Node(now, Box::new(found.await))
        });
    }

    /// Schedules a survey soon, because the watch has failed.
    pub(super) fn schedule_survey(&mut self, now: Instant) {
        let soon = self
            .looked
            .map_or(now, |looked| now.max(looked + MIN_REQUEST_SPACING));
        self.look_at.get_or_insert(soon);
    }

    pub(super) fn watch(&mut self, now: Instant) {
        self.watched = Some(now);
        let drain = self.drain;
        let (pods, node) = (Arc::clone(&drain.pods), drain.node.clone());
        let version = self.version.clone();
        self.looks.spawn(async move {
            ReadOutcome::Watching(bounded(pods.watch(&node, &version)).await)
        });
    }
}
