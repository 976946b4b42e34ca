//! A pool of many simulated nodes: time of decisions, memory and writes of the controller.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{GROUP, condition, config, held, rebooting};
use crate::support::{Cluster, WORK, installed, lab, rounds, wait};

/// Limits for 5,000 nodes, and the writes for any number.
const MAX_COLD_START: Duration = Duration::from_secs(10);
const MAX_RESIDENT_KIB: f64 = 150.0 * 1024.0;
const MAX_DECISION_SECONDS: f64 = 0.01;
const MAX_WRITES_PER_NODE: f64 = 6.0;

/// The Lease lasts 15 s; the rest is for a cold cache and busy cores.
const MAX_TAKEOVER: Duration = wait::seconds(60);

const LEADER_PORT: u16 = 10481;
const OTHER_PORT: u16 = 10482;

/// The rollout of 5,000 nodes in a debug build on busy cores.
const ROLLOUT: Duration = wait::seconds(1200);

/// A process that is killed with the test.
struct Beside(Child);

impl Beside {
    fn start(mut command: Command, log: &Path) -> Self {
        let log = File::create(log).unwrap();
        command.stdout(log.try_clone().unwrap()).stderr(log);
        Self(command.spawn().unwrap())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn simulator() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_machinist"));
    program.with_file_name("examples/simulated_agents")
}

/// Starts a controller whose metrics are served on this port.
fn start_controller(cluster: &Cluster, admin: &Path, port: u16) -> Beside {
    let mut command = cluster.beside(installed::binary());
    let listen = format!("127.0.0.1:{port}");
    command.args(["controller", "--listen", &listen, "--kubeconfig"]);
    command.arg(admin);
    let log = format!("controller-{port}.log");
    Beside::start(command, &Path::new(WORK).join(log))
}

/// The page of metrics of a controller; empty if it does not answer.
fn metrics(cluster: &Cluster, port: u16) -> String {
    let mut get = cluster.beside(Path::new("bash"));
    let request = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3"
    );
    let output = get.args(["-c", &request]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Kills the leader, and measures the time until the other controller acts and knows all nodes.
fn measure_takeover(cluster: &Cluster, leader: Beside, port: u16, nodes: f64) {
    drop(leader);
    let total = ["pool=\"scale\"", "state=\"total\""];
    let took = wait::until("another leader", wait::seconds(120), || {
        let page = metrics(cluster, port);
        (sum(&page, "machinist_controller_pool_machines", &total) - nodes).abs() < 0.5
    });
    println!(
        "lab: figure: {nodes} nodes: another controller acted {:.1} s after the leader was killed",
        took.as_secs_f64()
    );
    assert!(took < MAX_TAKEOVER, "{took:?}");
}

/// The sum of all series whose name and labels have these parts.
fn sum(page: &str, name: &str, parts: &[&str]) -> f64 {
    let lines = page
        .lines()
        .filter(|line| line.starts_with(name) && parts.iter().all(|part| line.contains(part)));
    let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.sum()
}

/// A field of `/proc/PID/status` in KiB.
fn memory_kib(process: &Beside, field: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.0.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn apply_objects(cluster: &Cluster) {
    let crds = format!("{}/packaging/kubernetes/crds", env!("CARGO_MANIFEST_DIR"));
    cluster.kubectl(&["apply", "-k", &crds]);
    cluster.kubectl(&["wait", "--for=condition=Established", "crd", "--all"]);
    cluster.kubectl(&["create", "namespace", installed::NAMESPACE]);
    let pool = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "MachineConfigPool",
        "metadata": {"name": "scale"},
        "spec": {
            "maxUnavailable": "5%",
            "machineConfigSelector": {"matchLabels": {(format!("{GROUP}/role")): "scale"}},
            "nodeSelector": {"matchLabels": {"node-role.kubernetes.io/scale": ""}},
        },
    });
    cluster.apply(&pool.to_string());
    cluster.apply(&config("50-scale", "scale", &[rebooting("first\n")]));
    // With a budget, the pods of each node are read before its grant.
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": "any", "namespace": "default"},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "any"}}},
    });
    cluster.apply(&budget.to_string());
}

#[test]
fn a_large_pool_is_rolled_out_with_few_requests_and_little_memory() {
    let set = std::env::var("MACHINIST_LAB_NODES").ok();
    let nodes = set.map_or_else(
        || rounds(200, 5000),
        |text| text.parse().expect("a number of nodes"),
    );
    let cluster = Cluster::start(&lab().version);
    // No node lifecycle: the simulated kubelets renew no leases.
    cluster.stop_controllers();
    apply_objects(&cluster);
    let admin = cluster.kubeconfig("admin", "system:masters");
    let agents_log = Path::new(WORK).join("simulated-agents.log");
    let mut command = cluster.beside(&simulator());
    command.arg(&admin).arg(nodes.to_string());
    let _agents = Beside::start(command, &agents_log);
    let said = || fs::read_to_string(&agents_log).unwrap();
    let begun = Instant::now();
    wait::until("the nodes", ROLLOUT, || said().contains("created"));
    println!(
        "lab: figure: {nodes} nodes created in {:.0} s",
        begun.elapsed().as_secs_f64()
    );

    let begun = Instant::now();
    let controller = start_controller(&cluster, &admin, LEADER_PORT);
    let pool = |what: &str, holds: &mut dyn FnMut(&Value) -> bool| {
        cluster.wait_object("machineconfigpool", "scale", what, ROLLOUT, holds)
    };
    pool("FirstRollout", &mut |pool| {
        held(pool) == "FirstRollout" && pool["status"]["machineCount"] == nodes
    });
    let cold_start = begun.elapsed();

    let _other = start_controller(&cluster, &admin, OTHER_PORT);
    let before = metrics(&cluster, LEADER_PORT);
    let begun = Instant::now();
    let resume = json!({"metadata": {"annotations": {"machinist.dev/resume": "lab"}}});
    let patch = ["patch", "machineconfigpool", "scale", "--type=merge", "-p"];
    cluster.kubectl(&[&patch[..], &[&resume.to_string()]].concat());
    pool("the rollout", &mut |pool| {
        condition(pool, "Updated")["status"] == "True"
            && pool["status"]["updatedMachineCount"] == nodes
    });
    let rollout = begun.elapsed();
    let after = metrics(&cluster, LEADER_PORT);

    let grown = |name: &str, parts: &[&str]| sum(&after, name, parts) - sum(&before, name, parts);
    let nodes_float = f64::from(u32::try_from(nodes).unwrap());
    let requests = "machinist_controller_api_requests_total";
    let writes: f64 = ["create", "patch", "update", "delete"]
        .map(|verb| grown(requests, &[&format!("verb=\"{verb}\"")]))
        .iter()
        .sum();
    let writes = (writes - grown(requests, &["resource=\"leases\""])) / nodes_float;
    let decision = "machinist_controller_decision_duration_seconds";
    let decisions = grown(&format!("{decision}_count"), &[]);
    let mean = grown(&format!("{decision}_sum"), &[]) / decisions;
    let (resident, peak) = (
        memory_kib(&controller, "VmRSS"),
        memory_kib(&controller, "VmHWM"),
    );
    let at_once = said()
        .lines()
        .filter_map(|line| line.strip_prefix("at once: ")?.parse::<usize>().ok())
        .max();
    println!(
        "lab: figure: {nodes} nodes: listed and rendered in {:.1} s, rolled out in {:.0} s ({:.1} ms a node), \
         {decisions} decisions of {:.2} ms, {writes:.2} writes a node, {:.0} MiB resident, {:.0} MiB at most",
        cold_start.as_secs_f64(),
        rollout.as_secs_f64(),
        rollout.as_secs_f64() * 1000.0 / nodes_float,
        mean * 1000.0,
        resident / 1024.0,
        peak / 1024.0,
    );
    measure_takeover(&cluster, controller, OTHER_PORT, nodes_float);
    let limit = nodes.div_ceil(20);
    assert!(
        at_once.is_some_and(|most| most <= limit),
        "{at_once:?} of {limit}"
    );
    assert!(writes <= MAX_WRITES_PER_NODE, "{writes}");
    if lab().long {
        assert!(mean <= MAX_DECISION_SECONDS, "{mean}");
        assert!(resident <= MAX_RESIDENT_KIB, "{resident}");
        assert!(cold_start <= MAX_COLD_START, "{cold_start:?}");
    }
}
