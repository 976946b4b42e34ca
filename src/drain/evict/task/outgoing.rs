//! Sends requests to the API server, each in a task of its own.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Answered, Looked, SPACED, Task};
use crate::drain::{
    Grace,
    evict::{How, Pods, Way, book::Request, bounded, survey::survey},
};

impl<P: Pods> Task<'_, P> {
    pub(super) fn ask(&mut self, request: Request, asked: Instant) {
        let (pods, options) = (Arc::clone(&self.drain.pods), &self.drain.options);
        let evict = options.way == Way::Evict && !request.forced;
        let how = How {
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
            Answered {
                request,
                asked,
                answer,
            }
        });
    }

    pub(super) fn look(&mut self, now: Instant) {
        let drain = self.drain;
        let (pods, node) = (Arc::clone(&drain.pods), drain.node.clone());
        let (rules, clock) = (drain.options.rules.clone(), drain.clock.clone());
        let sets = self.book.sets();
        (self.looking, self.look_at, self.looked) = (true, None, Some(now));
        self.looks.spawn(async move {
            let found = survey(pods.as_ref(), &node, &rules, sets, &clock);
            Looked::Node(now, Box::new(found.await))
        });
    }

    /// Schedules a survey soon, because the watch has failed.
    pub(super) fn look_again(&mut self, now: Instant) {
        let soon = self.looked.map_or(now, |looked| now.max(looked + SPACED));
        self.look_at.get_or_insert(soon);
    }

    pub(super) fn watch(&mut self, now: Instant) {
        self.watched = Some(now);
        let drain = self.drain;
        let (pods, node) = (Arc::clone(&drain.pods), drain.node.clone());
        let version = self.version.clone();
        self.looks
            .spawn(async move { Looked::Watching(bounded(pods.watch(&node, &version)).await) });
    }
}
