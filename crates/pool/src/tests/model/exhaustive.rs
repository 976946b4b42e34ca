//! Checks every interleaving of two leaders, three agents and lost responses up to a number of steps: 3 nodes in 2 pools
//! of one quorum, of which one node may be unavailable.

use std::{
    collections::{BTreeMap, HashMap, HashSet, hash_map::DefaultHasher},
    hash::{Hash as _, Hasher as _},
    rc::Rc,
};

use super::{
    ApiServer, Mutant, NEW, OLD,
    agent::{AgentStep, act},
    leader::{Delivery, Leader},
    minutes, ready_node, resumed_pool,
};
use crate::{Action, Decision, GrantOutcome};
use machinist_kube_api::{NodeView, PoolView, keys::pool_annotation};

/// How many steps are interleaved if the environment does not set `POOL_STEPS`.
const DEFAULT_STEPS: usize = 7;

const NODES: [&str; 3] = ["cp-a", "cp-b", "arb"];

#[derive(Clone)]
struct World {
    server: ApiServer,
    leaders: [Leader; 2],
    /// Whether the time has passed after which grants are withdrawn.
    is_late: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    SyncNode(usize, usize),
    SyncPools(usize),
    Turn(usize),
    Deliver(usize, Delivery),
    Crash(usize),
    Acknowledge(usize),
    Finish(usize),
    Decline(usize),
    TimePasses,
}

type Decisions = HashMap<u128, Rc<Decision>>;

fn steps() -> Vec<Step> {
    let leader = |at: usize| {
        let nodes = (0..NODES.len()).map(move |node| Step::SyncNode(at, node));
        let others = [
            Step::SyncPools(at),
            Step::Turn(at),
            Step::Deliver(at, Delivery::Answered),
            Step::Deliver(at, Delivery::Unanswered),
            Step::Deliver(at, Delivery::Lost),
            Step::Crash(at),
        ];
        nodes.chain(others)
    };
    let agents = (0..NODES.len()).flat_map(|node| {
        [
            Step::Acknowledge(node),
            Step::Finish(node),
            Step::Decline(node),
        ]
    });
    let all = leader(0).chain(leader(1)).chain(agents);
    all.chain([Step::TimePasses]).collect()
}

impl World {
    fn new(mutant: Mutant) -> Self {
        let nodes = NODES.map(|name| {
            let role = if name == "arb" { "arbiter" } else { "master" };
            ready_node(name, role, OLD)
        });
        let mut pools = vec![resumed_pool("arbiter", NEW), resumed_pool("master", NEW)];
        for pool in &mut pools {
            let canary = (pool_annotation::CANARY.to_owned(), "0".to_owned());
            pool.annotations.extend([canary]);
        }
        let mut server = ApiServer::new(pools, nodes.to_vec());
        server.mutant = mutant;
        let leader = |node| Leader::start(&server, Some(node));
        Self {
            leaders: [leader("cp-a"), leader("cp-b")],
            server,
            is_late: false,
        }
    }

    /// Carries out a step; `false` if nothing changes.
    fn act(&mut self, step: Step, decisions: &mut Decisions) -> bool {
        let mut decide = |leader: &Leader, server: &ApiServer| decided(leader, server, decisions);
        let Self {
            server, leaders, ..
        } = self;
        match step {
            Step::SyncNode(at, node) => leaders[at].sync_node(server, NODES[node]),
            Step::SyncPools(at) => leaders[at].sync_pools(server),
            Step::Turn(at) => {
                leaders[at].turn(server, &mut decide);
                true
            }
            Step::Deliver(at, how) => leaders[at].deliver(server, how, &mut decide),
            Step::Crash(at) => {
                let own = leaders[at].own_node.clone();
                leaders[at] = Leader::start(server, own.as_deref());
                true
            }
            Step::Acknowledge(node) => act(server, NODES[node], &AgentStep::Acknowledge),
            Step::Finish(node) => act(server, NODES[node], &AgentStep::End(GrantOutcome::Done)),
            Step::Decline(node) => {
                act(server, NODES[node], &AgentStep::End(GrantOutcome::Declined))
            }
            Step::TimePasses if !self.is_late => {
                self.is_late = true;
                self.server.now += minutes(11);
                true
            }
            Step::TimePasses => false,
        }
    }

    fn key(&self) -> u128 {
        digest(|hasher| {
            hash_views(&self.server.pools, &self.server.nodes, hasher);
            self.is_late.hash(hasher);
            for leader in &self.leaders {
                hash_leader(leader, hasher);
                format!("{:?}", leader.requests).hash(hasher);
            }
        })
    }
}

fn decided(leader: &Leader, server: &ApiServer, known: &mut Decisions) -> Decision {
    let key = digest(|hasher| {
        hash_leader(leader, hasher);
        server.now.hash(hasher);
    });
    let decision = known
        .entry(key)
        .or_insert_with(|| Rc::new(leader.decision(server)));
    Decision::clone(decision)
}

fn digest(write: impl Fn(&mut DefaultHasher)) -> u128 {
    let mut first = DefaultHasher::new();
    let mut second = DefaultHasher::new();
    second.write_u8(1);
    write(&mut first);
    write(&mut second);
    u128::from(first.finish()) << 64 | u128::from(second.finish())
}

fn hash_leader(leader: &Leader, hasher: &mut DefaultHasher) {
    hash_views(&leader.pools, &leader.nodes, hasher);
    (&leader.own_node, &leader.confirmed, &leader.rebuilt).hash(hasher);
    (&leader.listed, &leader.node_reads).hash(hasher);
}

fn hash_views(pools: &[PoolView], nodes: &[NodeView], hasher: &mut DefaultHasher) {
    for pool in pools {
        (&pool.name, &pool.resource_version, &pool.annotations).hash(hasher);
    }
    let by_name: BTreeMap<_, _> = nodes.iter().map(|node| (&node.name, node)).collect();
    for (name, node) in by_name {
        (name, &node.resource_version, &node.annotations).hash(hasher);
        node.spec.unschedulable.hash(hasher);
    }
}

/// The result of a search.
#[derive(Debug, Default)]
struct Search {
    states: usize,
    decisions: usize,
    /// Whether a state was reached in which a node had ended its update.
    has_finished: bool,
    /// The steps to a state with more disrupted nodes than allowed.
    violation: Option<Vec<Step>>,
}

/// Visits every state that is reached within `depth` steps, nearest first.
fn search(mutant: Mutant, depth: usize) -> Search {
    let mut known = HashSet::new();
    let mut decisions = Decisions::new();
    let mut result = Search::default();
    let first = World::new(mutant);
    known.insert(first.key());
    let mut frontier = vec![(first, Vec::new())];
    for _ in 0..depth {
        let mut next = Vec::new();
        for (world, path) in &frontier {
            for step in steps() {
                let mut after = World::clone(world);
                if !after.act(step, &mut decisions) || !known.insert(after.key()) {
                    continue;
                }
                let mut path: Vec<Step> = Vec::clone(path);
                path.push(step);
                if after.server.disrupted().len() > 1 {
                    result.violation = Some(path);
                    result.states = known.len();
                    return result;
                }
                result.has_finished |= step == Step::Finish(0);
                next.push((after, path));
            }
        }
        frontier = next;
    }
    result.states = known.len();
    result.decisions = decisions.len();
    result
}

fn depth() -> usize {
    let given = std::env::var("POOL_STEPS").ok();
    given
        .and_then(|text| text.parse().ok())
        .unwrap_or(DEFAULT_STEPS)
}

#[test]
fn two_leaders_never_disrupt_two_nodes_of_one_quorum() {
    let found = search(Mutant::None, depth());
    println!("{} states, {} decisions", found.states, found.decisions);
    assert_eq!(found.violation, None);
    assert!(found.states > 1000, "{found:?}");
}

#[test]
fn without_the_version_of_the_pool_two_nodes_are_disrupted() {
    let found = search(Mutant::NoPoolVersion, 8);
    let path = found.violation.expect("the model must notice");
    println!("{path:?} after {} states", found.states);
}

#[test]
fn a_leader_requests_a_live_read_before_it_places_a_listed_grant() {
    let mut decisions = Decisions::new();
    let mut world = World::new(Mutant::None);
    for step in [
        Step::Turn(0),
        Step::Deliver(0, Delivery::Unanswered),
        Step::Crash(0),
    ] {
        assert!(world.act(step, &mut decisions), "{step:?}");
    }
    let decision = world.leaders[0].decision(&world.server);
    assert!(
        decision
            .actions
            .contains(&Action::ReadPool("master".to_owned())),
        "{:?}",
        decision.actions
    );
}
