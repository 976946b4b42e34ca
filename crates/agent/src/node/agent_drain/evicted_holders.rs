//! Finds containers that still hold a device, among the pods that the drain evicts.

use super::{AgentDrain, locked};
use crate::node::device_holders::dispositions;
use machinist_drain::eviction::PodApi;
use machinist_update::node_port::{Blocker, NodeError};

impl<P: PodApi> AgentDrain<P> {
    /// Independent of which component drained: the pods that stay are the same.
    pub(in crate::node) async fn evicted_holders(&self) -> Result<Vec<Blocker>, NodeError> {
        let holders = match self.ours.current_holders(&self.waiting).await {
            Ok(holders) if holders.is_empty() => return Ok(Vec::new()),
            Ok(holders) => holders,
            Err(blockers) => return Ok(blockers),
        };
        // The set of pods that stay does not depend on when force is due.
        let judged = self.as_configured(None).judge().await;
        let judged = judged.map_err(|error| self.not_drained(error))?;
        let fates = dispositions(judged, &locked(&self.left_behind));
        Ok(self.ours.awaited_holders(&self.waiting, holders, &fates))
    }
}
