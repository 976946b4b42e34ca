//! The requests that a vendor has not answered yet.

use std::collections::BTreeMap;

use tokio::sync::oneshot;

use crate::vendor_api::{
    api::v1::answer,
    limits::{MAX_PENDING_REQUESTS, RESERVED_ORDER_SLOTS},
    task_messages::RequestDropped,
};

type RequestReply = oneshot::Sender<Result<answer::Answer, RequestDropped>>;

/// The open requests. An ID is never used twice.
#[derive(Debug, Default)]
pub(super) struct PendingRequests {
    last_id: u64,
    replies: BTreeMap<u64, RequestReply>,
}

impl PendingRequests {
    /// Registers a request and returns its ID, or gives the reply back when too many are open.
    /// Orders have places of their own.
    pub(super) fn register(
        &mut self,
        reply: RequestReply,
        is_order: bool,
    ) -> Result<u64, RequestReply> {
        // A caller that stopped waiting has dropped its receiver.
        self.replies.retain(|_, reply| !reply.is_closed());
        let max = MAX_PENDING_REQUESTS + if is_order { RESERVED_ORDER_SLOTS } else { 0 };
        if self.replies.len() >= max {
            return Err(reply);
        }
        self.last_id += 1;
        self.replies.insert(self.last_id, reply);
        Ok(self.last_id)
    }

    /// Delivers an answer. Late answers and those to unknown IDs are ignored.
    pub(super) fn complete(&mut self, id: u64, answer: Result<answer::Answer, RequestDropped>) {
        if let Some(reply) = self.replies.remove(&id) {
            // The caller may have stopped waiting.
            let _ = reply.send(answer);
        }
    }

    /// Fails all open requests, since no answer can arrive any more.
    pub(super) fn fail_all(&mut self, reason: &str) {
        for (_, reply) in std::mem::take(&mut self.replies) {
            let _ = reply.send(Err(RequestDropped::Disconnected(reason.to_owned())));
        }
    }
}
