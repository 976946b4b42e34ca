//! Rollouts under random faults: whatever is killed, never more nodes update than the limit allows, and every node ends
//! on the target.

use std::{thread, time::Instant};

use jiff::Timestamp;
use serde_json::Value;

use crate::support::{Dice, installed::NAMESPACE, rounds, wait};

use super::{NODES, Pools, annotation, audit, grants, protocol, rebooting};

/// A step of a rollout of pool `worker`.
#[derive(Clone, Copy, Debug)]
enum Step {
    Rendered,
    GrantRecorded,
    GrantPlaced,
    GrantAcknowledged,
    NodeRebooting,
    NodeUpdated,
}

const STEPS: [Step; 6] = [
    Step::Rendered,
    Step::GrantRecorded,
    Step::GrantPlaced,
    Step::GrantAcknowledged,
    Step::NodeRebooting,
    Step::NodeUpdated,
];

impl Step {
    /// Whether a rollout to another config than `old` has come to this step.
    fn is_reached(self, pools: &Pools, old: &str) -> bool {
        let pool = pools.pool("worker");
        let target = pool["spec"]["configuration"]["name"]
            .as_str()
            .unwrap_or_default();
        if target == old {
            return false;
        }
        let recorded = grants(&pool)["grants"].clone();
        let recorded = || recorded.as_array().into_iter().flatten();
        let any_node = |is: &dyn Fn(&Value) -> bool| {
            let nodes = ["one", "two"].map(|name| pools.cluster.object("node", name));
            nodes.iter().flatten().any(is)
        };
        match self {
            Self::Rendered => true,
            Self::GrantRecorded => recorded().any(|grant| grant["target"] == target),
            Self::GrantPlaced => {
                any_node(&|node| annotation(node, "machinist.dev/grant").contains(target))
            }
            Self::GrantAcknowledged => recorded().any(|grant| grant["acknowledged"] == true),
            Self::NodeRebooting => {
                any_node(&|node| protocol(node, "post-config-action") == "Rebooting")
            }
            Self::NodeUpdated => any_node(&|node| protocol(node, "currentConfig") == target),
        }
    }
}

/// A fault of a round.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The pod that holds the Lease is killed without a chance to release it.
    LeaderKilled,
    /// The same as soon as the rollout comes to a step.
    LeaderKilledAt(Step),
    /// Both replicas are killed.
    ControllersKilled,
    /// The agent of a node is deleted.
    AgentDeleted,
    PowerLoss,
    ApiStopped,
    /// A newer config replaces the target.
    ConfigReplaced,
    /// A node moves to the other pool, or back.
    NodeMoved,
}

const FAULTS: [Fault; 7] = [
    Fault::LeaderKilled,
    Fault::ControllersKilled,
    Fault::AgentDeleted,
    Fault::PowerLoss,
    Fault::ApiStopped,
    Fault::ConfigReplaced,
    Fault::NodeMoved,
];

struct Rounds {
    pools: Pools,
    dice: Dice,
    /// Of the last config.
    number: usize,
    has_moved: bool,
    /// The config of pool `worker` before the round.
    old: String,
    /// When the API server was killed.
    outages: Vec<Timestamp>,
}

impl Rounds {
    /// Gives all nodes a config that differs from the last one.
    fn replace_config(&mut self) {
        self.number += 1;
        let content = format!("{}\n", self.number);
        self.pools
            .apply_config("10-worker", "worker", &[rebooting(&content)]);
    }

    fn delete_pods(&self, selected: &[&str]) {
        let flags = [
            "--force",
            "--grace-period=0",
            "--wait=false",
            "--ignore-not-found",
        ];
        let delete = ["-n", NAMESPACE, "delete", "pods"];
        let all = [&delete[..], selected, &flags].concat();
        self.pools.cluster.kubectl(&all);
    }

    fn inject(&mut self, fault: Fault) {
        let node = self.dice.pick(NODES.len());
        let controllers = "app.kubernetes.io/name=machinist-controller";
        match fault {
            Fault::LeaderKilled => {
                if let Some(leader) = self.pools.leader_pod() {
                    self.delete_pods(&[&leader]);
                }
            }
            Fault::LeaderKilledAt(step) => {
                wait::until(&format!("{step:?}"), wait::seconds(120), || {
                    step.is_reached(&self.pools, &self.old)
                });
                self.inject(Fault::LeaderKilled);
            }
            Fault::ControllersKilled => self.delete_pods(&["-l", controllers]),
            Fault::AgentDeleted => {
                let on = format!("spec.nodeName={}", NODES[node]);
                let agents = "app.kubernetes.io/name=machinist";
                self.delete_pods(&["-l", agents, "--field-selector", &on]);
            }
            Fault::PowerLoss => {
                let machine = &mut self.pools.machines[node];
                machine.kill();
                machine.power_on();
            }
            Fault::ApiStopped => {
                self.pools.cluster.stop_api();
                self.outages.push(Timestamp::now());
                thread::sleep(wait::seconds(5));
                self.pools.cluster.start_api();
            }
            Fault::ConfigReplaced => self.replace_config(),
            Fault::NodeMoved => {
                self.has_moved = !self.has_moved;
                let label = if self.has_moved { "edge=" } else { "edge-" };
                let label = format!("node-role.kubernetes.io/{label}");
                let arguments = ["label", "--overwrite", "node", "two", &label];
                self.pools.cluster.kubectl(&arguments);
            }
        }
    }

    /// How many of which nodes may update at once in a round.
    fn limits(&self, limit: usize, faults: &[Fault]) -> Vec<(&'static [&'static str], usize)> {
        let moves = faults.iter().any(|fault| matches!(fault, Fault::NodeMoved));
        match (moves, self.has_moved) {
            // A node that moves counts where it began.
            (true, _) => vec![(&NODES, 2 * limit)],
            (false, true) => vec![(&["one"], limit), (&["two", "three"], limit)],
            (false, false) => vec![(&["one", "two"], limit), (&["three"], limit)],
        }
    }

    fn round(&mut self, what: &str, limit: usize, faults: &[Fault]) {
        let limits = u32::try_from(limit).unwrap();
        for pool in ["worker", "edge"] {
            self.pools.limit(pool, limits);
        }
        let from = self.pools.cluster.audit().len();
        let begun = Instant::now();
        self.old = self.pools.target("worker");
        self.replace_config();
        for fault in faults {
            if !matches!(fault, Fault::LeaderKilledAt(_)) {
                let pause = self.dice.below(wait::seconds(25));
                thread::sleep(pause);
            }
            println!("lab: {what}: {fault:?} after {:.1?}", begun.elapsed());
            self.inject(*fault);
        }
        let content = format!("{}\n", self.number);
        let machines = &self.pools.machines;
        wait::until(&format!("{what}: every node"), wait::seconds(240), || {
            machines.iter().all(|machine| {
                machine.try_read("/etc/example.conf").as_deref() == Some(content.as_bytes())
            })
        });
        self.pools.wait_rolled_out("worker");
        self.pools.wait_rolled_out("edge");
        let updates = audit::Updates::of(&self.pools.cluster, from, &self.outages);
        for (nodes, limit) in self.limits(limit, faults) {
            let most = updates.most_of(nodes);
            assert!(
                most <= limit,
                "{what}: {most} of {nodes:?} at once, {updates:#?}"
            );
        }
    }
}

#[test]
fn no_fault_lets_more_nodes_update_than_the_limit() {
    let dice = Dice::new();
    let seed = dice.0;
    let pools = Pools::rolled_out();
    for pool in ["worker", "edge"] {
        let settings =
            serde_json::json!({"metadata": {"annotations": {"machinist.dev/canary": "0"}}});
        pools.patch_pool(pool, &settings);
    }
    for node in NODES {
        pools.cluster.workload(&format!("work-{node}"), node, 2);
    }
    let mut all = Rounds {
        pools,
        dice,
        number: 0,
        has_moved: false,
        old: String::new(),
        outages: Vec::new(),
    };
    let begun = Instant::now();
    let given = std::env::var("MACHINIST_LAB_ROUNDS").ok();
    let given = given.map(|count| count.parse().expect("MACHINIST_LAB_ROUNDS is a number"));
    let count: usize = given.unwrap_or(rounds(1, 100));
    if count > 1 {
        for step in STEPS {
            let what = format!("leader killed at {step:?}");
            all.round(&what, 1, &[Fault::LeaderKilledAt(step)]);
        }
    }
    for round in 0..count {
        let limit = 1 + all.dice.pick(2);
        let faults = 1 + all.dice.pick(3);
        let faults: Vec<_> = (0..faults)
            .map(|_| FAULTS[all.dice.pick(FAULTS.len())])
            .collect();
        let what = format!("seed {seed}, round {round}, limit {limit}, {faults:?}");
        println!("lab: {what}");
        all.round(&what, limit, &faults);
    }
    // An API server that has just started does not know the roles yet, and refuses what it permits later.
    if all.outages.is_empty() {
        assert_eq!(audit::refused(&all.pools.cluster), [""; 0]);
    }
    println!(
        "lab: figure: seed {seed}: {count} rollouts over three nodes in {:.0?}",
        begun.elapsed()
    );
}
