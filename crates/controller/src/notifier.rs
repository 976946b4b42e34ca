//! Delivers notifications about rollouts: one after the other, without the leader's waiting.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    metrics::{ControllerMetrics, NotificationResult},
    notification,
    rollout_event::RolloutEvent,
    webhook::Webhook,
    webhook_source::WebhookSource,
};
use machinist_base::{
    backoff::{Backoff, jitter},
    clock::Clock,
};

/// How many notifications wait at most; then the oldest is dropped. It is what a rollout of a hundred nodes causes while
/// the receiver restarts, and less than a megabyte.
const MAX_WAITING: usize = 256;

/// How often a notification is sent at most: with the waits between, a receiver may be away for half a minute.
const MAX_ATTEMPTS: u32 = 5;

/// Wait after a failed attempt.
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(30));

/// How long notifications are sent after the process was asked to end; less than the whole end may take.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

/// The notifications that wait to be sent.
#[derive(Debug)]
pub(crate) struct NotificationQueue {
    waiting: Mutex<Waiting>,
    arrived: Notify,
    clock: Clock,
    metrics: ControllerMetrics,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Name of the event and body of the request, oldest first.
    notifications: VecDeque<(&'static str, String)>,
    /// Whether one was dropped since the queue was empty.
    is_overflowing: bool,
}

impl NotificationQueue {
    pub(crate) fn new(clock: Clock, metrics: ControllerMetrics) -> Self {
        Self {
            waiting: Mutex::default(),
            arrived: Notify::new(),
            clock,
            metrics,
        }
    }

    /// Queues a notification with the present time.
    pub(crate) fn put(&self, event: RolloutEvent) {
        let body = notification::body(&event, self.clock.now());
        let mut waiting = self.lock();
        waiting.notifications.push_back((event.kind.as_str(), body));
        if waiting.notifications.len() > MAX_WAITING {
            waiting.notifications.pop_front();
            self.metrics.notified(NotificationResult::Dropped);
            if !std::mem::replace(&mut waiting.is_overflowing, true) {
                tracing::warn!(
                    "more than {MAX_WAITING} notifications wait for the webhook; the oldest are dropped"
                );
            }
        }
        drop(waiting);
        self.arrived.notify_one();
    }

    /// Takes the oldest notification. Cancel-safe: one is taken only when it is returned.
    async fn next(&self) -> (&'static str, String) {
        loop {
            if let Some(taken) = self.take() {
                return taken;
            }
            self.arrived.notified().await;
        }
    }

    fn take(&self) -> Option<(&'static str, String)> {
        let mut waiting = self.lock();
        let taken = waiting.notifications.pop_front();
        if taken.is_none() {
            waiting.is_overflowing = false;
        }
        taken
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends queued notifications in their order until `stop`, and shortly after it those that still wait.
pub(crate) async fn deliver(
    queue: &NotificationQueue,
    mut source: WebhookSource,
    stop: CancellationToken,
) {
    let delivering = async {
        let mut has_failed = false;
        loop {
            let (event, body) = tokio::select! {
                biased;
                // Cancel-safe: see `next`.
                taken = queue.next() => taken,
                () = stop.cancelled() => return,
            };
            has_failed = !deliver_one(queue, source.webhook(), event, body, has_failed).await;
        }
    };
    let limit = async {
        stop.cancelled().await;
        sleep(FLUSH_LIMIT).await;
    };
    tokio::select! {
        () = delivering => {}
        // The process ends, and what is left is lost.
        () = limit => {
            let left = queue.lock().notifications.len();
            tracing::warn!("the process ends before notifications were sent; {left} more wait");
        }
    }
}

/// Sends one notification, several times if that may help. Returns whether it was delivered. The first of several
/// failures is logged as a warning.
async fn deliver_one(
    queue: &NotificationQueue,
    webhook: &Webhook,
    event: &str,
    body: String,
    has_failed: bool,
) -> bool {
    let mut attempt = 0;
    loop {
        let failure = match webhook.post(body.clone()).await {
            Ok(()) => {
                tracing::debug!("notification {event} was delivered");
                queue.metrics.notified(NotificationResult::Delivered);
                return true;
            }
            Err(failure) => failure,
        };
        attempt += 1;
        if !failure.is_retryable() || attempt >= MAX_ATTEMPTS {
            queue.metrics.notified(NotificationResult::Failed);
            match has_failed {
                true => tracing::debug!("notification {event} was not delivered: {failure}"),
                false => tracing::warn!("notification {event} was not delivered: {failure}"),
            }
            return false;
        }
        tracing::debug!("notification {event} is sent again: {failure}");
        let asked = failure.retry_after(queue.clock.now()).unwrap_or_default();
        let wait = RETRY_BACKOFF.wait(attempt - 1, jitter()).max(asked);
        sleep_until(Instant::now() + wait).await;
    }
}
