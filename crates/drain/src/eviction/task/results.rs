//! Merges results into the state of the drain.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    ApiOutage, DrainTask, MIN_REQUEST_SPACING, OUTAGE_BACKOFF, PodCallResult, ReadOutcome,
};
use crate::{
    EvictionCallError, EvictionResponse,
    eviction::{
        DrainError, PodApi, PodChange, bounded,
        eviction_queue::EVICTION_BACKOFF,
        preflight::{NodePodsReview, blocker_for, failed},
    },
};
use machinist_base::backoff::jitter;

impl<P: PodApi> DrainTask<'_, P> {
    /// A call that was started at `since` got no response from the API server.
    pub(super) fn record_outage(
        &mut self,
        since: Instant,
        act: String,
        source: EvictionCallError,
    ) -> Result<(), DrainError> {
        let (now, wall) = (Instant::now(), self.drain.clock.now());
        if self.away.is_none() {
            tracing::warn!(
                act,
                "API server unreachable: {}",
                machinist_base::error_chain::chain(&source)
            );
            self.spent.stop(since);
        }
        let away = self.away.get_or_insert(ApiOutage {
            since,
            told: wall,
            failures: 0,
        });
        self.changed = true;
        self.changes = None;
        self.look_at = Some(now + OUTAGE_BACKOFF.wait(away.failures, jitter()));
        away.failures += 1;
        match self.drain.options.patience {
            Some(patience) if now >= away.since + patience => {
                Err(DrainError::Unreachable { patience, source })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn record_response(&mut self, answered: PodCallResult) -> Result<(), DrainError> {
        let PodCallResult {
            request,
            asked,
            answer,
        } = answered;
        let (at, now) = (Instant::now(), self.drain.clock.now());
        self.changed = true;
        let (id, forced) = (request.pod.clone(), request.forced);
        let refused = match answer {
            Ok(()) => {
                self.book.record_accepted(&request, at, now);
                return Ok(());
            }
            Err(EvictionCallError::Refused(refused)) if !refused.is_outage() => refused,
            Err(error) => {
                self.book.record_unanswered(&id, at);
                return self.record_outage(asked, format!("evict {id}"), error);
            }
        };
        let answer = EvictionResponse::of(&refused);
        let after = refused.retry_after;
        match answer {
            EvictionResponse::Gone => self.book.record_deleted(&id),
            EvictionResponse::NotServed => return Err(DrainError::NotServed),
            EvictionResponse::Forbidden => {
                let act = if forced { "delete" } else { "evict" };
                return Err(failed((
                    format!("{act} {id}"),
                    EvictionCallError::Refused(refused),
                )));
            }
            answer => {
                let throttled = matches!(answer, EvictionResponse::Throttled(_));
                let budget = matches!(
                    answer,
                    EvictionResponse::Budget(..) | EvictionResponse::SeveralBudgets
                );
                let pod = self.book.pod(&id);
                let what =
                    pod.and_then(|pod| blocker_for(answer, pod, self.book.predicted_blocker(pod)));
                self.book.record_refused(&id, what, after, at, now);
                if throttled {
                    self.book.throttled = Some(at + after.unwrap_or(EVICTION_BACKOFF.step(0)));
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
        if !self.reading.insert(namespace.clone()) {
            return;
        }
        let pods = Arc::clone(&self.drain.pods);
        self.looks.spawn(async move {
            let budgets = bounded(pods.budgets(&namespace)).await;
            ReadOutcome::Budgets(namespace, budgets)
        });
    }

    pub(super) fn record_read(&mut self, looked: ReadOutcome) -> Result<(), DrainError> {
        let now = Instant::now();
        match looked {
            ReadOutcome::Node(asked, found) => {
                self.looking = false;
                match *found {
                    Ok(found) => self.found(found, asked, now),
                    Err((act, error)) if error.is_forbidden() => Err(failed((act, error))),
                    Err((act, error)) => self.record_outage(asked, act, error),
                }
            }
            ReadOutcome::Budgets(namespace, budgets) => {
                self.reading.remove(&namespace);
                // If they cannot be read, the message of the refusal is reported.
                if let Ok(budgets) = budgets {
                    self.changed = true;
                    self.book.read(&namespace, budgets, self.drain.clock.now());
                }
                Ok(())
            }
            ReadOutcome::Watching(Ok(changes)) => {
                self.changes = Some(changes);
                Ok(())
            }
            ReadOutcome::Watching(Err(error)) if error.is_forbidden() => {
                Err(failed(("watch pods".to_owned(), error)))
            }
            ReadOutcome::Watching(Err(_)) => {
                self.schedule_survey(now);
                Ok(())
            }
        }
    }

    fn found(
        &mut self,
        found: NodePodsReview,
        asked: Instant,
        now: Instant,
    ) -> Result<(), DrainError> {
        if !found.refuse.is_empty() {
            return Err(DrainError::Refused(found.refuse));
        }
        if let Some(away) = self.away.take() {
            let seconds = now.saturating_duration_since(away.since).as_secs();
            tracing::info!(seconds, "API server reachable again");
        }
        self.spent.since.get_or_insert(now);
        self.version.clone_from(&found.version);
        self.book.merge_survey(found, asked, self.drain.clock.now());
        self.changed = true;
        if !std::mem::replace(&mut self.begun, true) {
            // Budgets that can never allow an eviction are reported before the first eviction.
            self.tell(now);
        }
        self.clean = self.book.tier().is_none();
        if !self.clean {
            self.watch(now);
        }
        Ok(())
    }

    pub(super) fn change(&mut self, change: Option<Result<PodChange, EvictionCallError>>) {
        let (at, now) = (Instant::now(), self.drain.clock.now());
        self.changed = true;
        match change {
            Some(Ok(PodChange::Upto(version))) => self.version = version,
            Some(Ok(PodChange::Is(pod, version))) => {
                self.version = version;
                self.clean = false;
                self.book.merge_pod(*pod, &self.drain.options, at, now);
            }
            Some(Ok(PodChange::Gone(pod, version))) => {
                self.version = version;
                self.book.record_deleted(&pod);
            }
            // The watch ended normally; the next one resumes from the same version.
            None => {
                self.changes = None;
                match self
                    .watched
                    .is_some_and(|began| at < began + MIN_REQUEST_SPACING)
                {
                    true => self.schedule_survey(at),
                    false => self.watch(at),
                }
            }
            // A survey finds the missed changes, and also detects whether the server is
            // unreachable.
            Some(Err(_)) => {
                self.changes = None;
                self.schedule_survey(at);
            }
        }
    }
}
