//! Events on our Node and on pods, as events.k8s.io/v1 has them: a repetition is counted on the event
//! that is there, and a flood is cut off.
//!
//! Nobody waits for an event: what cannot be told for long is dropped.

mod note;
mod reporter;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Cluster, node::OwnNode};
use crate::{clock::Clock, crd::EventReason};
use reporter::Reporter;

/// As many wait while the server is away; the youngest of more are dropped.
const WAITING: usize = 64;

/// What an event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// Our Node.
    Node,
    /// A pod.
    Pod {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its identity.
        uid: String,
    },
}

/// Something that happened. The note names objects and numbers, never what files or secrets hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// To what.
    pub subject: Subject,
    /// What.
    pub reason: EventReason,
    /// One sentence.
    pub note: String,
}

/// Tells events. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Events(mpsc::Sender<Event>);

impl Events {
    /// A teller, and what [`report`] is to write.
    pub fn new() -> (Self, mpsc::Receiver<Event>) {
        let (tell, told) = mpsc::channel(WAITING);
        (Self(tell), told)
    }

    /// Tells without waiting.
    pub fn tell(&self, subject: Subject, reason: EventReason, note: impl Into<String>) {
        let event = Event {
            subject,
            reason,
            note: note.into(),
        };
        if let Err(error) = self.0.try_send(event) {
            tracing::debug!("an event is dropped: {error}");
        }
    }
}

/// Writes what is told, in order, until `stop` or until nobody tells any more.
pub async fn report(
    cluster: Cluster,
    node: OwnNode,
    mut told: mpsc::Receiver<Event>,
    clock: Clock,
    stop: CancellationToken,
) {
    let mut reporter = Reporter::new(cluster, node, clock);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            // Safe to drop: only time passes.
            () = reporter.calm() => reporter.tell_left_out(),
            // Safe to drop: an event stays in the queue until it is taken.
            event = told.recv() => match event {
                None => return,
                Some(event) => tokio::select! {
                    () = stop.cancelled() => return,
                    // Safe to drop: the process ends, and events are no promise.
                    () = reporter.write(event) => {}
                },
            },
        }
    }
}
