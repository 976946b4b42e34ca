//! A model of an API server, agents and two leaders, for checks of all interleavings. It drives the shipped functions:
//! only what an adapter and an agent do is modelled here.

mod agent;
mod exhaustive;
mod leader;
mod random;

pub(super) use agent::{AgentStep, act};
pub(super) use leader::{Delivery, Leader};

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::{super::*, with_roles};
use machinist_kube_api::{
    NodeView, PoolView, Taint,
    keys::{annotation, condition, pool_annotation, protocol, taint},
};

pub(super) const OLD: &str = "rendered-old";
pub(super) const NEW: &str = "rendered-new";

/// A rule that the model leaves out, to show that the checks notice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Mutant {
    #[default]
    None,
    /// The API server accepts a write of a pool at any version.
    NoPoolVersion,
}

/// The objects in the API server.
#[derive(Clone, Debug)]
pub(super) struct ApiServer {
    pub(super) pools: Vec<PoolView>,
    pub(super) nodes: Vec<NodeView>,
    pub(super) now: Timestamp,
    pub(super) mutant: Mutant,
}

/// A request that the server refuses because of its preconditions.
#[derive(Debug)]
pub(super) struct Conflict;

pub(super) fn start() -> Timestamp {
    "2026-11-21T12:00:00Z".parse().unwrap()
}

/// A node that is ready, whose agent has just reported.
pub(super) fn ready_node(name: &str, role: &str, config: &str) -> NodeView {
    let annotation = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let mut node = NodeView {
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        resource_version: "1".to_owned(),
        has_annotations: true,
        labels: with_roles(&[role]),
        annotations: BTreeMap::from([
            annotation(protocol::CURRENT_CONFIG, config),
            annotation(protocol::DESIRED_CONFIG, config),
            annotation(protocol::STATE, "Done"),
        ]),
        ..NodeView::default()
    };
    beat(&mut node, start());
    node
}

/// The heartbeat of a node's agent.
pub(super) fn beat(node: &mut NodeView, now: Timestamp) {
    node.status.conditions = serde_json::from_value(json!([
        {"type": condition::KUBELET_READY, "status": "True"},
        {"type": condition::READY, "status": "True", "lastHeartbeatTime": now},
    ]))
    .unwrap();
}

/// A pool whose first rollout an administrator has started.
pub(super) fn resumed_pool(name: &str, target: &str) -> PoolView {
    let mut pool = super::of_role(name);
    pool.uid = format!("uid-{name}");
    pool.resource_version = "1".to_owned();
    pool.spec.configuration.name = target.to_owned();
    pool.annotations
        .insert(pool_annotation::RESUME.to_owned(), "1".to_owned());
    pool
}

impl ApiServer {
    pub(super) fn new(pools: Vec<PoolView>, nodes: Vec<NodeView>) -> Self {
        Self {
            pools,
            nodes,
            now: start(),
            mutant: Mutant::None,
        }
    }

    pub(super) fn pool(&self, name: &str) -> Option<&PoolView> {
        self.pools.iter().find(|it| it.name == name)
    }

    pub(super) fn node(&self, name: &str) -> Option<&NodeView> {
        self.nodes.iter().find(|it| it.name == name)
    }

    /// Carries out a write of a pool.
    pub(super) fn write_pool(&mut self, write: &PoolWrite) -> Result<PoolView, Conflict> {
        let checks = self.mutant != Mutant::NoPoolVersion;
        let pool = self
            .pools
            .iter_mut()
            .find(|it| it.name == write.pool)
            .ok_or(Conflict)?;
        if pool.uid != write.uid || (checks && pool.resource_version != write.resource_version) {
            return Err(Conflict);
        }
        pool.resource_version = next_version(&pool.resource_version);
        let grants = (
            pool_annotation::GRANTS.to_owned(),
            write.grants.to_annotation(),
        );
        pool.annotations.extend([grants]);
        if let Some(rollouts) = &write.rollouts {
            let state = (
                pool_annotation::ROLLOUT.to_owned(),
                rollouts.to_annotation(),
            );
            pool.annotations.extend([state]);
        }
        Ok(pool.clone())
    }

    /// Carries out a patch of a Node.
    pub(super) fn patch_node(&mut self, patch: &NodePatchRequest) -> Result<NodeView, Conflict> {
        let node = self
            .nodes
            .iter_mut()
            .find(|it| it.name == patch.node)
            .ok_or(Conflict)?;
        if node.uid != patch.uid || node.resource_version != patch.resource_version {
            return Err(Conflict);
        }
        node.resource_version = next_version(&node.resource_version);
        apply_change(node, &patch.change);
        Ok(node.clone())
    }

    /// The nodes that an agent may disrupt now: those with a grant that has not ended.
    pub(super) fn disrupted(&self) -> Vec<&str> {
        let open = |node: &&NodeView| open_grant(node).unwrap().is_some();
        self.nodes
            .iter()
            .filter(open)
            .map(|node| node.name.as_str())
            .collect()
    }
}

/// The version after a write. Each object counts for itself, so that equal states are recognised as equal.
pub(super) fn next_version(version: &str) -> String {
    (version.parse::<u64>().unwrap() + 1).to_string()
}

fn set(node: &mut NodeView, name: &str, value: Option<&str>) {
    match value {
        Some(value) => node.annotations.insert(name.to_owned(), value.to_owned()),
        None => node.annotations.remove(name),
    };
}

fn is_update_taint(it: &Taint) -> bool {
    it.key == taint::UPDATE_IN_PROGRESS
}

fn apply_change(node: &mut NodeView, change: &NodeChange) {
    match change {
        NodeChange::PlaceGrant {
            grant,
            desired,
            removes_taint,
        } => {
            set(node, annotation::GRANT, Some(grant));
            set(node, annotation::GRANT_ACKNOWLEDGED, None);
            set(node, protocol::DESIRED_CONFIG, Some(desired));
            assert_eq!(*removes_taint, node.spec.taints.iter().any(is_update_taint));
            node.spec.taints.retain(|it| !is_update_taint(it));
        }
        NodeChange::WithdrawGrant {
            ends,
            is_placed,
            resets_desired,
            desired,
            ..
        } => {
            set(node, annotation::GRANT_ENDS, Some(ends));
            if *is_placed {
                set(node, annotation::GRANT, None);
            }
            if *resets_desired {
                set(node, protocol::DESIRED_CONFIG, desired.as_deref());
            }
        }
        NodeChange::RequestCancel { target } => set(node, annotation::CANCEL, Some(target)),
        NodeChange::ResetDesired { desired } => {
            set(node, protocol::DESIRED_CONFIG, desired.as_deref());
        }
        NodeChange::AddTaint => node.spec.taints.push(Taint {
            key: taint::UPDATE_IN_PROGRESS.to_owned(),
            effect: "PreferNoSchedule".to_owned(),
            rest: BTreeMap::new(),
        }),
        NodeChange::RemoveTaint => node.spec.taints.retain(|it| !is_update_taint(it)),
    }
}

/// Lets a leader without faults see everything, decide and carry out.
pub(super) fn run_leader(leader: &mut Leader, server: &mut ApiServer) {
    let mut decide = |leader: &Leader, server: &ApiServer| leader.decision(server);
    // A patch changes what the next decision sees.
    for _ in 0..3 {
        leader.sync_pools(server);
        leader.nodes.clone_from(&server.nodes);
        leader.confirmed.clear();
        leader.turn(server, &mut decide);
        while leader.deliver(server, Delivery::Answered, &mut decide) {}
    }
}

pub(super) fn minutes(count: i64) -> SignedDuration {
    SignedDuration::from_mins(count)
}
