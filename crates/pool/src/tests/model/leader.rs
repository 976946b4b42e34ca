//! A leader of the model: its caches, and its requests that are on their way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::ApiServer;
use crate::{Action, Decision, NodeRead, PoolGrants, PoolRead, RolloutInputs, decide};
use machinist_kube_api::{NodeView, PoolView, keys::pool_annotation};

/// A process that believes to be the leader.
#[derive(Clone, Debug, Default)]
pub(in crate::tests) struct Leader {
    /// The node that it runs on: two leaders choose different nodes.
    pub(in crate::tests) own_node: Option<String>,
    pub(in crate::tests) pools: Vec<PoolView>,
    pub(in crate::tests) nodes: Vec<NodeView>,
    pub(in crate::tests) confirmed: BTreeSet<String>,
    pub(in crate::tests) rebuilt: BTreeSet<String>,
    pub(in crate::tests) listed: BTreeSet<String>,
    pub(in crate::tests) node_reads: BTreeMap<String, NodeRead>,
    /// Writes and patches that the server has not received yet.
    pub(in crate::tests) requests: VecDeque<Action>,
    pub(in crate::tests) taint_patches: usize,
}

/// What happens to the oldest request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::tests) enum Delivery {
    /// The server carries it out, and its response arrives.
    Answered,
    /// The server carries it out, and its response is lost.
    Unanswered,
    /// It is lost.
    Lost,
}

/// How often a turn may read and decide again before it must have requested something.
const MAX_READS_PER_TURN: usize = 24;

impl Leader {
    /// Starts a process: it knows nothing but what its first lists return.
    pub(in crate::tests) fn start(server: &ApiServer, own_node: Option<&str>) -> Self {
        Self {
            own_node: own_node.map(str::to_owned),
            pools: server.pools.clone(),
            nodes: server.nodes.clone(),
            taint_patches: 0,
            ..Self::default()
        }
    }

    /// Receives watch events of one Node.
    pub(in crate::tests) fn sync_node(&mut self, server: &ApiServer, name: &str) -> bool {
        let live = server.node(name);
        let cached = self.nodes.iter().position(|it| it.name == name);
        let known = cached.and_then(|at| self.nodes.get(at));
        if known == live {
            return false;
        }
        if let Some(at) = cached {
            self.nodes.remove(at);
        }
        self.nodes.extend(live.cloned());
        // The node may be newer than the pools.
        self.confirmed.clear();
        self.node_reads.remove(name);
        true
    }

    /// Receives watch events of all pools.
    pub(in crate::tests) fn sync_pools(&mut self, server: &ApiServer) -> bool {
        if self.pools == server.pools {
            return false;
        }
        self.pools.clone_from(&server.pools);
        self.node_reads.clear();
        self.confirmed.clear();
        self.listed.clear();
        true
    }

    pub(in crate::tests) fn decision(&self, server: &ApiServer) -> Decision {
        let mut inputs = RolloutInputs::new(&self.pools, &self.nodes, server.now);
        for pool in &self.pools {
            let is_confirmed = self.confirmed.contains(&pool.name);
            let is_rebuilt = self.rebuilt.contains(&pool.name);
            let read = PoolRead {
                is_confirmed,
                is_rebuilt,
                is_listed: self.listed.contains(&pool.name),
                is_not_kept: false,
            };
            inputs.reads.insert(&pool.name, read);
        }
        inputs.own_node = self.own_node.as_deref();
        let reads = self.node_reads.iter();
        inputs.node_reads = reads.map(|(name, read)| (name.as_str(), *read)).collect();
        inputs.taint_patches = self.taint_patches;
        decide(&inputs)
    }

    /// Decides, carries out the reads, and decides again until only writes and patches are left; they replace what was
    /// requested before, unless it is on its way already.
    pub(in crate::tests) fn turn(
        &mut self,
        server: &ApiServer,
        decisions: &mut impl FnMut(&Self, &ApiServer) -> Decision,
    ) {
        for _ in 0..MAX_READS_PER_TURN {
            let decision = decisions(self, server);
            let is_read = |action: &Action| {
                matches!(
                    action,
                    Action::ReadPool(_) | Action::ReadNode(_) | Action::ListNodes
                )
            };
            let Some(read) = decision.actions.iter().find(|it| is_read(it)) else {
                self.requests = decision.actions.into();
                return;
            };
            match read {
                Action::ReadPool(name) => self.read_pool(server, name),
                Action::ListNodes => {
                    self.nodes.clone_from(&server.nodes);
                    self.node_reads.clear();
                    self.confirmed.clear();
                    let names = self.pools.iter().map(|pool| pool.name.clone());
                    self.listed = names.collect();
                }
                Action::ReadNode(name) => {
                    self.sync_node(server, name);
                    let read = match server.node(name) {
                        Some(_) => NodeRead::Exists,
                        None => NodeRead::Absent,
                    };
                    self.node_reads.insert(name.clone(), read);
                }
                Action::WritePool(_) | Action::PatchNode(_) => {}
            }
        }
        panic!("a turn never ends: {:#?}", self.decision(server).actions);
    }

    fn read_pool(&mut self, server: &ApiServer, name: &str) {
        let known = self.pools.iter().find(|it| it.name == name);
        if known != server.pool(name) {
            self.node_reads.clear();
            self.pools.retain(|it| it.name != name);
            self.pools.extend(server.pool(name).cloned());
            self.pools.sort_by(|a, b| a.name.cmp(&b.name));
        }
        self.confirmed.insert(name.to_owned());
        self.listed.remove(name);
    }

    /// Delivers the oldest request. After a write of a pool the leader decides again at once, as an adapter does.
    pub(in crate::tests) fn deliver(
        &mut self,
        server: &mut ApiServer,
        how: Delivery,
        decisions: &mut impl FnMut(&Self, &ApiServer) -> Decision,
    ) -> bool {
        let Some(request) = self.requests.pop_front() else {
            return false;
        };
        if how == Delivery::Lost {
            return true;
        }
        match request {
            Action::WritePool(write) => {
                let result = server.write_pool(&write);
                if how == Delivery::Unanswered {
                    return true;
                }
                match result {
                    Ok(pool) => {
                        let text = pool.annotations.get(pool_annotation::GRANTS);
                        assert!(write.grants.is_kept(text.map(String::as_str)));
                        assert!(PoolGrants::parse("", text.map(String::as_str)).is_ok());
                        if write.is_rebuild {
                            self.rebuilt.insert(write.pool.clone());
                        }
                        self.node_reads.clear();
                        self.pools.retain(|it| it.name != write.pool);
                        self.pools.push(pool);
                        self.pools.sort_by(|a, b| a.name.cmp(&b.name));
                        self.confirmed.insert(write.pool.clone());
                        self.listed.remove(&write.pool);
                    }
                    Err(_) => self.read_pool(server, &write.pool),
                }
                self.turn(server, decisions);
            }
            Action::PatchNode(patch) => {
                // The response is not put into the cache: the watch delivers it later.
                let _ = server.patch_node(&patch);
            }
            Action::ReadPool(_) | Action::ReadNode(_) | Action::ListNodes => {}
        }
        true
    }
}
