//! Turns an event into an API object: counts repetitions and rate-limits floods.

use std::{collections::HashMap, time::Duration};

use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event as Written},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};

use super::{ClusterEvent, EventSource, EventSubject};
use crate::{Cluster, ClusterError};
use machinist_base::{
    backoff::{Backoff, jitter},
    clock::Clock,
    error_chain::chain,
};
use machinist_kube_api::{EventReason, keys};
use machinist_plan::escape_line;

/// The API server's limit for a note, in bytes.
const MAX_NOTE_BYTES: usize = 1024;

/// Namespace for events about cluster-scoped objects.
const CLUSTER_EVENT_NAMESPACE: &str = "default";

/// A series ends when its event has not been repeated for this long; the next one creates a new
/// object. client-go uses the same time, so tools group these events as they group others.
const SERIES_TIMEOUT: Duration = Duration::from_secs(360);

/// Minimum time between two count updates of one event: one hour of a blocked drain costs about
/// twelve requests.
const COUNT_UPDATE_INTERVAL: Duration = Duration::from_secs(300);

/// Rate limit per object: the burst of distinct events, and the time after which one more is
/// allowed. Same values as client-go.
const BURST_EVENTS: u32 = 25;
const REFILL_INTERVAL: Duration = Duration::from_secs(300);

/// Backoff after a failed write.
const WRITE_BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// One event and its repetitions.
struct EventSeries {
    /// Name of the Event object.
    name: String,
    count: i32,
    last: Instant,
    /// When the count was last written.
    written: Instant,
}

/// What a limit of events counts together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct EventBudget {
    subject: EventSubject,
    /// Drift counts by itself: a local user can cause any number of such events, and they must not use up the budget
    /// of the others.
    is_drift: bool,
}

impl EventBudget {
    fn of(event: &ClusterEvent) -> Self {
        Self {
            subject: event.subject.clone(),
            is_drift: event.reason == EventReason::ConfigDriftDetected,
        }
    }
}

/// Remaining burst of each budget, and the time at which it was computed.
#[derive(Debug, Default)]
struct EventLimits(HashMap<EventBudget, (u32, Instant)>);

impl EventLimits {
    /// Forgets the budgets that are full again.
    fn forget_full(&mut self, now: Instant) {
        self.0
            .retain(|_, (left, since)| *left < BURST_EVENTS || *since + REFILL_INTERVAL > now);
    }

    /// Takes one event from a budget; false if it is used up.
    fn allow(&mut self, budget: &EventBudget, now: Instant) -> bool {
        let (left, since) = self.0.entry(budget.clone()).or_insert((BURST_EVENTS, now));
        while *left < BURST_EVENTS && *since + REFILL_INTERVAL <= now {
            *left += 1;
            *since += REFILL_INTERVAL;
        }
        if *left == 0 {
            return false;
        }
        if *left == BURST_EVENTS {
            *since = now;
        }
        *left -= 1;
        true
    }
}

/// Writes events and tracks their series.
pub(super) struct EventReporter {
    cluster: Cluster,
    source: EventSource,
    clock: Clock,
    series: HashMap<ClusterEvent, EventSeries>,
    limits: EventLimits,
    names: u32,
    /// Number of dropped events per budget since its last written one.
    left_out: HashMap<EventBudget, u32>,
    /// When an event was last dropped; none once the drop counts are logged.
    unreported_since: Option<Instant>,
}

/// A flood has ended when no event was dropped for this long.
const FLOOD_END_AFTER: Duration = Duration::from_secs(10);

impl EventReporter {
    pub(super) fn new(cluster: Cluster, source: EventSource, clock: Clock) -> Self {
        Self {
            cluster,
            source,
            clock,
            series: HashMap::new(),
            limits: EventLimits::default(),
            names: 0,
            left_out: HashMap::new(),
            unreported_since: None,
        }
    }

    /// Waits until a flood has ended; forever if there is none.
    pub(super) async fn flood_ended(&self) {
        match self.unreported_since {
            Some(last) => sleep_until(last + FLOOD_END_AFTER).await,
            None => std::future::pending().await,
        }
    }

    /// Logs how many events were dropped, because the API has no field for them.
    pub(super) fn log_dropped(&mut self) {
        self.unreported_since = None;
        for (budget, count) in &self.left_out {
            let subject = self.shown(&budget.subject);
            tracing::warn!("{count} events about {subject} omitted");
        }
    }

    /// Writes an event, or increments the count of the existing one.
    pub(super) async fn write(&mut self, event: ClusterEvent) {
        let now = Instant::now();
        self.series
            .retain(|_, series| series.last + SERIES_TIMEOUT > now);
        self.limits.forget_full(now);
        if let Some(series) = self.series.get_mut(&event) {
            series.count = series.count.saturating_add(1);
            series.last = now;
            if series.written + COUNT_UPDATE_INTERVAL > now && series.count > 2 {
                return;
            }
            series.written = now;
            let (name, count) = (series.name.clone(), series.count);
            match self.count(&event, &name, count).await {
                // The object has expired and was deleted, so create a new one.
                Err(error) if error.is_not_found() => drop(self.series.remove(&event)),
                Err(error) => return tracing::debug!("{}", chain(&error)),
                Ok(()) => return,
            }
        }
        let budget = EventBudget::of(&event);
        if !self.limits.allow(&budget, now) {
            tracing::debug!("too many events about {:?}; dropping one", event.subject);
            *self.left_out.entry(budget).or_default() += 1;
            self.unreported_since = Some(now);
            return;
        }
        let left_out = self.left_out.remove(&budget).unwrap_or_default();
        if let Some(name) = self.create(&event, left_out).await {
            let series = EventSeries {
                name,
                count: 1,
                last: now,
                written: now,
            };
            self.series.insert(event, series);
        }
    }

    /// Creates the Event and retries until it succeeds or the server rejects it for good. Returns
    /// its name. `left_out` is the number of dropped events of the same subject, which the note
    /// mentions.
    async fn create(&mut self, event: &ClusterEvent, left_out: u32) -> Option<String> {
        self.names = self.names.wrapping_add(1);
        let written = self.as_written(event, left_out);
        let mut failures = 0;
        loop {
            let namespace = event.subject.namespace();
            let (written, name) = (&written, written.metadata.name.clone());
            let create = |client| async move {
                let params = PostParams::default();
                events(client, namespace).create(&params, written).await
            };
            let object = format!(
                "event {} of {}",
                event.reason.as_str(),
                self.shown(&event.subject)
            );
            match self.cluster.request("create", object, create).await {
                Ok(_) => return name,
                // The event already exists: the response to an earlier attempt was lost.
                Err(error) if error.code() == 409 => return name,
                Err(error) if !error.is_retryable() || matches!(error.code(), 403 | 404) => {
                    tracing::debug!("{}", chain(&error));
                    return None;
                }
                Err(error) => {
                    tracing::debug!("{}", chain(&error));
                    let wait = WRITE_BACKOFF.wait(failures, jitter());
                    failures = failures.saturating_add(1);
                    sleep(wait.max(error.retry_after().unwrap_or_default())).await;
                }
            }
        }
    }

    async fn count(
        &self,
        event: &ClusterEvent,
        name: &str,
        count: i32,
    ) -> Result<(), ClusterError> {
        let series = json!({"series": {
            "count": count, "lastObservedTime": MicroTime(self.clock.now()),
        }});
        let (namespace, patch) = (event.subject.namespace(), Patch::Merge(&series));
        let patch = &patch;
        let counted = |client| async move {
            let params = PatchParams::default();
            events(client, namespace).patch(name, &params, patch).await
        };
        let object = format!("event {name}");
        self.cluster
            .request("count", object, counted)
            .await
            .map(drop)
    }

    fn as_written(&self, event: &ClusterEvent, left_out: u32) -> Written {
        let now = self.clock.now();
        let note = format_note(&event.note, left_out);
        let regarding = self.regarding(&event.subject);
        let name = regarding.name.clone().unwrap_or_default();
        Written {
            metadata: ObjectMeta {
                // The object separates writers about different ones; the time separates those about the same one.
                name: Some(format!(
                    "{name}.{:x}{:04x}",
                    now.as_microsecond(),
                    self.names
                )),
                namespace: Some(event.subject.namespace().to_owned()),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(now)),
            reporting_controller: Some(self.source.component().to_owned()),
            reporting_instance: Some(self.source.instance().to_owned()),
            action: Some(event.reason.action().to_owned()),
            reason: Some(event.reason.as_str().to_owned()),
            type_: Some(event.reason.weight().as_str().to_owned()),
            note: Some(note),
            regarding: Some(regarding),
            ..Written::default()
        }
    }

    fn regarding(&self, subject: &EventSubject) -> ObjectReference {
        let reference =
            |version: &str, kind: &str, name: &str, uid: Option<String>| ObjectReference {
                api_version: Some(version.to_owned()),
                kind: Some(kind.to_owned()),
                name: Some(name.to_owned()),
                uid,
                ..ObjectReference::default()
            };
        match (subject, &self.source) {
            (EventSubject::Node, EventSource::Agent(node)) => {
                let snapshot = node.snapshots().borrow().node.clone();
                let uid = snapshot.map(|node| node.uid.clone());
                reference("v1", "Node", node.name(), uid)
            }
            (EventSubject::Node, EventSource::Controller(name)) => {
                reference("v1", "Node", name, None)
            }
            (
                EventSubject::Pod {
                    namespace,
                    name,
                    uid,
                },
                _,
            ) => ObjectReference {
                namespace: Some(namespace.clone()),
                ..reference("v1", "Pod", name, Some(uid.clone()))
            },
            (EventSubject::Pool { name, uid }, _) => {
                let version = format!("{}/v1", keys::GROUP);
                reference(&version, "MachineConfigPool", name, Some(uid.clone()))
            }
            (EventSubject::MachineConfiguration { uid }, _) => {
                let version = format!("{}/v1", keys::OPERATOR_GROUP);
                let name = keys::MACHINE_CONFIGURATION;
                reference(&version, "MachineConfiguration", name, Some(uid.clone()))
            }
        }
    }

    fn shown(&self, subject: &EventSubject) -> String {
        match subject {
            EventSubject::Node => format!("Node {}", self.source.instance()),
            EventSubject::Pod {
                namespace, name, ..
            } => format!("Pod {namespace}/{name}"),
            EventSubject::Pool { name, .. } => format!("MachineConfigPool {name}"),
            EventSubject::MachineConfiguration { .. } => {
                format!("MachineConfiguration {}", keys::MACHINE_CONFIGURATION)
            }
        }
    }
}

impl EventSubject {
    fn namespace(&self) -> &str {
        match self {
            Self::Node | Self::Pool { .. } | Self::MachineConfiguration { .. } => {
                CLUSTER_EVENT_NAMESPACE
            }
            Self::Pod { namespace, .. } => namespace,
        }
    }
}

fn events(client: Client, namespace: &str) -> Api<Written> {
    Api::namespaced(client, namespace)
}

/// Formats the note within the server's limit. The count of dropped events is never cut off.
fn format_note(note: &str, left_out: u32) -> String {
    let more = match left_out {
        0 => String::new(),
        count => format!(" ({count} earlier events omitted)"),
    };
    let room = MAX_NOTE_BYTES.saturating_sub(more.len());
    format!(
        "{}{more}",
        machinist_kube_api::truncate_at_char(&escape_line(note), room)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn drift_events_do_not_use_up_the_budget_of_other_events() {
        let (mut limits, now) = (EventLimits::default(), Instant::now());
        let mut allowed = |reason| {
            let event = |number: u32| ClusterEvent {
                subject: EventSubject::Node,
                reason,
                note: number.to_string(),
            };
            let events = (0..100).map(event);
            let allowed = events.filter(|event| limits.allow(&EventBudget::of(event), now));
            allowed.count()
        };
        let drift = EventReason::ConfigDriftDetected;
        assert_eq!(
            [drift, EventReason::NodeDone, EventReason::Reboot].map(&mut allowed),
            [25, 25, 0]
        );
    }

    #[test]
    fn an_event_note_counts_omitted_events_even_when_truncated() {
        assert_eq!(format_note("a", 0), "a");
        assert_eq!(format_note("a", 3), "a (3 earlier events omitted)");
        let long = format_note(&"x".repeat(2 * MAX_NOTE_BYTES), 3);
        assert_eq!(long.len(), MAX_NOTE_BYTES);
        assert!(long.ends_with("earlier events omitted)"));
        assert_eq!(
            format_note("a\x1b[2J\nb\u{202e}", 0),
            "a\u{fffd}[2J\u{fffd}b\u{fffd}"
        );
    }
}
