//! Updates of nodes under failures of the node and the cluster, at random moments, one or two at a
//! time.

pub mod checks;

use std::{
    any::Any,
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use checks::{AgentAction, Known, agent_actions, uncordoned_too_early};
use serde_json::{Value, json};

use crate::support::{
    Cluster, Dice, Machine,
    agent::{file, manifest},
    digest::{Tree, differences},
    installed::NAMESPACE,
    lab, rounds, wait,
};

const GROUP: &str = "machineconfiguration.openshift.io";
/// Per node.
const PODS: u32 = 2;
const TREES: &[&str] = &["/etc", "/usr/local"];
/// Written by the runtime, the kubelet and the agent's staging.
const OTHERS: &[&str] = &["/etc/.machinist", "/etc/cni", "/etc/lab"];

/// Every phase that the journal shows while it lasts.
const PHASES: &[&str] = &[
    "Cordoned",
    "DisablingDevices",
    "Draining",
    "Drained",
    "Staging",
    "Committing",
    "RunningActions",
    "RebootPending",
    "Booted",
    "Verifying",
    "Uncordoning",
];

/// A failure of a node or of its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Disturbance {
    PowerLoss,
    AgentDeleted,
    KubeletStopped,
    ApiStopped,
}

const BLOWS: [Disturbance; 4] = [
    Disturbance::PowerLoss,
    Disturbance::AgentDeleted,
    Disturbance::KubeletStopped,
    Disturbance::ApiStopped,
];

/// When the failure is injected.
#[derive(Debug)]
enum Moment {
    /// This long after a phase has begun.
    In(&'static str, Duration),
    /// This long after the config was requested.
    After(Duration),
}

/// The API server, which all machines of a run share: one outage at a time.
struct Outages<'a> {
    cluster: &'a Cluster,
    one: Mutex<()>,
    begun: AtomicUsize,
    lasts: Duration,
}

impl Outages<'_> {
    fn inject(&self) {
        let _one = self.one.lock().unwrap();
        self.begun.fetch_add(1, Ordering::SeqCst);
        self.cluster.stop_api();
        thread::sleep(self.lasts);
        self.cluster.start_api();
    }
}

/// One node, updated from one config to the other and back.
struct DisturbedStage<'a> {
    cluster: &'a Cluster,
    outages: &'a Outages<'a>,
    machine: Machine,
    letter: &'static str,
    looks: BTreeMap<&'static str, Tree>,
    /// From the annotation to Done.
    whole: Duration,
}

fn storage(letter: &str) -> Value {
    let mut files = vec![file("/etc/example.conf", 0o640, letter)];
    for n in 0..60 {
        let path = format!("/etc/rounds/{}{n}", if n % 4 == 3 { letter } else { "" });
        files.push(file(&path, 0o644, &format!("{letter} {n}\n").repeat(n + 1)));
    }
    json!({"files": files})
}

impl DisturbedStage<'_> {
    fn name(&self) -> &str {
        self.machine.name()
    }

    fn other(&self) -> &'static str {
        if self.letter == "a" { "b" } else { "a" }
    }

    /// Runs kubectl, and retries until the API server answers.
    fn kubectl_until_accepted(&self, arguments: &[&str]) {
        wait::until(&format!("{arguments:?}"), wait::seconds(120), || {
            self.cluster.try_kubectl(arguments).status.success()
        });
    }

    fn ask(&self) {
        let desired = format!("{GROUP}/desiredConfig=rendered-rounds-{}", self.other());
        self.kubectl_until_accepted(&["annotate", "--overwrite", "node", self.name(), &desired]);
    }

    /// The agent's journal on the machine's disk, whether the machine is on or off.
    fn journal(&self) -> String {
        let journal = self.machine.root().join("var/lib/machinist/journal");
        std::fs::read_to_string(journal).unwrap_or_default()
    }

    fn is_in(&self, phase: &str) -> bool {
        let journal = self.journal();
        let name = format!("\"name\":\"{phase}\"");
        journal.match_indices(&name).any(|(at, _)| {
            let rest = &journal[at..];
            let end = rest.find('}').unwrap_or(rest.len());
            rest[..end].contains("\"finished\":null")
        })
    }

    fn wait_for(&self, moment: &Moment) {
        let then = match moment {
            Moment::After(time) => Instant::now() + *time,
            Moment::In(phase, time) => {
                // A phase may be over between two polls; then the failure is injected at the end of
                // the round.
                let limit = Instant::now() + 2 * self.whole;
                while !self.is_in(phase) && Instant::now() < limit && !self.is_done() {
                    thread::sleep(Duration::from_millis(3));
                }
                Instant::now() + *time
            }
        };
        thread::sleep(then.saturating_duration_since(Instant::now()));
    }

    /// Whether the journal is on the desired config and has nothing left to do on the node.
    fn is_done(&self) -> bool {
        let journal = self.journal();
        let base = format!("\"base\":{{\"name\":\"rendered-rounds-{}\"", self.other());
        journal.contains(&base) && !journal.contains("\"cordon\":{")
    }

    fn inject(&mut self, blow: Disturbance) {
        match blow {
            Disturbance::PowerLoss => {
                self.machine.kill();
                self.machine.power_on();
            }
            Disturbance::AgentDeleted => {
                let on = format!("spec.nodeName={}", self.name());
                let flags = ["--field-selector", &on, "--wait=false"];
                let arguments = [&["-n", NAMESPACE, "delete", "pods"][..], &flags].concat();
                // The request cannot succeed while the API server is down.
                self.cluster.try_kubectl(&arguments);
            }
            Disturbance::KubeletStopped => {
                // The machine may be rebooting: then its shutdown stops the kubelet.
                let _ = self.machine.try_exec(&["systemctl", "stop", "kubelet"]);
                thread::sleep(wait::seconds(8));
                let _ = self
                    .machine
                    .try_exec(&["systemctl", "start", "--no-block", "kubelet"]);
            }
            Disturbance::ApiStopped => self.outages.inject(),
        }
    }

    fn wait_done(&mut self) -> Value {
        let config = format!("rendered-rounds-{}", self.other());
        let what = format!("{config}, Done, and pods as before");
        let name = self.machine.name();
        let annotation = |node: &Value, name: &str| {
            node["metadata"]["annotations"][format!("{GROUP}/{name}")].clone()
        };
        let node = self
            .cluster
            .wait_object("node", name, &what, wait::seconds(240), |node| {
                annotation(node, "currentConfig") == *config && annotation(node, "state") == "Done"
            });
        self.letter = self.other();
        node
    }

    fn round(&mut self, what: &str, person: bool, blows: &[(Disturbance, Moment)]) {
        let from = self.cluster.audit().len();
        let boot = self.machine.boot_id();
        let reboots = self.machine.reboots().len();
        let outages = self.outages.begun.load(Ordering::SeqCst);
        if person {
            self.kubectl_until_accepted(&["cordon", self.name()]);
        }
        self.ask();
        for (blow, moment) in blows {
            self.wait_for(moment);
            self.inject(*blow);
        }
        let node = self.wait_done();
        self.cluster
            .node(&self.machine)
            .wait_ready(wait::seconds(60));
        let known = Known {
            boots: (boot, self.machine.boot_id()),
            reboots: self.machine.reboots().split_off(reboots),
            lost_power: blows
                .iter()
                .any(|(blow, _)| *blow == Disturbance::PowerLoss),
            lost_api: self.outages.begun.load(Ordering::SeqCst) != outages,
            person,
            schedulable: node["spec"]["unschedulable"] != true,
        };
        let deeds = agent_actions(
            &self.cluster.audit(),
            from,
            self.name(),
            &format!("work-{}-", self.name()),
        );
        assert_eq!(
            checks::judge(&deeds, &known),
            [""; 0],
            "{what}: {known:?} {deeds:#?}"
        );
        if let Some(early) = uncordoned_too_early(&deeds) {
            assert_ne!(
                checks::judge(&early, &known),
                [""; 0],
                "{what}: the judge takes {early:#?}"
            );
        }
        self.looks_as_it_must(what);
        if person {
            self.kubectl_until_accepted(&["uncordon", self.name()]);
        } else {
            let evicted = deeds
                .iter()
                .any(|(_, deed)| matches!(deed, AgentAction::Evict(_)));
            assert!(
                evicted || known.lost_api || known.lost_power,
                "{what}: no pod was moved: {deeds:#?}"
            );
        }
        self.pods_are_back();
    }

    /// Waits until the workload's pods are running, by listing the pods themselves: the
    /// Deployment's status may be from before an outage, and its controller lists again only after
    /// its own back-off, half a minute and more.
    fn pods_are_back(&self) {
        let app = format!("app=work-{}", self.name());
        let query = ["get", "pods", "-l", &app, "-o", "json"];
        wait::until("the pods to run again", wait::seconds(240), || {
            let message = self.cluster.try_kubectl(&query);
            let pods: Value = serde_json::from_slice(&message.stdout).unwrap_or_default();
            let is_ready = |pod: &&Value| {
                let conditions = pod["status"]["conditions"].as_array().into_iter();
                pod["metadata"]["deletionTimestamp"].is_null()
                    && conditions
                        .flatten()
                        .any(|one| one["type"] == "Ready" && one["status"] == "True")
            };
            let pods = pods["items"].as_array().into_iter().flatten();
            pods.filter(is_ready).count() == PODS as usize
        });
    }

    fn looks_as_it_must(&mut self, what: &str) {
        let look = self.machine.tree(TREES, OTHERS);
        let known = self
            .looks
            .entry(self.letter)
            .or_insert_with(|| look.clone());
        let different = differences(known, &look);
        assert_eq!(
            different, [""; 0],
            "{what}: not what config {} asks for",
            self.letter
        );
    }

    fn moment(&self, dice: &mut Dice) -> Moment {
        if dice.pick(2) == 0 {
            let phase = PHASES[dice.pick(PHASES.len())];
            Moment::In(phase, dice.below(Duration::from_millis(400)))
        } else {
            Moment::After(dice.below(self.whole))
        }
    }

    fn disturbances(&self, dice: &mut Dice) -> Vec<(Disturbance, Moment)> {
        let count = 1 + dice.pick(2);
        (0..count)
            .map(|_| (BLOWS[dice.pick(BLOWS.len())], self.moment(dice)))
            .collect()
    }
}

/// Runs `count` rounds on one machine; returns the injected failures and how often each was.
fn run(
    struck: &mut DisturbedStage<'_>,
    count: usize,
    seed: u64,
    mut dice: Dice,
) -> BTreeMap<Disturbance, usize> {
    // Without failures, so that file trees and the duration are known.
    for _ in 0..2 {
        let begun = Instant::now();
        struck.round(&format!("{}, undisturbed", struck.name()), false, &[]);
        struck.whole = begun.elapsed();
    }
    let mut met = BTreeMap::new();
    for round in 0..count {
        let person = dice.pick(8) == 0;
        let blows = struck.disturbances(&mut dice);
        let what = format!(
            "seed {seed}, {}, round {round}, a person's cordon: {person}, {blows:?}",
            struck.name()
        );
        println!("lab: {what}");
        for (blow, _) in &blows {
            *met.entry(*blow).or_default() += 1;
        }
        struck.round(&what, person, &blows);
    }
    met
}

/// The message of a thread's panic.
fn panic_message(payload: Box<dyn Any + Send>) -> String {
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(other) => other
            .downcast_ref::<&str>()
            .map_or("?", |text| text)
            .to_owned(),
    }
}

#[test]
fn an_update_under_random_faults_ends_done_with_its_pods_back() {
    let seed = Dice::new().0;
    let given = std::env::var("MACHINIST_LAB_ROUNDS").ok();
    let given = given.map(|count| count.parse().expect("MACHINIST_LAB_ROUNDS is a number"));
    let count: usize = given.unwrap_or(rounds(1, 34));
    let machines = rounds(2, 3);
    let cluster = Cluster::start(&lab().version);
    let made: Vec<_> = (0..machines)
        .map(|n| Machine::boot(&format!("struck{n}")))
        .collect();
    for machine in &made {
        cluster.join(machine);
    }
    let all: Vec<_> = made.iter().collect();
    cluster.install_machinist(&all, "");
    for letter in ["a", "b"] {
        let config = format!("rendered-rounds-{letter}");
        cluster.apply(&manifest(&config, storage(letter), Value::Null));
    }
    for machine in &made {
        let name = machine.name();
        cluster.workload(&format!("work-{name}"), name, PODS);
    }
    let outages = Outages {
        cluster: &cluster,
        one: Mutex::default(),
        begun: AtomicUsize::new(0),
        lasts: wait::seconds(if lab().long { 30 } else { 10 }),
    };
    let begun = Instant::now();
    let met = thread::scope(|scope| {
        let outages = &outages;
        let cluster = &cluster;
        let threads: Vec<_> = made
            .into_iter()
            .enumerate()
            .map(|(number, machine)| {
                let mut struck = DisturbedStage {
                    cluster,
                    outages,
                    machine,
                    letter: "b",
                    looks: BTreeMap::new(),
                    whole: wait::seconds(20),
                };
                // A part of the seed's sequence that does not overlap with another machine's.
                let dice = Dice(seed ^ ((number as u64) << 48));
                scope.spawn(move || run(&mut struck, count, seed, dice))
            })
            .collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        let (met, failed): (Vec<_>, Vec<_>) = ended.partition(Result::is_ok);
        let failed = failed
            .into_iter()
            .filter_map(Result::err)
            .map(panic_message);
        // Printed again at the end, because the output of machines on drop is long.
        assert_eq!(failed.collect::<Vec<_>>(), [""; 0], "seed {seed}");
        met.into_iter().flatten()
    });
    let mut total: BTreeMap<Disturbance, usize> = BTreeMap::new();
    for (blow, count) in met.flatten() {
        *total.entry(blow).or_default() += count;
    }
    println!(
        "lab: figure: seed {seed}: {} rounds on {machines} nodes in {:.0?}, struck by {total:?}: every one Done, \
         uncordoned once and last",
        machines * count,
        begun.elapsed()
    );
}
