//! Random schedules of two leaders, agents, faults and administrators: the limit is never exceeded, and when faults
//! end, every node reaches the target.
//!
//! `POOL_ROUNDS` and `POOL_SEED` set the number of schedules and the first seed; a failure prints its seed.

use super::{
    ApiServer, Mutant, NEW, OLD,
    agent::{AgentStep, act},
    beat,
    leader::{Delivery, Leader},
    minutes, next_version, ready_node, resumed_pool,
};
use crate::{
    Decision, GrantOutcome, PoolGrants, PoolKind, max_unavailable, open_grant, tests::with_roles,
};
use machinist_kube_api::{
    IntOrString, NodeUpdateState, NodeView, PoolView,
    keys::{annotation, pool_annotation, protocol},
};

/// Schedules if the environment sets no number; `tests/long` runs 100,000.
const DEFAULT_ROUNDS: u64 = 60;

/// Steps of a schedule with faults.
const STEPS: usize = 120;

/// Rounds of all leaders and agents without faults within which every node must be on the target.
const MAX_QUIET_ROUNDS: usize = 120;

/// Requests of one leader after which it must have nothing to request.
const MAX_DELIVERIES: usize = 60;

/// A small generator (xorshift), so that a seed gives the same schedule everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(end.max(1)).unwrap()).unwrap()
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

struct Schedule {
    random: Random,
    server: ApiServer,
    leaders: [Leader; 2],
    targets: usize,
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn decide(leader: &Leader, server: &ApiServer) -> Decision {
    leader.decision(server)
}

impl Schedule {
    fn new(seed: u64, mutant: Mutant) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let (masters, workers) = (1 + random.below(3), 1 + random.below(5));
        let has_arbiter = random.one_in(2);
        let mut nodes = Vec::new();
        for (role, count) in [
            ("master", masters),
            ("arbiter", usize::from(has_arbiter)),
            ("worker", workers),
        ] {
            nodes.extend((0..count).map(|at| ready_node(&format!("{role}-{at}"), role, OLD)));
        }
        let mut pools = ["arbiter", "infra", "master", "worker"].map(|it| resumed_pool(it, NEW));
        for pool in &mut pools {
            if random.one_in(2) {
                let canary = (pool_annotation::CANARY.to_owned(), "0".to_owned());
                pool.annotations.extend([canary]);
            }
            // Failures are frequent here, and stopping is not what is checked.
            let stop = (
                pool_annotation::STOP_AFTER_FAILURES.to_owned(),
                "99".to_owned(),
            );
            pool.annotations.extend([stop]);
        }
        pools[3].spec.max_unavailable =
            Some(IntOrString::Int(i64::from(1 + random.one_in(2) as u8)));
        if random.one_in(3) {
            let aside = (
                pool_annotation::STEP_ASIDE_AFTER.to_owned(),
                "5m".to_owned(),
            );
            pools[3].annotations.extend([aside]);
        }
        let mut server = ApiServer::new(pools.to_vec(), nodes);
        server.mutant = mutant;
        let leaders = ["master-0", "worker-0"].map(|node| Leader::start(&server, Some(node)));
        Self {
            random,
            server,
            leaders,
            targets: 0,
        }
    }

    fn node_name(&mut self) -> String {
        let at = self.random.below(self.server.nodes.len());
        self.server.nodes[at].name.clone()
    }

    /// One step with faults.
    fn step(&mut self) {
        let (at, name) = (self.random.below(2), self.node_name());
        let Self {
            random,
            server,
            leaders,
            ..
        } = self;
        let leader = &mut leaders[at];
        match random.below(100) {
            0..22 => drop(leader.sync_node(server, &name)),
            22..30 => drop(leader.sync_pools(server)),
            30..48 => leader.turn(server, &mut decide),
            48..70 => {
                let how = match random.below(8) {
                    0 => Delivery::Lost,
                    1 => Delivery::Unanswered,
                    _ => Delivery::Answered,
                };
                leader.deliver(server, how, &mut decide);
            }
            70..73 => *leader = Leader::start(server, leader.own_node.clone().as_deref()),
            73..90 => self.agent_step(&name),
            90..94 => server.now += minutes(i64::try_from(1 + random.below(12)).unwrap()),
            94 => server
                .nodes
                .iter_mut()
                .for_each(|node| beat(node, server.now)),
            95 => self.skip_node(&name),
            96 => self.change_target(),
            97 => self.move_node(&name),
            98 => self.recreate_node(&name),
            _ => self.touch_pool(),
        }
    }

    fn agent_step(&mut self, name: &str) {
        let step = match self.random.below(12) {
            0..4 => AgentStep::Acknowledge,
            4..7 => AgentStep::End(GrantOutcome::Done),
            7 => AgentStep::End(GrantOutcome::Failed),
            8 => AgentStep::End(GrantOutcome::Declined),
            9 => AgentStep::FailDrained,
            10 => AgentStep::Block,
            _ => {
                let cancel = self.server.node(name).and_then(NodeView::cancel);
                if cancel.is_none() {
                    return;
                }
                AgentStep::End(GrantOutcome::Cancelled)
            }
        };
        act(&mut self.server, name, &step);
    }

    fn change_target(&mut self) {
        self.targets += 1;
        let target = format!("rendered-{}", self.targets);
        for pool in &mut self.server.pools {
            pool.spec.configuration.name.clone_from(&target);
            pool.resource_version = next_version(&pool.resource_version);
        }
    }

    /// A worker moves between the pools `worker` and `infra`.
    fn move_node(&mut self, name: &str) {
        let node = self
            .server
            .nodes
            .iter_mut()
            .find(|it| it.name == name)
            .unwrap();
        if !name.starts_with("worker") {
            return;
        }
        let is_infra = node.roles().contains("infra");
        let roles: &[&str] = if is_infra {
            &["worker"]
        } else {
            &["worker", "infra"]
        };
        node.labels = with_roles(roles);
        node.resource_version = next_version(&node.resource_version);
    }

    /// A Node is deleted and registers again; the machine keeps its config.
    fn recreate_node(&mut self, name: &str) {
        let now = self.server.now;
        let node = self
            .server
            .nodes
            .iter_mut()
            .find(|it| it.name == name)
            .unwrap();
        node.uid = format!("{}+", node.uid);
        node.resource_version = next_version(&node.resource_version);
        node.spec.unschedulable = false;
        let kept = [
            protocol::CURRENT_CONFIG,
            protocol::DESIRED_CONFIG,
            protocol::STATE,
        ];
        node.annotations
            .retain(|name, _| kept.contains(&name.as_str()));
        beat(node, now);
    }

    /// An operator leaves a node out of the rollout, or ends that.
    fn skip_node(&mut self, name: &str) {
        let target = self.server.pools[0].spec.configuration.name.clone();
        let mut nodes = self.server.nodes.iter_mut();
        let node = nodes.find(|it| it.name == name).unwrap();
        if node.annotations.remove(annotation::SKIP_ROLLOUT).is_none() {
            let skip = (annotation::SKIP_ROLLOUT.to_owned(), target);
            node.annotations.extend([skip]);
        }
        node.resource_version = next_version(&node.resource_version);
    }

    /// Something else writes a pool.
    fn touch_pool(&mut self) {
        let at = self.random.below(self.server.pools.len());
        let pool = &mut self.server.pools[at];
        pool.resource_version = next_version(&pool.resource_version);
    }

    /// The nodes that are disrupted beyond a limit, if there are any. A node counts in the pool that lists its grant, also
    /// when it has moved to another pool and the grant was given a target of that pool.
    fn violation(&self) -> Option<String> {
        let disrupted = self.server.disrupted();
        let is_quorum = |pool: &str| pool == "master" || pool == "arbiter";
        let fence = |name: &str| {
            let node = self.server.node(name).unwrap();
            let grant = open_grant(node).unwrap().unwrap();
            let pool = self.listed_on(&grant.id).unwrap_or(grant.pool);
            if is_quorum(&pool) {
                "quorum".to_owned()
            } else {
                pool
            }
        };
        for pool in &self.server.pools {
            let key = if is_quorum(&pool.name) {
                "quorum"
            } else {
                pool.name.as_str()
            };
            let inside: Vec<_> = disrupted.iter().filter(|name| fence(name) == key).collect();
            let limit = match PoolKind::of(pool) {
                PoolKind::ControlPlane => 1,
                _ => max_unavailable(pool, 99).unwrap().at_most,
            };
            if inside.len() > limit {
                return Some(format!(
                    "{}: {inside:?} disrupted, limit {limit}",
                    pool.name
                ));
            }
        }
        None
    }

    /// The pool that lists a grant.
    fn listed_on(&self, id: &str) -> Option<String> {
        let lists = |pool: &&PoolView| {
            let text = pool.annotations.get(pool_annotation::GRANTS);
            let grants = PoolGrants::parse("", text.map(String::as_str)).unwrap();
            let grants = grants.unwrap_or_default().grants;
            grants.iter().any(|grant| grant.id == id)
        };
        let pool = self.server.pools.iter().find(lists);
        pool.map(|pool| pool.name.clone())
    }

    /// Runs without faults until every node is on the target.
    fn settle(&mut self) -> Result<(), String> {
        for node in &mut self.server.nodes {
            if node.annotations.remove(annotation::SKIP_ROLLOUT).is_some() {
                node.resource_version = next_version(&node.resource_version);
            }
        }
        for round in 0..MAX_QUIET_ROUNDS {
            // An administrator resumes what failures have stopped.
            if round % 20 == 10 {
                self.resume();
            }
            if self.server.nodes.iter().all(|node| self.is_updated(node)) {
                return Ok(());
            }
            let names: Vec<_> = self.server.nodes.iter().map(|it| it.name.clone()).collect();
            for node in &mut self.server.nodes {
                beat(node, self.server.now);
            }
            for at in 0..2 {
                self.leaders[at].sync_pools(&self.server);
                for name in &names {
                    self.leaders[at].sync_node(&self.server, name);
                }
                self.leaders[at].turn(&self.server, &mut decide);
                self.deliver_all(at)?;
                self.violation().map_or(Ok(()), Err)?;
            }
            for name in &names {
                self.heal(name);
            }
            self.server.now += minutes(1);
        }
        let pools = self.server.pools.iter().map(|pool| {
            let text = pool
                .annotations
                .get(pool_annotation::GRANTS)
                .map(String::as_str);
            (pool.name.clone(), PoolGrants::parse("", text))
        });
        Err(format!(
            "{:#?}\n{:#?}",
            pools.collect::<Vec<_>>(),
            self.leaders[0].decision(&self.server)
        ))
    }

    fn resume(&mut self) {
        let value = self.server.now.to_string();
        for pool in &mut self.server.pools {
            let resume = (pool_annotation::RESUME.to_owned(), value.clone());
            pool.annotations.extend([resume]);
            pool.resource_version = next_version(&pool.resource_version);
        }
    }

    /// Delivers requests until none is left. A leader that requests for ever is an error.
    fn deliver_all(&mut self, at: usize) -> Result<(), String> {
        for _ in 0..MAX_DELIVERIES {
            if !self.leaders[at].deliver(&mut self.server, Delivery::Answered, &mut decide) {
                return Ok(());
            }
        }
        Err(format!(
            "requests never end: {:#?}",
            self.leaders[at].requests
        ))
    }

    /// The agent does what it can, and an administrator helps a node that failed in place.
    fn heal(&mut self, name: &str) {
        let node = self.server.node(name).unwrap();
        let failed = node.state() == Some(NodeUpdateState::Degraded);
        if node.cancel().is_some() {
            act(
                &mut self.server,
                name,
                &AgentStep::End(GrantOutcome::Cancelled),
            );
        }
        act(&mut self.server, name, &AgentStep::End(GrantOutcome::Done));
        act(&mut self.server, name, &AgentStep::Acknowledge);
        let node = self
            .server
            .nodes
            .iter_mut()
            .find(|it| it.name == name)
            .unwrap();
        node.annotations.remove(annotation::BLOCKED_BY);
        // A machine whose Node was created again in the middle of its update continues it; one that failed goes back.
        let is_working = node.state() == Some(NodeUpdateState::Working);
        let reached = match (is_working, failed) {
            (true, _) => protocol::DESIRED_CONFIG,
            (false, true) => protocol::CURRENT_CONFIG,
            (false, false) => return,
        };
        if open_grant(node).unwrap().is_none() {
            let config = node.annotations.get(reached).cloned().unwrap();
            for name in [protocol::CURRENT_CONFIG, protocol::DESIRED_CONFIG] {
                node.annotations.insert(name.to_owned(), config.clone());
            }
            let state = (protocol::STATE.to_owned(), "Done".to_owned());
            node.annotations.extend([state]);
            node.resource_version = next_version(&node.resource_version);
        }
    }

    fn is_updated(&self, node: &NodeView) -> bool {
        let target = self.server.pools[0].spec.configuration.name.as_str();
        node.current_config() == Some(target) && open_grant(node).unwrap().is_none()
    }
}

/// Prints the seed when its schedule panics.
struct SeedOnPanic(u64);

impl Drop for SeedOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("POOL_SEED={} POOL_ROUNDS=1", self.0);
        }
    }
}

/// Runs one schedule; an error describes what was violated.
fn run(seed: u64, mutant: Mutant, settles: bool) -> Result<(), String> {
    let _seed = SeedOnPanic(seed);
    let mut schedule = Schedule::new(seed, mutant);
    for _ in 0..STEPS {
        schedule.step();
        if let Some(found) = schedule.violation() {
            return Err(found);
        }
    }
    match settles {
        true => schedule.settle(),
        false => Ok(()),
    }
}

#[test]
fn random_schedules_keep_the_limit_and_end_on_the_target() {
    let first = number("POOL_SEED").unwrap_or(1);
    let rounds = number("POOL_ROUNDS").unwrap_or(DEFAULT_ROUNDS);
    for seed in first..first + rounds {
        if let Err(what) = run(seed, Mutant::None, true) {
            panic!("POOL_SEED={seed} POOL_ROUNDS=1: {what}");
        }
    }
}

#[test]
fn random_schedules_notice_that_the_version_of_the_pool_is_not_tested() {
    let found = (1..500).find(|seed| run(*seed, Mutant::NoPoolVersion, false).is_err());
    assert!(found.is_some());
}
