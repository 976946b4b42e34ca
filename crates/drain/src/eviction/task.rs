//! The task that runs a drain: starts due requests, and merges results into the state.

mod api_outage;
mod deadline;
mod pod_watch;
mod progress_reports;
mod reads;
mod requests;
mod results;
mod survey_schedule;

use std::{panic::resume_unwind, pin::pin, time::Duration};

use tokio::{
    sync::watch,
    task::{JoinError, JoinSet},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    Drain, DrainError, DrainSummary, EvictionCallError, EvictionProgress, ForceState, PodApi,
    eviction_queue::{DueRequest, EvictionQueue, NextWake},
};

use api_outage::ApiReachability;
use deadline::DrainDeadline;
use pod_watch::PodWatch;
use progress_reports::ProgressReports;
use reads::ApiReads;
use survey_schedule::SurveySchedule;

/// The response to a request for one pod.
struct PodCallResult {
    request: DueRequest,
    started_at: Instant,
    response: Result<(), EvictionCallError>,
}

pub(super) struct DrainTask<'a, P> {
    drain: &'a Drain<P>,
    force: ForceState,
    queue: EvictionQueue,
    /// Running evictions and deletions.
    evictions: JoinSet<PodCallResult>,
    reads: ApiReads,
    watch: PodWatch,
    survey: SurveySchedule,
    api: ApiReachability,
    deadline: DrainDeadline,
    reports: ProgressReports,
}

impl<'a, P: PodApi> DrainTask<'a, P> {
    pub(super) fn new(drain: &'a Drain<P>, force: ForceState, started_at: Instant) -> Self {
        let limit = drain.options.time_limit;
        Self {
            api: ApiReachability::new(force.spent),
            deadline: DrainDeadline::new(limit, started_at, drain.clock.now()),
            survey: SurveySchedule::new(started_at),
            reports: ProgressReports::new(),
            drain,
            force,
            queue: EvictionQueue::default(),
            evictions: JoinSet::new(),
            reads: ApiReads::default(),
            watch: PodWatch::default(),
        }
    }

    pub(super) async fn run(mut self, stop: CancellationToken) -> Result<DrainSummary, DrainError> {
        let result = self.run_until_drained(stop).await;
        // Wait for running evictions, each of which has a timeout.
        while let Some(joined) = self.evictions.join_next().await {
            if let Ok(response) = joined {
                // The drain has already ended for another reason, so the result does not matter.
                let _ = self.record_response(response);
            }
        }
        self.publish_progress(Instant::now());
        result.map(|()| DrainSummary {
            progress: self.drain.progress.borrow().clone(),
        })
    }

    async fn run_until_drained(&mut self, stop: CancellationToken) -> Result<(), DrainError> {
        loop {
            let now = Instant::now();
            if self.survey.node_is_clear() && self.queue.tier().is_none() {
                return Ok(());
            }
            self.check_deadline(now)?;
            self.start_due_requests(now);
            if self.reports.is_due(now) {
                self.publish_progress(now);
            }
            let mut sleep = pin!(sleep_until(self.next_wake(now)));
            tokio::select! {
                // Cancel-safe: the token stays cancelled.
                () = stop.cancelled() => return Err(DrainError::Stopped),
                // Cancel-safe: a set returns a result only if this branch is selected.
                Some(joined) = self.evictions.join_next() => self.record_response(joined_value(joined))?,
                // Cancel-safe, as above.
                Some(joined) = self.reads.join_next() => self.record_read(joined_value(joined))?,
                // Cancel-safe: a stream keeps unread items.
                event = self.watch.next() => self.record_watch_event(event),
                // Cancel-safe: a missed change stays marked as unseen.
                () = force_requested(&mut self.force.ordered) => self.reports.record_change(),
                // Cancel-safe: the next round computes the time again.
                () = &mut sleep => self.reports.record_change(),
            }
        }
    }

    fn is_forced_by_operator(&self) -> bool {
        self.force.ordered.borrow().is_some()
    }

    fn check_deadline(&self, now: Instant) -> Result<(), DrainError> {
        match self.deadline.exceeded(now) {
            Some(limit) => Err(DrainError::TimedOut {
                limit,
                waits: self.progress(now).waits,
            }),
            None => Ok(()),
        }
    }

    /// Evictions may be requested: the pods are known, and the API server responds.
    const fn may_evict(&self) -> bool {
        self.survey.has_succeeded() && self.api.is_reachable()
    }

    fn is_at_request_limit(&self) -> bool {
        self.evictions.len() >= self.drain.options.at_once.max(1)
    }

    fn start_due_requests(&mut self, now: Instant) {
        let (spent, forced) = (self.api.spent(now), self.is_forced_by_operator());
        let options = &self.drain.options;
        if self.may_evict() {
            let wall = self.drain.clock.now();
            self.queue.stop_waiting(options, spent, forced, wall);
            while !self.is_at_request_limit() {
                let Some(request) = self.queue.start_next(options, spent, forced, now) else {
                    break;
                };
                self.reports.record_change();
                self.send_request(request, now);
            }
            if self.queue.tier().is_none() {
                self.survey.ensure_scheduled(now);
            }
        }
        if self.survey.is_due(now) {
            self.start_survey(now);
        }
    }

    fn progress(&self, now: Instant) -> EvictionProgress {
        let wall = self.drain.clock.now();
        EvictionProgress {
            begun: self.survey.has_succeeded(),
            spent: self.api.spent(now),
            away_since: self.api.unreachable_since(),
            ordered: self.force.ordered.borrow().clone(),
            ..self.queue.progress(wall, self.deadline.expires_at())
        }
    }

    fn publish_progress(&mut self, now: Instant) {
        let progress = self.progress(now);
        self.drain.progress.send_replace(progress);
        self.reports.record_published(now);
    }

    /// When the next round is due if no other event occurs.
    fn next_wake(&self, now: Instant) -> Instant {
        let mut first = self.reports.next_at(now);
        let mut earlier = |at: Option<Instant>| first = at.map_or(first, |at| at.min(first));
        let options = &self.drain.options;
        earlier(self.deadline.at());
        earlier(self.survey.next_at());
        if self.may_evict() {
            let force = options.limits.next(self.api.spent(now));
            earlier(force.map(|left| now + left));
            for wake in self.queue.next_wakes(options, self.drain.clock.now()) {
                match wake {
                    // A response frees a slot, and is waited for anyway.
                    NextWake::At(_) if self.is_at_request_limit() => {}
                    NextWake::At(at) => earlier(Some(at)),
                    NextWake::In(left) => earlier(Some(now + left)),
                }
            }
        }
        // All due requests were started before, so the minimum delay prevents a busy loop over
        // those that could not.
        first.max(now + Duration::from_millis(1))
    }
}

/// Propagates a panic of a spawned task.
fn joined_value<T>(joined: Result<T, JoinError>) -> T {
    match joined {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // Tasks are aborted only when the set is dropped, so this is not expected.
            Err(error) => resume_unwind(Box::new(error.to_string())),
        },
    }
}

/// Waits for a change of the operator's force request; forever if the sender is dropped.
async fn force_requested(reason: &mut watch::Receiver<Option<String>>) {
    if reason.changed().await.is_err() {
        std::future::pending().await
    }
}
