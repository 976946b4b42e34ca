//! Merges results into the state of the drain.

use std::sync::Arc;

use tokio::time::Instant;

use super::{AWAY, Answered, Away, Looked, SPACED, Task};
use crate::{
    backoff::jitter,
    drain::{
        Answer, CallError,
        evict::{
            Change, DrainError, Pods,
            book::PAUSES,
            bounded,
            survey::{Survey, failed, what},
        },
    },
};

impl<P: Pods> Task<'_, P> {
    /// A call that was started at `since` got no response from the API server.
    pub(super) fn lost(
        &mut self,
        since: Instant,
        act: String,
        source: CallError,
    ) -> Result<(), DrainError> {
        let (now, wall) = (Instant::now(), self.drain.clock.now());
        if self.away.is_none() {
            tracing::warn!(
                act,
                "API server unreachable: {}",
                crate::error_chain::chain(&source)
            );
            self.spent.stop(since);
        }
        let away = self.away.get_or_insert(Away {
            since,
            told: wall,
            failures: 0,
        });
        self.changed = true;
        self.changes = None;
        self.look_at = Some(now + AWAY.wait(away.failures, jitter()));
        away.failures += 1;
        match self.drain.options.patience {
            Some(patience) if now >= away.since + patience => {
                Err(DrainError::Unreachable { patience, source })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn answered(&mut self, answered: Answered) -> Result<(), DrainError> {
        let Answered {
            request,
            asked,
            answer,
        } = answered;
        let (at, now) = (Instant::now(), self.drain.clock.now());
        self.changed = true;
        let (id, forced) = (request.pod.clone(), request.forced);
        let refused = match answer {
            Ok(()) => {
                self.book.accepted(&request, at, now);
                return Ok(());
            }
            Err(CallError::Refused(refused)) if !refused.is_outage() => refused,
            Err(error) => {
                self.book.unanswered(&id, at);
                return self.lost(asked, format!("evict {id}"), error);
            }
        };
        let answer = Answer::of(&refused);
        let after = refused.retry_after;
        match answer {
            Answer::Gone => self.book.is_gone(&id),
            Answer::NotServed => return Err(DrainError::NotServed),
            Answer::Forbidden => {
                let act = if forced { "delete" } else { "evict" };
                return Err(failed((format!("{act} {id}"), CallError::Refused(refused))));
            }
            answer => {
                let throttled = matches!(answer, Answer::Throttled(_));
                let budget = matches!(answer, Answer::Budget(..) | Answer::SeveralBudgets);
                let pod = self.book.pod(&id);
                let what = pod.and_then(|pod| what(answer, pod, self.book.foreseen(pod)));
                self.book.refused(&id, what, after, at, now);
                if throttled {
                    self.book.throttled = Some(at + after.unwrap_or(PAUSES.step(0)));
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
            Looked::Budgets(namespace, budgets)
        });
    }

    pub(super) fn looked(&mut self, looked: Looked) -> Result<(), DrainError> {
        let now = Instant::now();
        match looked {
            Looked::Node(asked, found) => {
                self.looking = false;
                match *found {
                    Ok(found) => self.found(found, asked, now),
                    Err((act, error)) if error.is_forbidden() => Err(failed((act, error))),
                    Err((act, error)) => self.lost(asked, act, error),
                }
            }
            Looked::Budgets(namespace, budgets) => {
                self.reading.remove(&namespace);
                // If they cannot be read, the message of the refusal is reported.
                if let Ok(budgets) = budgets {
                    self.changed = true;
                    self.book.read(&namespace, budgets, self.drain.clock.now());
                }
                Ok(())
            }
            Looked::Watching(Ok(changes)) => {
                self.changes = Some(changes);
                Ok(())
            }
            Looked::Watching(Err(error)) if error.is_forbidden() => {
                Err(failed(("watch pods".to_owned(), error)))
            }
            Looked::Watching(Err(_)) => {
                self.look_again(now);
                Ok(())
            }
        }
    }

    fn found(&mut self, found: Survey, asked: Instant, now: Instant) -> Result<(), DrainError> {
        if !found.refuse.is_empty() {
            return Err(DrainError::Refused(found.refuse));
        }
        if let Some(away) = self.away.take() {
            let seconds = now.saturating_duration_since(away.since).as_secs();
            tracing::info!(seconds, "API server reachable again");
        }
        self.spent.since.get_or_insert(now);
        self.version.clone_from(&found.version);
        self.book.take(found, asked, self.drain.clock.now());
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

    pub(super) fn change(&mut self, change: Option<Result<Change, CallError>>) {
        let (at, now) = (Instant::now(), self.drain.clock.now());
        self.changed = true;
        match change {
            Some(Ok(Change::Upto(version))) => self.version = version,
            Some(Ok(Change::Is(pod, version))) => {
                self.version = version;
                self.clean = false;
                self.book.seen(*pod, &self.drain.options, at, now);
            }
            Some(Ok(Change::Gone(pod, version))) => {
                self.version = version;
                self.book.is_gone(&pod);
            }
            // The watch ended normally; the next one resumes from the same version.
            None => {
                self.changes = None;
                match self.watched.is_some_and(|began| at < began + SPACED) {
                    true => self.look_again(at),
                    false => self.watch(at),
                }
            }
            // A survey finds the missed changes, and also detects whether the server is
            // unreachable.
            Some(Err(_)) => {
                self.changes = None;
                self.look_again(at);
            }
        }
    }
}
