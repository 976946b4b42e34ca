//! Reports pools with their nodes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use super::annotations::{self, BlockedBy};
use machinist_kube_api::{
    MachineConfigNodeStatus, NodeView, PoolView,
    keys::{annotation, protocol},
};
use machinist_pool::{
    MachineCounts, NodePoolStatus, PoolMembers, PoolRow, conditions, max_unavailable, split,
};

/// The document of `status --pool`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PoolsReport {
    api_version: &'static str,
    kind: &'static str,
    pub(super) pools: Vec<PoolReport>,
    /// Nodes that no pool selects.
    pub(super) without_pool: Vec<String>,
    /// Problems that an administrator should fix, and objects that could not be read.
    pub(super) warnings: Vec<String>,
}

/// One pool.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PoolReport {
    pub(super) name: String,
    /// The status that follows from its nodes now.
    pub(super) observed: PoolRow,
    /// The status in the pool object; none if no controller has written one.
    pub(super) reported: Option<PoolRow>,
    /// The target config of its nodes; none if no config has been rendered.
    pub(super) target: Option<String>,
    pub(super) paused: bool,
    /// None if the value is not a valid limit; a warning reports that.
    pub(super) max_unavailable: Option<usize>,
    pub(super) conditions: Vec<ConditionPart>,
    pub(super) nodes: Vec<NodePart>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct ConditionPart {
    #[serde(rename = "type")]
    kind: &'static str,
    status: bool,
    reason: &'static str,
    pub(super) message: String,
}

/// One node of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::cli) struct NodePart {
    pub(in crate::cli) name: String,
    /// The state annotation; none if it does not exist.
    pub(in crate::cli) state: Option<String>,
    pub(in crate::cli) reason: Option<String>,
    pub(in crate::cli) current: Option<String>,
    pub(in crate::cli) desired: Option<String>,
    pub(in crate::cli) since: Option<Timestamp>,
    /// Readiness as pools count it, from conditions and cordon.
    pub(in crate::cli) ready: bool,
    pub(in crate::cli) updated: bool,
    pub(in crate::cli) unavailable: bool,
    pub(in crate::cli) degraded: bool,
    /// Whether it has a current config; other nodes are not counted.
    pub(in crate::cli) managed: bool,
    /// `machinist` or `other`; none without a cordon.
    pub(in crate::cli) cordoned_by: Option<&'static str>,
    pub(in crate::cli) blocked_by: Vec<BlockedBy>,
}

impl PoolsReport {
    pub(in crate::cli) fn of(
        pools: &[PoolView],
        nodes: &[NodeView],
        progress: &BTreeMap<String, MachineConfigNodeStatus>,
    ) -> Self {
        let split = split(pools, nodes);
        let ambiguous = split.pools.iter().flat_map(|it| &it.ambiguous);
        let mut warnings: Vec<String> = ambiguous.cloned().collect();
        let pools = split.pools.iter();
        let pools = pools.map(|members| PoolReport::of(members, progress, &mut warnings));
        Self {
            pools: pools.collect(),
            without_pool: split.without.iter().map(|node| node.name.clone()).collect(),
            warnings,
            api_version: "machinist.dev/v1",
            kind: "PoolStatus",
        }
    }

    /// Removes all other pools.
    pub(in crate::cli) fn keep(&mut self, name: &str) {
        self.pools.retain(|pool| pool.name == name);
        self.without_pool.clear();
        let word = |warning: &String| {
            let mut words = warning.split([' ', ',', ':']);
            words.any(|word| word == name)
        };
        self.warnings.retain(word);
    }
}

impl PoolReport {
    fn of(
        members: &PoolMembers<'_>,
        progress: &BTreeMap<String, MachineConfigNodeStatus>,
        warnings: &mut Vec<String>,
    ) -> Self {
        let pool = members.pool;
        let counts = MachineCounts::of(members);
        warnings.extend(pool.mistakes());
        let limit = max_unavailable(pool, counts.machines.try_into().unwrap_or(usize::MAX));
        match &limit {
            Ok(limit) => warnings.extend(limit.warning.clone()),
            Err(error) => warnings.push(error.to_string()),
        }
        let target = Some(pool.spec.configuration.name.clone()).filter(|name| !name.is_empty());
        let part = |node: &&NodeView| {
            NodePart::of(node, target.as_deref(), progress.get(node.name.as_str()))
        };
        let conditions = conditions(members, &counts).into_iter();
        Self {
            name: pool.name.clone(),
            observed: PoolRow::of(members),
            reported: PoolRow::from_status(pool),
            paused: pool.spec.paused,
            max_unavailable: limit.ok().map(|limit| limit.at_most),
            conditions: conditions
                .map(|one| ConditionPart {
                    kind: one.kind,
                    status: one.status,
                    reason: one.reason,
                    message: one.message,
                })
                .collect(),
            nodes: members.nodes.iter().map(part).collect(),
            target,
        }
    }
}

impl NodePart {
    pub(in crate::cli) fn of(
        node: &NodeView,
        target: Option<&str>,
        progress: Option<&MachineConfigNodeStatus>,
    ) -> Self {
        let standing = NodePoolStatus::of(node, target);
        let text = |name| node.annotation(name).map(str::to_owned);
        let blocked = node.annotation(annotation::BLOCKED_BY).unwrap_or_default();
        Self {
            name: node.name.clone(),
            state: text(protocol::STATE),
            reason: text(protocol::REASON),
            current: text(protocol::CURRENT_CONFIG),
            desired: text(protocol::DESIRED_CONFIG),
            since: annotations::since(node, progress),
            ready: standing.ready,
            updated: standing.updated,
            unavailable: standing.unavailable,
            degraded: standing.degraded,
            managed: standing.managed,
            cordoned_by: super::node::CordonPart::of(node).by,
            blocked_by: annotations::blocked_by(blocked),
        }
    }
}
