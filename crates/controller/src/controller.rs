//! Runs the controller: elects a leader and acts while this process is it.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::{
    leader::{LeaderSettings, lead},
    lease::LeaseElection,
    monitor::ControllerMonitor,
    notifier::{self, NotificationQueue},
    operator_condition::OperatorCondition,
    pool_events::PoolEvents,
    requests::LeaderRequests,
    webhook_source::WebhookSource,
};
use machinist_base::clock::Clock;
use machinist_cluster::{
    Cluster,
    events::{self, EventSource, Events},
};
use machinist_ignition::ConfigRules;

/// How long the release of the Lease may take at the end.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// How a controller runs.
#[derive(Clone, Debug)]
pub struct ControllerOptions {
    /// The name of this process in the Lease, such as its pod's; a random number is appended to it.
    pub identity: String,
    /// The Node that this process runs on; it is updated last.
    pub node: Option<String>,
    /// Users and groups that configs may manage.
    pub rules: ConfigRules,
    /// The OperatorCondition with which OLM installed this controller, in the namespace of the pod.
    pub operator_condition: Option<String>,
    /// The receiver of notifications about rollouts.
    pub webhook: Option<WebhookSource>,
}

/// Runs until `stop`.
pub async fn run(
    cluster: Cluster,
    options: ControllerOptions,
    monitor: ControllerMonitor,
    clock: Clock,
    stop: CancellationToken,
) {
    // A restarted container has the name of its predecessor, which must not keep the Lease.
    let draw = machinist_base::backoff::jitter();
    let identity = format!("{}_{:08x}", options.identity, draw.to_bits() & 0xffff_ffff);
    let (events, queue) = Events::new();
    let source = EventSource::Controller(identity.clone());
    let reporting = events::report(cluster.clone(), source, queue, clock.clone(), stop.clone());
    let election = LeaseElection::new(cluster.clone(), identity, clock.clone(), monitor.clone());
    let condition = match options.operator_condition {
        Some(name) => {
            let condition = OperatorCondition::new(cluster.clone(), name, monitor.clone());
            Some(Arc::new(condition.await))
        }
        None => None,
    };
    let defaulting = ensure_default(condition.clone(), clock.clone(), stop.clone());
    let notifications = options.webhook.is_some().then(|| {
        let metrics = monitor.metrics.clone();
        Arc::new(NotificationQueue::new(clock.clone(), metrics))
    });
    let notifying = notify(notifications.clone(), options.webhook, stop.clone());
    let settings = LeaderSettings {
        rules: options.rules,
        own_node: options.node,
        condition,
    };
    let acting = act(
        cluster,
        settings,
        election,
        monitor,
        PoolEvents::new(events, notifications),
        clock,
        stop,
    );
    // The reports end with the last handle of their queue.
    tokio::join!(defaulting, acting, reporting, notifying);
}

/// Sends notifications, if there is a webhook. Those of a leader are sent after its leadership, too.
async fn notify(
    queue: Option<Arc<NotificationQueue>>,
    webhook: Option<WebhookSource>,
    stop: CancellationToken,
) {
    if let (Some(queue), Some(webhook)) = (queue, webhook) {
        notifier::deliver(&queue, webhook, stop).await;
    }
}

/// Sees to it that the OperatorCondition has a condition, whether this process is the leader or not.
async fn ensure_default(
    condition: Option<Arc<OperatorCondition>>,
    clock: Clock,
    stop: CancellationToken,
) {
    let Some(condition) = condition else {
        return;
    };
    tokio::select! {
        () = stop.cancelled() => {}
        // Dropping it leaves at most a condition that the leader replaces.
        () = condition.ensure_default(&clock) => {}
    }
}

/// Acts as the leader whenever this process is it.
async fn act(
    cluster: Cluster,
    settings: LeaderSettings,
    mut election: LeaseElection,
    monitor: ControllerMonitor,
    events: PoolEvents,
    clock: Clock,
    stop: CancellationToken,
) {
    tracing::info!("waiting for the leadership");
    loop {
        let leadership = tokio::select! {
            () = stop.cancelled() => return,
            // Dropping it leaves at most a Lease that ends by itself.
            leadership = election.acquire() => Arc::new(leadership),
        };
        tracing::info!("this process is the leader");
        monitor.set_leader(true);
        let acting = lead(
            LeaderRequests::new(
                cluster.clone(),
                Arc::clone(&leadership),
                monitor.clone(),
                events.clone(),
            ),
            settings.clone(),
            monitor.clone(),
            clock.clone(),
        );
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            lost = election.keep(&leadership) => {
                monitor.set_leader(false);
                tracing::warn!("this process is no longer the leader: {lost}");
                continue;
            }
            // Dropping it cancels requests under way; each tests the version that it was decided on.
            () = acting => {}
        }
        monitor.set_leader(false);
        if timeout(RELEASE_TIMEOUT, election.release()).await.is_err() {
            tracing::debug!("the Lease was not released in time");
        }
        return;
    }
}
