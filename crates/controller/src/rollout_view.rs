//! Pools and Nodes as the leader knows them, and how it knows them.
//!
//! The rules here are those of the model that `machinist_pool` is checked with: which change makes which earlier read
//! worthless. A forgotten read costs a request; one that is kept too long could cost a grant too many.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use jiff::{SignedDuration, Timestamp};

use crate::inbox::ReportedChanges;
use machinist_kube_api::{NodeView, PoolView, keys::pool_annotation};
use machinist_pool::{NodeFacts, NodeRead, PoolRead, RolloutInputs, SharedNames};

/// How long a pool whose grants were not kept waits until they are written again.
const NOT_KEPT_RETRY: SignedDuration = SignedDuration::from_mins(10);

/// The leader's view.
#[derive(Debug, Default)]
pub(crate) struct RolloutView {
    /// Sorted by name.
    pools: Vec<PoolView>,
    /// Sorted by name.
    nodes: Vec<NodeView>,
    /// What decisions read of each Node, in the same order.
    facts: Vec<NodeFacts>,
    names: SharedNames,
    /// The generation of the view in which each Node last changed, in the same order.
    changed: Vec<u64>,
    /// Increases with every change of a Node.
    generation: u64,
    /// The generation in which Nodes were last removed.
    last_removal: u64,
    confirmed: BTreeSet<String>,
    rebuilt: BTreeSet<String>,
    listed: BTreeSet<String>,
    /// When a response did not hold the grants that were written.
    not_kept: BTreeMap<String, Timestamp>,
    node_reads: BTreeMap<String, NodeRead>,
}

impl RolloutView {
    pub(crate) fn pools(&self) -> &[PoolView] {
        &self.pools
    }

    pub(crate) fn nodes(&self) -> &[NodeView] {
        &self.nodes
    }

    pub(crate) fn pool(&self, name: &str) -> Option<&PoolView> {
        let at = self.pools.binary_search_by(|it| it.name.as_str().cmp(name));
        at.ok().and_then(|at| self.pools.get(at))
    }

    pub(crate) fn node(&self, name: &str) -> Option<&NodeView> {
        let at = self.nodes.binary_search_by(|it| it.name.as_str().cmp(name));
        at.ok().and_then(|at| self.nodes.get(at))
    }

    /// Increases with every change of a Node.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// The Nodes that have changed since a generation.
    pub(crate) fn nodes_changed_since(&self, generation: u64) -> impl Iterator<Item = &NodeView> {
        let nodes = self.nodes.iter().zip(&self.changed);
        nodes.filter_map(move |(node, changed)| (*changed > generation).then_some(node))
    }

    /// The generation in which Nodes were last removed.
    pub(crate) fn last_removal(&self) -> u64 {
        self.last_removal
    }

    /// Takes the reports of the watch on Nodes.
    pub(crate) fn take_nodes(&mut self, reports: ReportedChanges<NodeView>) {
        if let Some(listed) = reports.listed {
            self.set_nodes(listed);
        }
        for (name, node) in reports.changes {
            self.put_node(&name, node);
        }
    }

    /// Takes the reports of the watch on pools.
    pub(crate) fn take_pools(&mut self, reports: ReportedChanges<PoolView>) {
        if let Some(listed) = reports.listed {
            let kept: BTreeSet<String> = listed.iter().map(|pool| pool.name.clone()).collect();
            let gone = self.pools.iter().filter(|it| !kept.contains(&it.name));
            let gone: Vec<String> = gone.map(|pool| pool.name.clone()).collect();
            for name in gone {
                self.put_pool(&name, None);
            }
            for pool in listed {
                self.put_pool(&pool.name.clone(), Some(pool));
            }
        }
        for (name, pool) in reports.changes {
            let known = self.pool(&name);
            // A response may have been faster than the event of its write.
            let is_old = matches!((&pool, known), (Some(new), Some(known)) if is_older(new, known));
            if !is_old {
                self.put_pool(&name, pool);
            }
        }
    }

    /// All Nodes, from a list. It replaces newer versions: the cluster may have been restored from a backup.
    fn set_nodes(&mut self, mut nodes: Vec<NodeView>) {
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let facts = nodes
            .iter()
            .map(|node| NodeFacts::new(node, &mut self.names));
        self.facts = facts.collect();
        self.generation += 1;
        self.last_removal = self.generation;
        self.changed = vec![self.generation; nodes.len()];
        self.nodes = nodes;
        self.node_reads.clear();
        self.confirmed.clear();
    }

    /// One Node from an event or a response; `None` if it was deleted. An older version changes nothing.
    pub(crate) fn put_node(&mut self, name: &str, node: Option<NodeView>) {
        let at = self.nodes.binary_search_by(|it| it.name.as_str().cmp(name));
        let known = at.ok().and_then(|at| self.nodes.get(at));
        let is_old = match (&node, known) {
            (Some(new), Some(known)) => new == known || new.is_older_than(known),
            (None, None) => true,
            _ => false,
        };
        if is_old {
            return;
        }
        let place = at.map_or_else(|at| at..at, |at| at..at + 1);
        let facts = node
            .as_ref()
            .map(|node| NodeFacts::new(node, &mut self.names));
        self.facts.splice(place.clone(), facts);
        self.generation += 1;
        if node.is_none() {
            self.last_removal = self.generation;
        }
        let changed = node.as_ref().map(|_| self.generation);
        self.changed.splice(place.clone(), changed);
        self.nodes.splice(place, node);
        // The node may be newer than the pools.
        self.confirmed.clear();
        self.node_reads.remove(name);
    }

    /// One pool from an event or from the response of a write that concerns no grants; `None` if it was deleted.
    pub(crate) fn put_pool(&mut self, name: &str, pool: Option<PoolView>) {
        if self.pool(name) == pool.as_ref() {
            return;
        }
        self.replace_pool(name, pool);
        self.node_reads.clear();
        self.confirmed.clear();
        self.listed.clear();
    }

    /// One pool from a live read; `None` if it does not exist.
    pub(crate) fn read_pool(&mut self, name: &str, pool: Option<PoolView>) {
        if self.pool(name) != pool.as_ref() {
            self.node_reads.clear();
            self.replace_pool(name, pool);
        }
        self.confirmed.insert(name.to_owned());
        self.listed.remove(name);
    }

    /// A pool as the API server returned it after a write of its grants.
    pub(crate) fn wrote_pool(
        &mut self,
        pool: PoolView,
        is_rebuild: bool,
        not_kept: Option<Timestamp>,
    ) {
        let name = pool.name.clone();
        self.node_reads.clear();
        self.replace_pool(&name, Some(pool));
        if is_rebuild {
            self.rebuilt.insert(name.clone());
        }
        match not_kept {
            Some(time) => self.not_kept.insert(name.clone(), time),
            None => self.not_kept.remove(&name),
        };
        self.confirmed.insert(name.clone());
        self.listed.remove(&name);
    }

    /// All Nodes from a live list that began after the pools were read.
    pub(crate) fn listed_nodes(&mut self, nodes: Vec<NodeView>) {
        self.set_nodes(nodes);
        self.listed = self.pools.iter().map(|pool| pool.name.clone()).collect();
    }

    /// One Node from a live read; `None` if it does not exist.
    pub(crate) fn read_node(&mut self, name: &str, node: Option<NodeView>) {
        let read = match &node {
            Some(_) => NodeRead::Exists,
            None => NodeRead::Absent,
        };
        self.put_node(name, node);
        self.node_reads.insert(name.to_owned(), read);
    }

    /// The inputs of a decision that come from pools and Nodes.
    pub(crate) fn inputs(&self, now: Timestamp) -> RolloutInputs<'_> {
        let facts = Cow::Borrowed(self.facts.as_slice());
        let mut inputs = RolloutInputs::with_facts(&self.pools, &self.nodes, facts, now);
        for pool in &self.pools {
            let name = pool.name.as_str();
            let failed = self.not_kept.get(name);
            let read = PoolRead {
                is_confirmed: self.confirmed.contains(name),
                is_rebuilt: self.rebuilt.contains(name),
                is_listed: self.listed.contains(name),
                is_not_kept: failed.is_some_and(|at| now.duration_since(*at) < NOT_KEPT_RETRY),
            };
            inputs.reads.insert(name, read);
        }
        let reads = self.node_reads.iter();
        inputs.node_reads = reads.map(|(name, read)| (name.as_str(), *read)).collect();
        inputs
    }

    /// When a pool whose grants were not kept is written again; `None` if no pool waits for that.
    pub(crate) fn next_retry(&self, now: Timestamp) -> Option<Timestamp> {
        let failures = self.not_kept.values();
        let retries =
            failures.map(|at| at.saturating_add(NOT_KEPT_RETRY).unwrap_or(Timestamp::MAX));
        retries.filter(|at| *at > now).min()
    }

    fn replace_pool(&mut self, name: &str, pool: Option<PoolView>) {
        let at = self.pools.binary_search_by(|it| it.name.as_str().cmp(name));
        let known = at.ok().and_then(|at| self.pools.get(at));
        let is_same = |known: &PoolView| pool.as_ref().is_some_and(|new| new.uid == known.uid);
        if !known.is_some_and(is_same) {
            self.not_kept.remove(name);
        }
        let is_recorded = |pool: &PoolView| pool.annotations.contains_key(pool_annotation::GRANTS);
        let keeps_record = known.is_some_and(is_same) && pool.as_ref().is_some_and(is_recorded);
        if !keeps_record {
            // The pool was created anew, or its record was lost: grants may exist that it does not list.
            self.rebuilt.remove(name);
        }
        match (at, pool) {
            (Ok(at), Some(pool)) => {
                if let Some(slot) = self.pools.get_mut(at) {
                    *slot = pool;
                }
            }
            (Ok(at), None) => drop(self.pools.remove(at)),
            (Err(at), Some(pool)) => self.pools.insert(at, pool),
            (Err(_), None) => {}
        }
    }
}

/// Whether `new` is an earlier version of the pool than `known`, as far as versions can be compared.
fn is_older(new: &PoolView, known: &PoolView) -> bool {
    let number = |pool: &PoolView| pool.resource_version.parse::<u64>().ok();
    new.uid == known.uid
        && matches!((number(new), number(known)), (Some(new), Some(known)) if new < known)
}

#[cfg(test)]
mod tests;
