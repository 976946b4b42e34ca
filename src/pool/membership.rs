//! Which of the pools a node belongs to.

use std::collections::{BTreeMap, HashMap};

use crate::crd::{NodeView, PoolView, names::label};

const WINDOWS: &str = "windows";

/// What sort of pool it is; the first one wins over those after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Its nodes are the quorum: by its name, or because it selects by such a role.
    ControlPlane,
    /// Somebody's own.
    Custom,
    /// For whoever is in no other.
    Worker,
}

impl Kind {
    /// The kind of a pool.
    pub fn of(pool: &PoolView) -> Self {
        const ROLES: [&str; 3] = [
            label::ROLE_MASTER,
            label::ROLE_CONTROL_PLANE,
            label::ROLE_ARBITER,
        ];
        let is_role = |key: &str| {
            key.strip_prefix(label::ROLE_PREFIX)
                .is_some_and(|role| ROLES.contains(&role))
        };
        let selector = &pool.spec.node_selector;
        let requires = selector.match_labels.keys().any(|key| is_role(key));
        match pool.name.as_str() {
            name if ROLES.contains(&name) => Self::ControlPlane,
            label::ROLE_WORKER => Self::Worker,
            _ if requires || selector.required().any(is_role) => Self::ControlPlane,
            _ => Self::Custom,
        }
    }
}

/// Which pool a node belongs to, and which others would have it, too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership<'p> {
    /// The pool; none where none selects the node.
    pub pool: Option<&'p PoolView>,
    /// Others that select it and should not: whoever wrote them must choose. A node is never frozen
    /// for that.
    pub passed_over: Vec<&'p str>,
}

impl<'p> Membership<'p> {
    /// The pool of a node with these labels: the control plane's before all, one's own before `worker`,
    /// the first by name where several have the same right. Nodes that run Windows are in none, and a
    /// pool that selects by nothing has no nodes.
    pub fn of(
        labels: &BTreeMap<String, String>,
        pools: impl IntoIterator<Item = &'p PoolView>,
    ) -> Self {
        if labels.get(label::OS).is_some_and(|os| os == WINDOWS) {
            return Self::default();
        }
        let selects = |pool: &&PoolView| {
            let selector = &pool.spec.node_selector;
            !selector.is_empty() && selector.selects(labels)
        };
        let mut found: Vec<_> = pools.into_iter().filter(selects).collect();
        found.sort_by_key(|pool| (Kind::of(pool), rank(&pool.name), pool.name.as_str()));
        let mut found = found.into_iter();
        let pool = found.next();
        // That a node of the control plane or of a pool of one's own is a worker, too, is usual.
        let others = found.filter(|other| Kind::of(other) != Kind::Worker);
        Self {
            pool,
            passed_over: others.map(|other| other.name.as_str()).collect(),
        }
    }

    /// What to tell whoever labelled the node; none where everything is clear.
    pub fn warning(&self, node: &str) -> Option<String> {
        let pool = self.pool.filter(|_| !self.passed_over.is_empty())?;
        let others = self.passed_over.join(", ");
        Some(format!(
            "node {node} is selected by several pools and counts as one of {}, not of {others}",
            pool.name
        ))
    }
}

/// OpenShift's own name of the control plane's pool comes first.
fn rank(name: &str) -> u8 {
    match name {
        label::ROLE_MASTER => 0,
        label::ROLE_CONTROL_PLANE => 1,
        _ => 2,
    }
}

/// A pool and its nodes.
#[derive(Clone, Debug)]
pub struct Members<'a> {
    /// The pool.
    pub pool: &'a PoolView,
    /// Its nodes, in the order in which they came.
    pub nodes: Vec<&'a NodeView>,
}

/// All nodes by their pools.
#[derive(Clone, Debug, Default)]
pub struct Split<'a> {
    /// Every pool, in the order in which they came.
    pub pools: Vec<Members<'a>>,
    /// Nodes that are in no pool.
    pub without: Vec<&'a NodeView>,
    /// What to tell about nodes that several pools select.
    pub warnings: Vec<String>,
}

/// Puts each node into its pool.
pub fn split<'a>(pools: &'a [PoolView], nodes: &'a [NodeView]) -> Split<'a> {
    let empty = |pool| Members {
        pool,
        nodes: Vec::new(),
    };
    let mut split = Split {
        pools: pools.iter().map(empty).collect(),
        ..Split::default()
    };
    let place: HashMap<_, _> = pools
        .iter()
        .enumerate()
        .map(|(at, pool)| (pool.name.as_str(), at))
        .collect();
    for node in nodes {
        let membership = Membership::of(&node.labels, pools);
        split.warnings.extend(membership.warning(&node.name));
        let at = membership
            .pool
            .and_then(|pool| place.get(pool.name.as_str()));
        match at.and_then(|at| split.pools.get_mut(*at)) {
            Some(members) => members.nodes.push(node),
            None => split.without.push(node),
        }
    }
    split
}
