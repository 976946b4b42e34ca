//! Pools that the controller rolls out to real agents: the shipped kustomization with the controller on three nodes,
//! two pools, and configs that drain and reboot.

mod audit;
mod blocked;
mod commands;
mod failures;
mod quorum;
mod rounds;
mod scale;

use serde_json::{Value, json};

use crate::support::agent::file;
use crate::support::installed::{InstalledMachine, NAMESPACE};
use crate::support::{Cluster, Machine, lab, wait};

const GROUP: &str = "machineconfiguration.openshift.io";
const NODES: [&str; 3] = ["one", "two", "three"];
/// An update with a drain and a reboot takes about 25 s here; the rest is for busy cores.
const NODE_UPDATE: std::time::Duration = wait::seconds(300);

/// Three nodes with agents: `one` and `two` are in pool `worker`, `three` is in pool `edge`.
struct Pools {
    cluster: Cluster,
    machines: [Machine; 3],
}

/// A MachineConfig for a pool's role.
fn config(name: &str, role: &str, files: &[Value]) -> String {
    json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "MachineConfig",
        "metadata": {"name": name, "labels": {(format!("{GROUP}/role")): role}},
        "spec": {"config": {"ignition": {"version": "3.5.0"}, "storage": {"files": files}}},
    })
    .to_string()
}

/// No policy covers this path, so the update drains and reboots.
fn rebooting(content: &str) -> Value {
    file("/etc/example.conf", 0o640, content)
}

fn annotation<'a>(object: &'a Value, name: &str) -> &'a str {
    object["metadata"]["annotations"][name]
        .as_str()
        .unwrap_or_default()
}

/// The record of grants of a pool.
fn grants(pool: &Value) -> Value {
    serde_json::from_str(annotation(pool, "machinist.dev/grants")).unwrap_or_default()
}

fn protocol<'a>(node: &'a Value, name: &str) -> &'a str {
    annotation(node, &format!("{GROUP}/{name}"))
}

fn condition<'a>(pool: &'a Value, kind: &str) -> &'a Value {
    let all = pool["status"]["conditions"].as_array();
    let found = all.and_then(|all| all.iter().find(|it| it["type"] == kind));
    found.unwrap_or(&Value::Null)
}

/// Why the rollout of a pool is held; empty while it is not.
fn held(pool: &Value) -> &str {
    let condition = condition(pool, "RolloutHeld");
    let reason = condition["reason"].as_str().unwrap_or_default();
    if condition["status"] == "True" {
        reason
    } else {
        ""
    }
}

impl Pools {
    /// Agents and pools without the controller.
    fn start() -> Self {
        let pools = Self {
            cluster: Cluster::start(&lab().version),
            machines: NODES.map(Machine::boot),
        };
        for machine in &pools.machines {
            pools.cluster.join(machine);
        }
        let all: Vec<_> = pools.machines.iter().collect();
        pools.cluster.install_machinist(&all, "");
        pools.move_to_edge("three");
        let edge = json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": "MachineConfigPool",
            "metadata": {"name": "edge"},
            "spec": {
                "machineConfigSelector": {"matchExpressions": [
                    {"key": format!("{GROUP}/role"), "operator": "In", "values": ["worker", "edge"]},
                ]},
                "nodeSelector": {"matchLabels": {"node-role.kubernetes.io/edge": ""}},
            },
        });
        pools.cluster.apply(&edge.to_string());
        pools
    }

    /// The same with the controller, and both pools on a first config.
    fn rolled_out() -> Self {
        let pools = Self::start();
        pools.apply_config("10-worker", "worker", &[rebooting("first\n")]);
        pools.install_controller();
        for pool in ["worker", "edge"] {
            pools.wait_pool(pool, "FirstRollout", |pool| held(pool) == "FirstRollout");
            pools.resume(pool);
        }
        pools.wait_first_configs();
        for pool in ["worker", "edge"] {
            pools.wait_rolled_out(pool);
        }
        pools
    }

    /// Waits until every node has a config: a pool does not count the others, and is updated without them.
    fn wait_first_configs(&self) {
        for node in NODES {
            let has_config = |node: &Value| !protocol(node, "currentConfig").is_empty();
            self.wait_node(node, "a config", has_config);
        }
    }

    fn install_controller(&self) {
        let mine = InstalledMachine {
            controller: true,
            ..InstalledMachine::default()
        };
        self.cluster.apply_overlay("vanilla", &mine);
        let status = ["rollout", "status", "deployment/machinist-controller"];
        let flags = ["-n", NAMESPACE, "--timeout=120s"];
        self.cluster.kubectl(&[&status[..], &flags].concat());
    }

    fn machine(&self, name: &str) -> &Machine {
        let mut all = self.machines.iter();
        all.find(|machine| machine.name() == name)
            .expect("a machine")
    }

    fn apply_config(&self, name: &str, role: &str, files: &[Value]) {
        self.cluster.apply(&config(name, role, files));
    }

    fn move_to_edge(&self, node: &str) {
        let label = "node-role.kubernetes.io/edge=";
        self.cluster
            .kubectl(&["label", "--overwrite", "node", node, label]);
    }

    fn move_to_worker(&self, node: &str) {
        let label = "node-role.kubernetes.io/edge-";
        self.cluster.kubectl(&["label", "node", node, label]);
    }

    fn patch_pool(&self, pool: &str, patch: &Value) {
        let patch = patch.to_string();
        self.cluster.kubectl(&[
            "patch",
            "machineconfigpool",
            pool,
            "--type=merge",
            "-p",
            &patch,
        ]);
    }

    fn limit(&self, pool: &str, nodes: u32) {
        self.patch_pool(pool, &json!({"spec": {"maxUnavailable": nodes}}));
    }

    /// Starts or restarts the rollout of a pool, as an administrator does.
    fn resume(&self, pool: &str) {
        self.command(&["resume", "--pool", pool]);
    }

    /// Runs machinist on an administrator's workstation, and returns what it printed.
    fn command(&self, arguments: &[&str]) -> String {
        self.command_with_code(0, arguments)
    }

    /// The same for a command that exits with another code.
    fn command_with_code(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.cluster.machinist("laptop", arguments).output();
        let output = output.unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        let text = String::from_utf8(output.stdout).unwrap();
        // Lines are wrapped at words.
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn pool(&self, name: &str) -> Value {
        self.cluster
            .object("machineconfigpool", name)
            .expect("the pool")
    }

    fn wait_pool(&self, name: &str, what: &str, condition: impl FnMut(&Value) -> bool) -> Value {
        self.cluster
            .wait_object("machineconfigpool", name, what, NODE_UPDATE, condition)
    }

    /// Waits until the pool's config has another name than `old`, and returns it.
    fn wait_rendered(&self, pool: &str, old: &str) -> String {
        let rendered = |pool: &Value| pool["spec"]["configuration"]["name"].clone();
        let pool = self.wait_pool(pool, "a new rendered config", |pool| {
            rendered(pool).as_str().is_some_and(|name| name != old)
        });
        rendered(&pool).as_str().unwrap().to_owned()
    }

    fn target(&self, pool: &str) -> String {
        let pool = self.pool(pool);
        let name = pool["spec"]["configuration"]["name"].as_str();
        name.unwrap_or_default().to_owned()
    }

    /// Waits until every node of the pool runs its config and nothing is left to do.
    fn wait_rolled_out(&self, pool: &str) -> Value {
        self.wait_pool(pool, "to be rolled out", |pool| {
            let status = &pool["status"];
            let machines = &status["machineCount"];
            machines.as_u64().is_some_and(|count| count > 0)
                && status["configuration"]["name"] == pool["spec"]["configuration"]["name"]
                && &status["updatedMachineCount"] == machines
                && &status["readyMachineCount"] == machines
                && condition(pool, "Updated")["status"] == "True"
        })
    }

    fn wait_node(&self, name: &str, what: &str, condition: impl FnMut(&Value) -> bool) -> Value {
        self.cluster
            .wait_object("node", name, what, NODE_UPDATE, condition)
    }

    /// The pod of the controller that holds the Lease.
    fn leader_pod(&self) -> Option<String> {
        let lease = ["-n", NAMESPACE, "get", "lease", "machinist-controller"];
        let lease = self.cluster.kubectl_json(&lease);
        // The pod's name, and a part that differs between two processes of one pod.
        let holder = lease["spec"]["holderIdentity"].as_str()?;
        let (pod, _) = holder.rsplit_once('_')?;
        Some(pod.to_owned())
    }

    /// The node of that pod.
    fn leader_node(&self) -> String {
        let pod = self.leader_pod().expect("a leader");
        let pod = ["-n", NAMESPACE, "get", "pod", &pod];
        let pod = self.cluster.kubectl_json(&pod);
        pod["spec"]["nodeName"].as_str().unwrap().to_owned()
    }

    fn boots(&self) -> [String; 3] {
        NODES.map(|name| self.machine(name).boot_id())
    }
}

impl Drop for Pools {
    /// Prints what a failed test needs of pools and controllers.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for arguments in [
            "logs -l app.kubernetes.io/name=machinist-controller --prefix --tail=40",
            "get lease machinist-controller -o jsonpath={.spec}",
            "get machineconfigpools -o jsonpath={range.items[*]}{.metadata}{.spec}{.status}{\"\\n\"}{end}",
        ] {
            let words: Vec<_> = ["-n", NAMESPACE]
                .into_iter()
                .chain(arguments.split(' '))
                .collect();
            let output = self.cluster.try_kubectl(&words);
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let errors = String::from_utf8_lossy(&output.stderr);
            eprintln!("--- kubectl {arguments}\n{errors}{text}");
        }
    }
}

#[test]
fn an_installed_controller_changes_no_node_until_its_rollout_is_resumed() {
    let pools = Pools::start();
    // Nodes with configs that somebody set by hand.
    for name in NODES {
        let by_hand = format!("by-hand-{name}");
        let content = [file("/etc/motd", 0o644, name)];
        pools.apply_config(&by_hand, "nobody", &content);
        let desired = format!("{GROUP}/desiredConfig={by_hand}");
        pools.cluster.kubectl(&["annotate", "node", name, &desired]);
    }
    for name in NODES {
        pools.wait_node(name, "its config", |node| {
            protocol(node, "currentConfig").starts_with("by-hand")
                && protocol(node, "state") == "Done"
        });
    }
    pools.apply_config("10-worker", "worker", &[rebooting("first\n")]);
    let (before, boots) = (pools.cluster.audit().len(), pools.boots());
    pools.install_controller();
    for pool in ["worker", "edge"] {
        let pool = pools.wait_pool(pool, "FirstRollout", |pool| held(pool) == "FirstRollout");
        assert!(!pool["spec"]["configuration"]["name"].is_null(), "{pool:#}");
    }
    assert_eq!(
        audit::controllers_node_patches(&pools.cluster, before),
        [""; 0]
    );
    assert_eq!(pools.boots(), boots);

    let plan = pools.command_with_code(2, &["plan", "--pool", "worker"]);
    for part in [
        "one on by-hand-one: drain and reboot",
        "two on by-hand-two: drain and reboot",
        "wave 2",
        "[FirstRollout]",
    ] {
        assert!(plan.contains(part), "{part}: {plan}");
    }

    // One node first, and the leader's own node last; the other pool stays as it is.
    let leader = pools.leader_node();
    pools.cluster.workload("moved", "two", 2);
    pools.resume("worker");
    let pool = pools.wait_rolled_out("worker");
    assert_eq!(pool["status"]["machineCount"], 2);
    reports_name_the_rollout(&pools);
    let updates = audit::Updates::of(&pools.cluster, before, &[]);
    let expected = if leader == "one" {
        ["two", "one"]
    } else {
        ["one", "two"]
    };
    assert_eq!(updates.order(), expected, "the leader ran on {leader}");
    assert_eq!(updates.most_at_once(), 1, "{updates:#?}");
    for name in ["one", "two"] {
        assert_eq!(pools.machine(name).read("/etc/example.conf"), b"first\n");
    }
    let now = pools.boots();
    assert!(now[0] != boots[0] && now[1] != boots[1] && now[2] == boots[2]);
    assert_eq!(held(&pools.pool("edge")), "FirstRollout");

    // Later configs need no start. Both nodes update at once after the canary, but the pool has only one other.
    let before = pools.cluster.audit().len();
    pools.limit("worker", 2);
    pools.patch_pool(
        "worker",
        &json!({"metadata": {"annotations": {"machinist.dev/canary": "0"}}}),
    );
    let old = pools.target("worker");
    pools.apply_config("10-worker", "worker", &[rebooting("second\n")]);
    pools.wait_rendered("worker", &old);
    pools.wait_rolled_out("worker");
    let updates = audit::Updates::of(&pools.cluster, before, &[]);
    assert_eq!(updates.most_at_once(), 2, "{updates:#?}");
    assert_eq!(pools.machine("two").read("/etc/example.conf"), b"second\n");
    pools
        .cluster
        .kubectl(&["rollout", "status", "deployment/moved", "--timeout=60s"]);

    // A node that changes its pool gets the config of the other one.
    pools.resume("edge");
    pools.wait_rolled_out("edge");
    let old = pools.target("edge");
    pools.apply_config("20-edge", "edge", &[file("/etc/motd", 0o644, "edge\n")]);
    pools.wait_rendered("edge", &old);
    pools.move_to_edge("two");
    pools.wait_pool("edge", "two machines", |pool| {
        pool["status"]["machineCount"] == 2
    });
    pools.wait_rolled_out("edge");
    pools.wait_rolled_out("worker");
    assert_eq!(pools.machine("two").read("/etc/motd"), b"edge\n");
    commands::pause_and_skip(&pools);

    // It goes back, and the config of the other pool leaves.
    pools.move_to_worker("two");
    pools.wait_pool("worker", "two machines", |pool| {
        pool["status"]["machineCount"] == 2
    });
    pools.wait_rolled_out("worker");
    assert_ne!(pools.machine("two").read("/etc/motd"), b"edge\n");
    assert_eq!(audit::refused(&pools.cluster), [""; 0]);
}

/// The events of the pool, and the commands that show it.
fn reports_name_the_rollout(pools: &Pools) {
    let of_pool =
        "--field-selector=involvedObject.kind=MachineConfigPool,involvedObject.name=worker";
    wait::until("the event of the end", wait::seconds(30), || {
        let events = pools.cluster.kubectl(&["get", "events", of_pool]);
        ["RolloutHeld", "RolloutStarted", "RolloutCompleted"]
            .iter()
            .all(|reason| events.contains(reason))
    });
    let shown = pools.command(&["pool", "worker"]);
    assert!(shown.starts_with("worker: 2 of 2 nodes on "), "{shown}");
    let shown = pools.command(&["explain", "--pool", "worker"]);
    assert!(shown.contains("is up to date: 2 of 2"), "{shown}");
    let shown = pools.command(&["estimate", "--pool", "edge"]);
    assert!(shown.contains("FirstRollout"), "{shown}");
    println!("lab: figure: {shown}");
}
