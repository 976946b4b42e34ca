//! Finds containers that still hold a device, among the pods that the drain evicts.

use super::{ByAgent, locked};
use crate::{
    agent::node::holders::fates,
    drain::evict::Pods,
    update::node::{Blocker, NodeError},
};

impl<P: Pods> ByAgent<P> {
    /// Independent of which component drained: the pods that stay are the same.
    pub(in crate::agent::node) async fn held_now(&self) -> Result<Vec<Blocker>, NodeError> {
        let holders = match self.ours.in_hand(&self.waiting).await {
            Ok(holders) if holders.is_empty() => return Ok(Vec::new()),
            Ok(holders) => holders,
            Err(blockers) => return Ok(blockers),
        };
        // The set of pods that stay does not depend on when force is due.
        let judged = self.as_configured(None).judge().await;
        let judged = judged.map_err(|error| self.not_drained(error))?;
        let fates = fates(judged, &locked(&self.left_behind));
        Ok(self.ours.waits_for(&self.waiting, holders, &fates))
    }
}
