//! The controller's decision, as it follows from objects that were just read. Nothing is carried out.

use std::collections::HashMap;

use jiff::Timestamp;

use machinist_kube_api::{NodeView, PoolView};
use machinist_pool::{Decision, PoolRead, RolloutInputs, RolloutStart, decide};

/// Decides about all pools, as a leader that has read them and the nodes from the API server. What only the controller
/// knows, such as gates and the configs that exist, is left out.
pub(super) fn decision(
    pools: &[PoolView],
    nodes: &[NodeView],
    start: &RolloutStart,
    now: Timestamp,
) -> Decision {
    let live = PoolRead {
        is_confirmed: true,
        is_rebuilt: true,
        is_listed: true,
        is_not_kept: false,
    };
    let reads: HashMap<&str, PoolRead> = pools
        .iter()
        .map(|pool| (pool.name.as_str(), live))
        .collect();
    decide(&RolloutInputs {
        reads,
        start: start.clone(),
        ..RolloutInputs::new(pools, nodes, now)
    })
}
