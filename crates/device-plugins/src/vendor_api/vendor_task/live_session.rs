//! The session of a vendor; it has at most one.

use tokio::sync::oneshot;
use tonic::Status;

use crate::vendor_api::{api::v1::FromAgent, task_messages::ToVendor};

/// The open session.
pub(super) struct LiveSession {
    pub(super) number: u64,
    pub(super) instance: String,
    pub(super) user: u32,
    pub(super) to_vendor: ToVendor,
    /// Ends the stream with a status.
    pub(super) end: oneshot::Sender<Status>,
    /// The resources named in Hello.
    pub(super) resources: Vec<String>,
}

impl LiveSession {
    /// Whether its stream has ended, although the event for that has not been handled yet.
    pub(super) fn is_disconnected(&self) -> bool {
        self.to_vendor.is_closed()
    }
}

/// The current session and the number of sessions so far.
#[derive(Default)]
pub(super) struct SessionSlot {
    current: Option<LiveSession>,
    accepted: u64,
}

impl SessionSlot {
    pub(super) const fn current(&self) -> Option<&LiveSession> {
        self.current.as_ref()
    }

    pub(super) const fn is_connected(&self) -> bool {
        self.current.is_some()
    }

    pub(super) fn is_current(&self, number: u64) -> bool {
        self.current
            .as_ref()
            .is_some_and(|session| session.number == number)
    }

    /// The number of sessions accepted so far; also the number of the last one.
    pub(super) const fn accepted(&self) -> u64 {
        self.accepted
    }

    /// The number of the session that is accepted next.
    pub(super) const fn next_number(&self) -> u64 {
        self.accepted + 1
    }

    pub(super) fn accept(&mut self, session: LiveSession) {
        self.accepted = session.number;
        self.current = Some(session);
    }

    /// Ends the session with this status.
    pub(super) fn end(&mut self, status: Status) {
        if let Some(session) = self.current.take() {
            // The session may have ended already.
            let _ = session.end.send(status);
        }
    }

    /// Forgets the session, which has ended by itself.
    pub(super) fn clear(&mut self) {
        self.current = None;
    }

    /// Queues a message; false if the vendor does not read its messages. Without a session the
    /// message is dropped.
    pub(super) fn send(&self, message: FromAgent) -> bool {
        self.current
            .as_ref()
            .is_none_or(|session| session.to_vendor.try_send(Ok(message)).is_ok())
    }

    /// Whether the Hello of the current session named this resource.
    pub(super) fn named_in_hello(&self, resource: &str) -> bool {
        self.current
            .as_ref()
            .is_some_and(|session| session.resources.iter().any(|named| named == resource))
    }
}
