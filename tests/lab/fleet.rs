//! Operations of a fleet over time: devices across a planned reboot, cancelled updates, a new
//! version during an update, a controller that drains, a Node that is registered again,
//! interference by others, a config that breaks the kubelet, and uninstallation. Two nodes with the
//! DaemonSet as shipped.

mod api_outage;
mod broken_kubelet;
mod device_pod_reboot;
mod foreign_changes;
mod new_build;
mod node_changes;

use std::process::Output;

use serde_json::{Value, json};

use crate::chaos::checks::{self, AgentAction};
use crate::support::agent::{file, manifest};
use crate::support::{Cluster, Machine, installed::InstalledMachine, lab, wait};

const GROUP: &str = "machineconfiguration.openshift.io";
const FUSE: &str = "machinist.dev/fuse";
const USER: &str = "uses-fuse";
const DECLARATION: &str = "apiVersion: machinist.dev/v1\nkind: DeviceDeclaration\nmetadata: {name: fuse}\n\
    spec: {resource: machinist.dev/fuse, match: [{path: /dev/fuse}], share: {replicas: 2},\n\
    \x20 taint: {key: machinist.dev/fuse-first, effect: PreferNoSchedule}}\n";

/// The cluster with its two nodes.
struct Fleet {
    cluster: Cluster,
    first: Machine,
    second: Machine,
}

impl Fleet {
    /// Creates a config with the device's declaration and the given content, and requests it for a
    /// node.
    fn ask(&self, node: &str, config: &str, content: &str, systemd: Value) {
        let files = [
            file("/etc/machinist/devices.d/fuse.yaml", 0o644, DECLARATION),
            file("/etc/example.conf", 0o640, content),
        ];
        self.cluster
            .apply(&manifest(config, json!({"files": files}), systemd));
        self.annotate(node, &format!("{GROUP}/desiredConfig={config}"));
    }

    fn annotate(&self, node: &str, annotation: &str) {
        self.cluster
            .kubectl(&["annotate", "--overwrite", "node", node, annotation]);
    }

    fn node(&self, name: &str) -> Value {
        self.cluster.object("node", name).expect("the node")
    }

    fn wait_node(&self, name: &str, what: &str, condition: impl FnMut(&Value) -> bool) -> Value {
        self.cluster
            .wait_object("node", name, what, wait::seconds(120), condition)
    }

    fn wait_done(&self, name: &str, config: &str) -> Value {
        self.wait_node(name, &format!("{config} and Done"), |node| {
            protocol(node, "currentConfig") == config && protocol(node, "state") == "Done"
        })
    }

    fn wait_advertised(&self, name: &str, count: &str) {
        self.wait_node(name, &format!("{FUSE} {count} allocatable"), |node| {
            node["status"]["allocatable"][FUSE] == count
        });
    }

    /// Runs machinist on an administrator's workstation.
    fn laptop(&self, arguments: &[&str]) -> Output {
        self.cluster
            .machinist("laptop", arguments)
            .output()
            .unwrap()
    }

    /// The agents' actions on a node since the log had `from` lines.
    fn agent_actions(&self, node: &str, from: usize) -> Vec<AgentAction> {
        let deeds = checks::agent_actions(&self.cluster.audit(), from, node, USER);
        let agents = deeds.into_iter().map(|(_, deed)| deed);
        agents
            .filter(|deed| !matches!(deed, AgentAction::Reports { .. }))
            .collect()
    }

    /// The pod that uses the device and its node, if it is running and ready.
    fn user(&self) -> Option<(String, String)> {
        let pods = self.cluster.pods_of(USER);
        let ready = |pod: &&Value| {
            pod["metadata"]["deletionTimestamp"].is_null()
                && pod["status"]["containerStatuses"][0]["ready"] == true
        };
        let pod = pods.iter().find(ready)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Some((
            text(&pod["spec"]["nodeName"]),
            text(&pod["metadata"]["uid"]),
        ))
    }

    /// Applies other settings of the fleet and restarts the agents.
    fn with_settings(&self, mine: &InstalledMachine<'_>) {
        self.cluster.apply_overlay("vanilla", mine);
        self.restart_agents();
    }

    /// Restarts the agent's pods, one node after the other.
    fn restart_agents(&self) {
        let agents = "daemonset/machinist";
        self.cluster
            .kubectl(&["-n", "machinist-system", "rollout", "restart", agents]);
        self.cluster.wait_rolled_out();
    }
}

fn protocol<'a>(node: &'a Value, name: &str) -> &'a str {
    let annotations = &node["metadata"]["annotations"];
    annotations[format!("{GROUP}/{name}")]
        .as_str()
        .unwrap_or_default()
}

fn output_text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// Two nodes with the DaemonSet as shipped, on their first configs, whose content is the given letter.
fn fleet(letter: &str) -> Fleet {
    let fleet = Fleet {
        cluster: Cluster::start(&lab().version),
        first: Machine::boot("first"),
        second: Machine::boot("second"),
    };
    for machine in [&fleet.first, &fleet.second] {
        fleet.cluster.join(machine);
    }
    fleet
        .cluster
        .install_machinist(&[&fleet.first, &fleet.second], "");
    let config = |node: &str| format!("rendered-{node}-{letter}");
    for node in ["first", "second"] {
        fleet.ask(node, &config(node), &format!("{letter}\n"), Value::Null);
    }
    for node in ["first", "second"] {
        fleet.wait_done(node, &config(node));
        fleet.wait_advertised(node, "2");
        fleet.wait_node(node, "a label and a taint of the device", |node| {
            node["metadata"]["labels"]["machinist.dev/resource.machinist.dev-fuse"] == "present"
                && node["spec"]["taints"][0]["key"] == "machinist.dev/fuse-first"
        });
    }
    device_pod_reboot::workload(&fleet);
    fleet
}

#[test]
fn fleet_commands_cancel_roll_back_and_explain_updates_remotely() {
    let fleet = fleet("a");
    device_pod_reboot::survives_a_planned_reboot_with_a_cancelled_update(&fleet);
    node_changes::drain_is_done_by_a_controller(&fleet);
    node_changes::operator_pins_the_previous_config(&fleet);
    node_changes::node_is_registered_again(&fleet);
}

#[test]
fn a_blocked_drain_survives_foreign_changes_api_outages_and_a_new_build() {
    let fleet = fleet("b");
    foreign_changes::during_a_blocked_drain(&fleet);
    new_build::takes_over_a_blocked_drain(&fleet);
    if lab().long {
        api_outage::of_ten_minutes_only_delays_the_update(&fleet);
    }
}

#[test]
fn a_broken_kubelet_is_rolled_back_and_an_uninstallation_leaves_nothing() {
    let fleet = fleet("b");
    broken_kubelet::config_is_rolled_back_and_its_drain_forced(&fleet);
    broken_kubelet::uninstall_leaves_nothing_behind(&fleet);
}
