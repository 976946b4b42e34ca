//! Reports the grants that pools list, and those that only a Node has.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use serde::Serialize;

use machinist_base::error_chain::chain;
use machinist_kube_api::{NodeView, PoolView, keys::pool_annotation};
use machinist_pool::{Grant, GrantKind, GrantProgress, PoolGrants, open_grant};

/// How far a grant is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum GrantState {
    /// A pool lists it, and the Node does not have it yet.
    Recorded,
    /// The Node has it, and the agent has not acknowledged it.
    Placed,
    /// The agent has acknowledged it; only the agent ends it.
    Acknowledged,
    /// The agent has ended it, and a pool still lists it.
    Ended,
    /// The Node has another grant, from the pool that it was in before.
    Occupied,
    /// The Node was created again after the grant.
    Recreated,
    /// The Node does not exist.
    NodeMissing,
    /// The Node has it, and no pool lists it.
    Unlisted,
    /// The annotations of the Node cannot be parsed.
    Unreadable,
}

impl GrantState {
    /// The state in a table.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Recorded => "recorded",
            Self::Placed => "not acknowledged",
            Self::Acknowledged => "acknowledged",
            Self::Ended => "ended",
            Self::Occupied => "behind another grant",
            Self::Recreated => "of an earlier Node",
            Self::NodeMissing => "of a missing Node",
            Self::Unlisted => "in no pool",
            Self::Unreadable => "unreadable",
        }
    }
}

/// A grant with its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeGrant {
    pub(super) id: String,
    pub(super) kind: GrantKind,
    /// The pool that the node was in.
    pub(super) pool: String,
    /// The pool that lists it; none if no pool does.
    pub(super) recorded_on: Option<String>,
    pub(super) node: String,
    pub(super) target: String,
    /// When it was given.
    pub(super) time: Timestamp,
    pub(super) state: GrantState,
}

/// All grants.
#[derive(Debug, Default)]
pub(super) struct GrantsByNode {
    pub(super) by_node: BTreeMap<String, NodeGrant>,
    /// Grants whose Node does not exist.
    pub(super) without_node: Vec<NodeGrant>,
    /// Annotations that cannot be parsed.
    pub(super) warnings: Vec<String>,
}

/// Collects the grants of all pools and nodes.
pub(super) fn grants_by_node(pools: &[PoolView], nodes: &[NodeView]) -> GrantsByNode {
    let mut found = GrantsByNode::default();
    let index: HashMap<&str, &NodeView> = nodes
        .iter()
        .map(|node| (node.name.as_str(), node))
        .collect();
    for pool in pools {
        let text = pool.annotations.get(pool_annotation::GRANTS);
        match PoolGrants::parse(&pool.name, text.map(String::as_str)) {
            Ok(grants) => {
                for grant in grants.unwrap_or_default().grants {
                    found.add(listed(
                        &grant,
                        &pool.name,
                        index.get(grant.node.as_str()).copied(),
                    ));
                }
            }
            Err(error) => found.warnings.push(chain(&error)),
        }
    }
    for node in nodes {
        match open_grant(node) {
            Ok(Some(grant)) if !found.by_node.contains_key(&node.name) => {
                found.add(node_grant(&grant, None, GrantState::Unlisted));
            }
            Ok(_) => {}
            Err(error) => found.warnings.push(chain(&error)),
        }
    }
    found
}

impl GrantsByNode {
    fn add(&mut self, grant: NodeGrant) {
        match grant.state {
            GrantState::NodeMissing => self.without_node.push(grant),
            // The one that the node is being updated with is shown.
            GrantState::Occupied | GrantState::Ended => {
                self.by_node.entry(grant.node.clone()).or_insert(grant);
            }
            _ => drop(self.by_node.insert(grant.node.clone(), grant)),
        }
    }
}

/// A grant that a pool lists.
pub(super) fn listed(grant: &Grant, recorded_on: &str, node: Option<&NodeView>) -> NodeGrant {
    let state = match GrantProgress::of(grant, node) {
        GrantProgress::Ended(_) => GrantState::Ended,
        GrantProgress::Open {
            acknowledged: true, ..
        } => GrantState::Acknowledged,
        GrantProgress::Open { placed: true, .. } => GrantState::Placed,
        GrantProgress::Open { .. } => GrantState::Recorded,
        GrantProgress::Occupied => GrantState::Occupied,
        GrantProgress::Recreated => GrantState::Recreated,
        GrantProgress::Missing => GrantState::NodeMissing,
        GrantProgress::Unreadable(_) => GrantState::Unreadable,
    };
    node_grant(grant, Some(recorded_on), state)
}

fn node_grant(grant: &Grant, recorded_on: Option<&str>, state: GrantState) -> NodeGrant {
    NodeGrant {
        id: grant.id.clone(),
        kind: grant.kind.clone(),
        pool: grant.pool.clone(),
        recorded_on: recorded_on.map(str::to_owned),
        node: grant.node.clone(),
        target: grant.target.clone(),
        time: grant.time,
        state,
    }
}
