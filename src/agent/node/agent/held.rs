//! Who still has a device, of those whom the drain takes away.

use super::{ByAgent, locked};
use crate::{
    agent::node::holders::fates,
    drain::evict::Pods,
    update::node::{Blocker, NodeError},
};

impl<P: Pods> ByAgent<P> {
    /// Whoever drained: the pods that stay are the same.
    pub(in crate::agent::node) async fn held_now(&self) -> Result<Vec<Blocker>, NodeError> {
        let holders = match self.ours.in_hand(&self.waiting).await {
            Ok(holders) if holders.is_empty() => return Ok(Vec::new()),
            Ok(holders) => holders,
            Err(blockers) => return Ok(blockers),
        };
        // Who stays does not depend on when force is due.
        let judged = self.as_configured(None).judge().await;
        let judged = judged.map_err(|error| self.not_drained(error))?;
        let fates = fates(judged, &locked(&self.left_behind));
        Ok(self.ours.waits_for(&self.waiting, holders, &fates))
    }
}
