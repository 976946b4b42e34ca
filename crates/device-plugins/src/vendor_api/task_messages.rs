//! The messages between sessions, callers and the task of a vendor.

use tokio::sync::{mpsc, oneshot};
use tonic::Status;

use super::{
    api::v1::{self as api, FromAgent, answer, from_agent, question},
    lazy_messages,
};

/// The stream to the vendor. A status ends it.
pub(super) type ToVendor = mpsc::Sender<Result<FromAgent, Status>>;

/// Events from the sessions.
#[derive(Debug)]
pub(super) enum VendorEvent {
    /// A Hello arrived.
    HelloReceived(PendingHello),
    /// The session of this number received a message; the sender is completed when it is handled,
    /// and the session then reads the next one.
    MessageReceived(u64, SessionMessage, oneshot::Sender<()>),
    /// The session of this number has ended, and why.
    SessionEnded(u64, String),
    /// A connection or session was refused, and why.
    Refused(String),
}

/// A Hello that waits for its Welcome.
#[derive(Debug)]
pub(super) struct PendingHello {
    pub(super) hello: api::Hello,
    pub(super) user: u32,
    pub(super) process: i32,
    pub(super) to: ToVendor,
    pub(super) reply: oneshot::Sender<Result<AcceptedSession, Status>>,
}

/// A granted session.
#[derive(Debug)]
pub(super) struct AcceptedSession {
    pub(super) number: u64,
    /// Receives the status with which the session has to end.
    pub(super) end: oneshot::Receiver<Status>,
}

/// The messages that the task handles.
#[derive(Debug)]
pub(super) enum SessionMessage {
    /// A snapshot and its encoded size in bytes.
    Snapshot(lazy_messages::LazySnapshot, usize),
    /// An answer.
    Answer(api::Answer),
    /// A heartbeat, to be returned.
    Heartbeat(api::Heartbeat),
}

/// A question for the vendor. Dropping the receiver of the reply cancels it.
#[derive(Debug)]
pub(super) struct VendorRequest {
    pub(super) question: question::Asked,
    pub(super) deadline_ms: u32,
    pub(super) reply: oneshot::Sender<Result<answer::Answer, RequestDropped>>,
}

/// Why a question got no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestDropped {
    /// The vendor is not connected, with the reason.
    Disconnected(String),
    /// The vendor has too many open questions.
    Busy,
}

impl VendorRequest {
    /// Whether it is an order to the whole vendor (quiesce, resume) rather than a question about
    /// one container.
    pub(super) const fn is_order(&self) -> bool {
        use question::Asked as A;
        matches!(self.question, A::Quiesce(_) | A::Resume(_))
    }
}

/// Wraps a message of the agent.
pub(super) fn message(said: from_agent::Said) -> FromAgent {
    FromAgent { said: Some(said) }
}

/// Builds the Rejected message for a snapshot.
pub(super) fn rejected(
    resource: &str,
    generation: u64,
    why: super::snapshot::SnapshotRejection,
) -> FromAgent {
    message(from_agent::Said::Rejected(api::Rejected {
        resource: resource.to_owned(),
        generation,
        reason: why.reason.into(),
        message: why.message,
        device: why.device,
    }))
}

/// A duration in milliseconds, as in the contract.
pub(super) fn millis(time: std::time::Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}
