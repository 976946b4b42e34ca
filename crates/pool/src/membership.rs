//! Decides to which pool a node belongs.

use std::collections::{BTreeMap, HashMap};

use machinist_kube_api::{NodeView, PoolView, keys::label};

const WINDOWS_OS: &str = "windows";

/// The kind of a pool, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PoolKind {
    /// Its nodes form the quorum: the pool has a control-plane role's name, or selects by such a role.
    ControlPlane,
    /// An administrator's own pool.
    Custom,
    /// The pool of the nodes that no other pool selects.
    Worker,
}

impl PoolKind {
    /// Returns the kind of a pool.
    pub fn of(pool: &PoolView) -> Self {
        const CONTROL_PLANE_ROLES: [&str; 3] = [
            label::ROLE_MASTER,
            label::ROLE_CONTROL_PLANE,
            label::ROLE_ARBITER,
        ];
        let is_role = |key: &str| {
            key.strip_prefix(label::ROLE_PREFIX)
                .is_some_and(|role| CONTROL_PLANE_ROLES.contains(&role))
        };
        let selector = &pool.spec.node_selector;
        let requires = selector.match_labels.keys().any(|key| is_role(key));
        match pool.name.as_str() {
            name if CONTROL_PLANE_ROLES.contains(&name) => Self::ControlPlane,
            label::ROLE_WORKER => Self::Worker,
            _ if requires || selector.required().any(is_role) => Self::ControlPlane,
            _ => Self::Custom,
        }
    }
}

/// The pool of a node, and the other pools that select it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership<'p> {
    /// The pool; `None` if no pool selects the node.
    pub pool: Option<&'p PoolView>,
    /// Other pools that select the node and should not, so that an administrator must fix their selectors. The
    /// node's updates continue regardless.
    pub passed_over: Vec<&'p str>,
}

impl<'p> Membership<'p> {
    /// Returns the pool of a node with these labels. A control-plane pool wins over a custom pool, a custom pool
    /// over `worker`; among equals, the first by name wins. Windows nodes belong to no pool, and a pool with an
    /// empty selector has no nodes.
    pub fn of(
        labels: &BTreeMap<String, String>,
        pools: impl IntoIterator<Item = &'p PoolView>,
    ) -> Self {
        if labels.get(label::OS).is_some_and(|os| os == WINDOWS_OS) {
            return Self::default();
        }
        let selects = |pool: &&PoolView| {
            let selector = &pool.spec.node_selector;
            !selector.is_empty() && selector.selects(labels)
        };
        let mut found: Vec<_> = pools.into_iter().filter(selects).collect();
        found.sort_by_key(|pool| (PoolKind::of(pool), rank(&pool.name), pool.name.as_str()));
        let mut found = found.into_iter();
        let pool = found.next();
        // A node of the control plane or of a custom pool usually has the worker role too, so this is not a
        // conflict.
        let others = found.filter(|other| PoolKind::of(other) != PoolKind::Worker);
        Self {
            pool,
            passed_over: others.map(|other| other.name.as_str()).collect(),
        }
    }

    /// Returns a warning for the administrator who labelled the node; `None` if the membership is unambiguous.
    pub fn warning(&self, node: &str) -> Option<String> {
        let pool = self.pool.filter(|_| !self.passed_over.is_empty())?;
        let others = self.passed_over.join(", ");
        Some(format!(
            "node {node} is selected by several pools; it is counted in pool {}, not in {others}",
            pool.name
        ))
    }
}

/// Ranks OpenShift's name for the control-plane pool first.
fn rank(name: &str) -> u8 {
    match name {
        label::ROLE_MASTER => 0,
        label::ROLE_CONTROL_PLANE => 1,
        _ => 2,
    }
}

/// A pool and its nodes.
#[derive(Clone, Debug)]
pub struct PoolMembers<'a> {
    /// The pool.
    pub pool: &'a PoolView,
    /// Its nodes, in input order.
    pub nodes: Vec<&'a NodeView>,
    /// The positions of its nodes in the input.
    pub positions: Vec<usize>,
    /// A warning for each of its nodes that other pools select, too.
    pub ambiguous: Vec<String>,
}

/// All nodes, grouped by pool.
#[derive(Clone, Debug, Default)]
pub struct NodesByPool<'a> {
    /// Every pool, in input order.
    pub pools: Vec<PoolMembers<'a>>,
    /// Nodes that are in no pool.
    pub without: Vec<&'a NodeView>,
}

/// Assigns each node to its pool.
pub fn split<'a>(pools: &'a [PoolView], nodes: &'a [NodeView]) -> NodesByPool<'a> {
    let empty = |pool| PoolMembers {
        pool,
        nodes: Vec::new(),
        positions: Vec::new(),
        ambiguous: Vec::new(),
    };
    let mut split = NodesByPool {
        pools: pools.iter().map(empty).collect(),
        ..NodesByPool::default()
    };
    let place: HashMap<_, _> = pools
        .iter()
        .enumerate()
        .map(|(at, pool)| (pool.name.as_str(), at))
        .collect();
    for (position, node) in nodes.iter().enumerate() {
        let membership = Membership::of(&node.labels, pools);
        let at = membership
            .pool
            .and_then(|pool| place.get(pool.name.as_str()));
        match at.and_then(|at| split.pools.get_mut(*at)) {
            Some(members) => {
                members.nodes.push(node);
                members.positions.push(position);
                members.ambiguous.extend(membership.warning(&node.name));
            }
            None => split.without.push(node),
        }
    }
    split
}
