//! Merges results into the state of the drain.

use std::sync::Arc;

use tokio::time::Instant;

use super::{DrainTask, PodCallResult, reads::ReadOutcome};
use crate::{
    EvictionCallError, EvictionResponse,
    eviction::{
        DrainError, PodApi, PodChange, bounded,
        eviction_queue::EVICTION_BACKOFF,
        preflight::{NodePodsReview, blocker_for, failed},
    },
};

impl<P: PodApi> DrainTask<'_, P> {
    /// A call that was started at `since` got no response from the API server.
    pub(super) fn record_outage(
        &mut self,
        since: Instant,
        act: String,
        source: EvictionCallError,
    ) -> Result<(), DrainError> {
        let (now, wall) = (Instant::now(), self.drain.clock.now());
        if self.api.is_reachable() {
            tracing::warn!(
                act,
                "API server unreachable: {}",
                machinist_base::error_chain::chain(&source)
            );
        }
        let delay = self.api.record_failure(since, wall);
        self.reports.record_change();
        self.watch.close();
        self.survey.reschedule(now + delay);
        match self.drain.options.patience {
            Some(patience) if self.api.is_unreachable_for(patience, now) => {
                Err(DrainError::Unreachable { patience, source })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn record_response(&mut self, result: PodCallResult) -> Result<(), DrainError> {
        let PodCallResult {
            request,
            started_at,
            response,
        } = result;
        let (at, now) = (Instant::now(), self.drain.clock.now());
        self.reports.record_change();
        let (id, forced) = (request.pod.clone(), request.forced);
        let refused = match response {
            Ok(()) => {
                self.queue.record_accepted(&request, at, now);
                return Ok(());
            }
            Err(EvictionCallError::Refused(refused)) if !refused.is_outage() => refused,
            Err(error) => {
                self.queue.record_unanswered(&id, at);
                return self.record_outage(started_at, format!("evict {id}"), error);
            }
        };
        let response = EvictionResponse::of(&refused);
        let after = refused.retry_after;
        match response {
            EvictionResponse::NotFound => self.queue.record_deleted(&id),
            EvictionResponse::NotServed => return Err(DrainError::NotServed),
            EvictionResponse::Forbidden => {
                let act = if forced { "delete" } else { "evict" };
                return Err(failed((
                    format!("{act} {id}"),
                    EvictionCallError::Refused(refused),
                )));
            }
            response => {
                let throttled = matches!(response, EvictionResponse::Throttled(_));
                let budget = matches!(
                    response,
                    EvictionResponse::Budget(..) | EvictionResponse::SeveralBudgets
                );
                let pod = self.queue.pod(&id);
                let what = pod
                    .and_then(|pod| blocker_for(response, pod, self.queue.predicted_blocker(pod)));
                self.queue.record_refused(&id, what, after, at, now);
                if throttled {
                    self.queue.throttled = Some(at + after.unwrap_or(EVICTION_BACKOFF.step(0)));
                }
                if budget {
                    self.read_budgets(id.namespace);
                }
            }
        }
        Ok(())
    }

    /// Reads the budgets of a namespace again, so that the reported state is current.
    fn read_budgets(&mut self, namespace: String) {
        if !self.reads.claim_budgets(&namespace) {
            return;
        }
        let pods = Arc::clone(&self.drain.pods);
        self.reads.spawn(async move {
            let budgets = bounded(pods.budgets(&namespace)).await;
            ReadOutcome::Budgets(namespace, budgets)
        });
    }

    pub(super) fn record_read(&mut self, outcome: ReadOutcome) -> Result<(), DrainError> {
        let now = Instant::now();
        match outcome {
            ReadOutcome::Survey(started_at, review) => {
                self.survey.record_end();
                match *review {
                    Ok(review) => self.merge_survey(review, started_at, now),
                    Err((act, error)) if error.is_forbidden() => Err(failed((act, error))),
                    Err((act, error)) => self.record_outage(started_at, act, error),
                }
            }
            ReadOutcome::Budgets(namespace, budgets) => {
                self.reads.release_budgets(&namespace);
                // If they cannot be read, the message of the refusal is reported.
                if let Ok(budgets) = budgets {
                    self.reports.record_change();
                    self.queue
                        .replace_budgets(&namespace, budgets, self.drain.clock.now());
                }
                Ok(())
            }
            ReadOutcome::Watch(Ok(stream)) => {
                self.watch.open(stream);
                Ok(())
            }
            ReadOutcome::Watch(Err(error)) if error.is_forbidden() => {
                Err(failed(("watch pods".to_owned(), error)))
            }
            ReadOutcome::Watch(Err(_)) => {
                self.survey.schedule_soon(now);
                Ok(())
            }
        }
    }

    fn merge_survey(
        &mut self,
        review: NodePodsReview,
        started_at: Instant,
        now: Instant,
    ) -> Result<(), DrainError> {
        if !review.refuse.is_empty() {
            return Err(DrainError::Refused(review.refuse));
        }
        if let Some(outage) = self.api.record_response(now) {
            let seconds = outage.as_secs();
            tracing::info!(seconds, "API server reachable again");
        }
        self.watch.set_resource_version(review.version.clone());
        self.queue
            .merge_survey(review, started_at, self.drain.clock.now());
        self.reports.record_change();
        if self.survey.record_success() {
            // Budgets that can never allow an eviction are reported before the first eviction.
            self.publish_progress(now);
        }
        let clear = self.queue.tier().is_none();
        self.survey.set_node_is_clear(clear);
        if !clear {
            self.start_watch(now);
        }
        Ok(())
    }

    pub(super) fn record_watch_event(
        &mut self,
        event: Option<Result<PodChange, EvictionCallError>>,
    ) {
        let (at, now) = (Instant::now(), self.drain.clock.now());
        self.reports.record_change();
        match event {
            Some(Ok(PodChange::Bookmark(version))) => self.watch.set_resource_version(version),
            Some(Ok(PodChange::Applied(pod, version))) => {
                self.watch.set_resource_version(version);
                self.survey.set_node_is_clear(false);
                self.queue.merge_pod(*pod, &self.drain.options, at, now);
            }
            Some(Ok(PodChange::Deleted(pod, version))) => {
                self.watch.set_resource_version(version);
                self.queue.record_deleted(&pod);
            }
            // The watch ended normally; the next one resumes from the same version.
            None => {
                self.watch.close();
                match self.watch.ends_immediately(at) {
                    true => self.survey.schedule_soon(at),
                    false => self.start_watch(at),
                }
            }
            // A survey finds the missed changes, and also detects whether the server is
            // unreachable.
            Some(Err(_)) => {
                self.watch.close();
                self.survey.schedule_soon(at);
            }
        }
    }
}
