//! Publishes events.k8s.io/v1 events on the Node, on pods, on MachineConfigPools and on the MachineConfiguration. A
//! repeated event increments the count of the existing one, and floods are rate-limited.
//!
//! Events are best effort: callers never wait, and events that cannot be written in time are
//! dropped.

mod reporter;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Cluster, node::OwnNode};
use machinist_base::clock::Clock;
use machinist_kube_api::EventReason;
use reporter::EventReporter;

/// Queue length while the server is unreachable; further events are dropped.
const EVENT_QUEUE_LEN: usize = 64;

/// The object that an event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EventSubject {
    /// The Node of the agent that reports it.
    Node,
    /// A pod.
    Pod {
        /// The pod's namespace.
        namespace: String,
        /// The pod's name.
        name: String,
        /// The pod's UID.
        uid: String,
    },
    /// A MachineConfigPool.
    Pool {
        /// The pool's name.
        name: String,
        /// The pool's UID.
        uid: String,
    },
    /// The MachineConfiguration `cluster`.
    MachineConfiguration {
        /// The object's UID.
        uid: String,
    },
}

/// The component that reports events.
#[derive(Clone, Debug)]
pub enum EventSource {
    /// The agent of this Node, which is the subject of events without another one.
    Agent(OwnNode),
    /// A process of the controller, by its name.
    Controller(String),
}

impl EventSource {
    /// `reportingController`; the API server requires a qualified name.
    const fn component(&self) -> &'static str {
        match self {
            Self::Agent(_) => "machinist.dev/agent",
            Self::Controller(_) => "machinist.dev/controller",
        }
    }

    /// `reportingInstance`.
    fn instance(&self) -> &str {
        match self {
            Self::Agent(node) => node.name(),
            Self::Controller(name) => name,
        }
    }
}

/// An event. The note names objects and numbers, never contents of files or secrets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClusterEvent {
    /// The object concerned.
    pub subject: EventSubject,
    /// The reason, as a stable code.
    pub reason: EventReason,
    /// The description, one sentence.
    pub note: String,
}

/// Handle for emitting events. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Events(mpsc::Sender<ClusterEvent>);

impl Events {
    /// Returns a handle, and the queue for [`report`].
    pub fn new() -> (Self, mpsc::Receiver<ClusterEvent>) {
        let (tell, told) = mpsc::channel(EVENT_QUEUE_LEN);
        (Self(tell), told)
    }

    /// Queues an event without waiting; it is dropped if the queue is full.
    pub fn emit(&self, subject: EventSubject, reason: EventReason, note: impl Into<String>) {
        let event = ClusterEvent {
            subject,
            reason,
            note: note.into(),
        };
        if let Err(error) = self.0.try_send(event) {
            tracing::debug!("dropping an event: {error}");
        }
    }
}

/// Writes queued events in order until `stop`, or until every handle is dropped.
pub async fn report(
    cluster: Cluster,
    source: EventSource,
    mut told: mpsc::Receiver<ClusterEvent>,
    clock: Clock,
    stop: CancellationToken,
) {
    let mut reporter = EventReporter::new(cluster, source, clock);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            // Cancel-safe: it only waits.
            () = reporter.flood_ended() => reporter.log_dropped(),
            // Cancel-safe: an event stays in the queue until it is received.
            event = told.recv() => match event {
                None => return,
                Some(event) => tokio::select! {
                    () = stop.cancelled() => return,
                    // Cancelled only when the process ends; events are best effort.
                    () = reporter.write(event) => {}
                },
            },
        }
    }
}
