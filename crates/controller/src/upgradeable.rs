//! Determines whether OLM may replace this version of the controller.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::rollout_view::RolloutView;
use machinist_base::text::join_limited;
use machinist_kube_api::keys::{condition, pool_annotation};
use machinist_pool::{PoolGrants, split};

/// How many pools a message names.
const MAX_NAMED_POOLS: usize = 20;

/// The condition `Upgradeable`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Upgradeable {
    is_true: bool,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Upgradeable {
    /// Before a leader knows the pools.
    pub(crate) fn not_known() -> Self {
        Self {
            is_true: false,
            reason: "NotYetKnown",
            message: "no leader has reported yet whether nodes are in the middle of an update"
                .to_owned(),
        }
    }

    /// It is false while a pool has a node with a grant, or one that is cordoned or reboots for an update.
    pub(crate) fn of(view: &RolloutView) -> Self {
        let pools = updating_pools(view);
        if pools.is_empty() {
            return Self {
                is_true: true,
                reason: "NoNodeUpdates",
                message: "no node is in the middle of an update".to_owned(),
            };
        }
        let named = join_limited(pools.iter(), MAX_NAMED_POOLS);
        Self {
            is_true: false,
            reason: "NodesUpdate",
            message: format!("nodes of these pools are in the middle of an update: {named}"),
        }
    }

    /// The status of the condition.
    pub(crate) const fn status(&self) -> &'static str {
        match self.is_true {
            true => "True",
            false => "False",
        }
    }

    /// Whether a condition of the API server is the same.
    pub(crate) fn is_same(&self, known: &Value) -> bool {
        known["status"] == self.status()
            && known["reason"] == self.reason
            && known["message"] == self.message
    }
}

/// The pools with a node in the middle of an update, by name.
fn updating_pools(view: &RolloutView) -> BTreeSet<String> {
    let mut updating = BTreeSet::new();
    for pool in view.pools() {
        let text = pool.annotation(pool_annotation::GRANTS);
        match PoolGrants::parse(&pool.name, text) {
            // The record of the control plane pool has the grants of arbiter nodes as well.
            Ok(found) => {
                updating.extend(found.into_iter().flat_map(|it| it.grants).map(|it| it.pool))
            }
            // It may list grants.
            Err(_) => drop(updating.insert(pool.name.clone())),
        }
    }
    for members in split(view.pools(), view.nodes()).pools {
        let is_disturbed = members.nodes.iter().any(|node| {
            let maintenance = node.condition(condition::MAINTENANCE);
            maintenance.is_some_and(|it| it.status == "True")
        });
        if is_disturbed {
            updating.insert(members.pool.name.clone());
        }
    }
    updating
}
