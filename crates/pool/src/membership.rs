//! Decides to which pool a node belongs.

use std::collections::BTreeMap;

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
        RankedPools::of(pools).membership(labels).1
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

/// The pools that may have nodes, in order of precedence.
struct RankedPools<'p> {
    /// Each with its kind and its position in the input.
    pools: Vec<(PoolKind, usize, &'p PoolView)>,
}

impl<'p> RankedPools<'p> {
    fn of(pools: impl IntoIterator<Item = &'p PoolView>) -> Self {
        let pools = pools.into_iter().enumerate();
        let selecting = pools.filter(|(_, pool)| !pool.spec.node_selector.is_empty());
        let mut pools: Vec<_> = selecting
            .map(|(at, pool)| (PoolKind::of(pool), at, pool))
            .collect();
        pools.sort_by_key(|(kind, _, pool)| (*kind, rank(&pool.name), pool.name.as_str()));
        Self { pools }
    }

    /// Returns the membership of a node with these labels, and the position of its pool.
    fn membership(&self, labels: &BTreeMap<String, String>) -> (Option<usize>, Membership<'p>) {
        if labels.get(label::OS).is_some_and(|os| os == WINDOWS_OS) {
            return (None, Membership::default());
        }
        let selects = |pool: &PoolView| pool.spec.node_selector.selects(labels);
        let mut found = self.pools.iter().filter(|(.., pool)| selects(pool));
        let Some((_, at, pool)) = found.next() else {
            return (None, Membership::default());
        };
        // A node of the control plane or of a custom pool usually has the worker role too, so this is not a
        // conflict.
        let others = found.filter(|(kind, ..)| *kind != PoolKind::Worker);
        let passed_over = others.map(|(.., other)| other.name.as_str()).collect();
        let pool = Some(*pool);
        (Some(*at), Membership { pool, passed_over })
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
    let ranked = RankedPools::of(pools);
    for (position, node) in nodes.iter().enumerate() {
        let (at, membership) = ranked.membership(&node.labels);
        match at.and_then(|at| split.pools.get_mut(at)) {
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
