//! What sessions and askers say to the one task that keeps a vendor.

use tokio::sync::{mpsc, oneshot};
use tonic::Status;

use super::{
    api::v1::{self as api, FromAgent, answer, from_agent, question},
    heard,
};

/// Towards the vendor. A status is the last word.
pub(super) type ToVendor = mpsc::Sender<Result<FromAgent, Status>>;

/// From the sessions.
#[derive(Debug)]
pub(super) enum Event {
    /// Somebody said Hello.
    Opened(Opening),
    /// The session of this number said something; it is told when that was dealt with, and reads on then.
    Said(u64, Said, oneshot::Sender<()>),
    /// The session of this number is over, and why.
    Over(u64, String),
    /// Somebody was not let in, and why.
    Refused(String),
}

/// A Hello that waits for its Welcome.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) hello: api::Hello,
    pub(super) user: u32,
    pub(super) process: i32,
    pub(super) to: ToVendor,
    pub(super) reply: oneshot::Sender<Result<Granted, Status>>,
}

/// A session that was granted.
#[derive(Debug)]
pub(super) struct Granted {
    pub(super) number: u64,
    /// Says that it must end, and why.
    pub(super) end: oneshot::Receiver<Status>,
}

/// What concerns the keeper of all that a vendor says.
#[derive(Debug)]
pub(super) enum Said {
    /// Devices, and how many bytes they had.
    Snapshot(heard::Snapshot, usize),
    /// An answer.
    Answer(api::Answer),
    /// That it is there, to be said back.
    Heartbeat(api::Heartbeat),
}

/// Something to ask the vendor. Whoever asks stops waiting by dropping the reply's other end.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) asked: question::Asked,
    pub(super) deadline_ms: u32,
    pub(super) reply: oneshot::Sender<Result<answer::Answer, Unasked>>,
}

/// Why a question got no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unasked {
    /// Nobody is there, in words.
    Away(String),
    /// Somebody is, and has too many questions to answer already.
    Busy,
}

impl Ask {
    /// Whether it is an order for the whole vendor, and no question about one container.
    pub(super) const fn is_order(&self) -> bool {
        use question::Asked as A;
        matches!(self.asked, A::Quiesce(_) | A::Resume(_))
    }
}

/// One message of the agent's.
pub(super) fn message(said: from_agent::Said) -> FromAgent {
    FromAgent { said: Some(said) }
}

/// A resource that is not offered, as the vendor reads it.
pub(super) fn rejected(
    resource: &str,
    generation: u64,
    why: super::snapshot::Refused,
) -> FromAgent {
    message(from_agent::Said::Rejected(api::Rejected {
        resource: resource.to_owned(),
        generation,
        reason: why.reason.into(),
        message: why.message,
        device: why.device,
    }))
}

/// A time as the contract has it.
pub(super) fn millis(time: std::time::Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}
