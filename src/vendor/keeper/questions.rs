//! Questions that the vendor has not answered yet.

use std::collections::BTreeMap;

use tokio::sync::oneshot;

use crate::vendor::{
    api::v1::answer,
    limits::{ORDERS, QUESTIONS},
    messages::Unasked,
};

type Reply = oneshot::Sender<Result<answer::Answer, Unasked>>;

/// Who waits for what. An id is never used twice.
#[derive(Debug, Default)]
pub(super) struct Questions {
    last: u64,
    open: BTreeMap<u64, Reply>,
}

impl Questions {
    /// A new question's id; gives the reply back when too many are open. An order has a place besides.
    pub(super) fn open(&mut self, reply: Reply, is_order: bool) -> Result<u64, Reply> {
        // Whoever no longer waits has gone away by himself.
        self.open.retain(|_, reply| !reply.is_closed());
        let most = QUESTIONS + if is_order { ORDERS } else { 0 };
        if self.open.len() >= most {
            return Err(reply);
        }
        self.last += 1;
        self.open.insert(self.last, reply);
        Ok(self.last)
    }

    /// The vendor answered. Late answers and those to nothing are ignored.
    pub(super) fn answer(&mut self, id: u64, answer: Result<answer::Answer, Unasked>) {
        if let Some(reply) = self.open.remove(&id) {
            // Whoever asked may have given up.
            let _ = reply.send(answer);
        }
    }

    /// Nobody will answer.
    pub(super) fn forget(&mut self, why: &str) {
        for (_, reply) in std::mem::take(&mut self.open) {
            let _ = reply.send(Err(Unasked::Away(why.to_owned())));
        }
    }
}
