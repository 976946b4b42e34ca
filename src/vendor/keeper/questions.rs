//! The questions that a vendor has not answered yet.

use std::collections::BTreeMap;

use tokio::sync::oneshot;

use crate::vendor::{
    api::v1::answer,
    limits::{ORDERS, QUESTIONS},
    messages::Unasked,
};

type Reply = oneshot::Sender<Result<answer::Answer, Unasked>>;

/// The open questions. An id is never used twice.
#[derive(Debug, Default)]
pub(super) struct Questions {
    last: u64,
    open: BTreeMap<u64, Reply>,
}

impl Questions {
    /// Registers a question and returns its id, or gives the reply back when too many are open.
    /// Orders have places of their own.
    pub(super) fn open(&mut self, reply: Reply, is_order: bool) -> Result<u64, Reply> {
        // A caller that stopped waiting has dropped its receiver.
        self.open.retain(|_, reply| !reply.is_closed());
        let most = QUESTIONS + if is_order { ORDERS } else { 0 };
        if self.open.len() >= most {
            return Err(reply);
        }
        self.last += 1;
        self.open.insert(self.last, reply);
        Ok(self.last)
    }

    /// Delivers an answer. Late answers and those to unknown ids are ignored.
    pub(super) fn answer(&mut self, id: u64, answer: Result<answer::Answer, Unasked>) {
        if let Some(reply) = self.open.remove(&id) {
            // The caller may have stopped waiting.
            let _ = reply.send(answer);
        }
    }

    /// Fails all open questions, since no answer can arrive any more.
    pub(super) fn forget(&mut self, why: &str) {
        for (_, reply) in std::mem::take(&mut self.open) {
            let _ = reply.send(Err(Unasked::Away(why.to_owned())));
        }
    }
}
