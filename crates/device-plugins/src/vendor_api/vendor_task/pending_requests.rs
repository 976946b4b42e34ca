//! The questions that a vendor has not answered yet.

use std::collections::BTreeMap;

use tokio::sync::oneshot;

use crate::vendor_api::{
    api::v1::answer,
    limits::{MAX_PENDING_REQUESTS, RESERVED_ORDER_SLOTS},
    task_messages::RequestDropped,
};

type RequestReply = oneshot::Sender<Result<answer::Answer, RequestDropped>>;

/// The open questions. An id is never used twice.
#[derive(Debug, Default)]
pub(super) struct PendingRequests {
    last: u64,
    open: BTreeMap<u64, RequestReply>,
}

impl PendingRequests {
    /// Registers a question and returns its id, or gives the reply back when too many are open.
    /// Orders have places of their own.
    pub(super) fn open(
        &mut self,
        reply: RequestReply,
        is_order: bool,
    ) -> Result<u64, RequestReply> {
        // A caller that stopped waiting has dropped its receiver.
        self.open.retain(|_, reply| !reply.is_closed());
        let most = MAX_PENDING_REQUESTS + if is_order { RESERVED_ORDER_SLOTS } else { 0 };
        if self.open.len() >= most {
            return Err(reply);
        }
        self.last += 1;
        self.open.insert(self.last, reply);
        Ok(self.last)
    }

    /// Delivers an answer. Late answers and those to unknown ids are ignored.
    pub(super) fn answer(&mut self, id: u64, answer: Result<answer::Answer, RequestDropped>) {
        if let Some(reply) = self.open.remove(&id) {
            // The caller may have stopped waiting.
            let _ = reply.send(answer);
        }
    }

    /// Fails all open questions, since no answer can arrive any more.
    pub(super) fn forget(&mut self, why: &str) {
        for (_, reply) in std::mem::take(&mut self.open) {
            let _ = reply.send(Err(RequestDropped::Away(why.to_owned())));
        }
    }
}
