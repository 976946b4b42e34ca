//! Devices close to one NUMA node or another, and a kubelet whose topology policy gives a container
//! devices of one node only.
//!
//! Lab machines have one NUMA node. The kubelet reads the topology once, at its start, from
//! `/sys/devices/system/node`: a made-up tree mounted over it makes the kubelet see two nodes, each
//! with half of the CPUs.

use std::fmt::Write as _;

use serde_json::Value;

use crate::devices::wait_allocatable;
use crate::support::{Cluster, Machine, lab, wait};

const NEAR: &str = "acme.dev/near";
const FAR: &str = "acme.dev/far";
const EITHER: &str = "acme.dev/either";
const PLAIN: &str = "acme.dev/plain";
const CARD: &str = "acme.dev/card";

fn declared(name: &str, numa: &str, found: &str) -> String {
    format!(
        "apiVersion: machinist.dev/v1\nkind: DeviceDeclaration\nmetadata: {{name: {name}}}\nspec:\n  \
         resource: acme.dev/{name}\n  match: [{found}]\n  share: {{replicas: 2}}\n  numa: {numa}\n"
    )
}

/// A CDI spec of a card of node 0. The runtime ignores it, because it is configured to read no
/// specs.
const SPEC: &str = r#"{"cdiVersion": "0.6.0", "kind": "acme.dev/card",
    "containerEdits": {"env": ["CARDS=acme"]},
    "devices": [
        {"name": "card0", "containerEdits": {"deviceNodes": [{"path": "/dev/card0", "hostPath": "/dev/fuse"}]}},
        {"name": "card1", "containerEdits": {"hooks": [{"hookName": "poststop", "path": "/bin/true"}]}}]}"#;

/// Creates two nodes below `/opt/nodes`; the CPUs are unchanged, and the memory is halved.
fn nodes(machine: &Machine) {
    let cpus = machine.sh("ls -d /sys/devices/system/cpu/cpu[0-9]* | sed 's/.*cpu//' | sort -n");
    let cpus: Vec<&str> = cpus.split_whitespace().collect();
    let half = cpus.len().div_ceil(2);
    let mut script = "mkdir -p /opt/nodes\n".to_owned();
    for (node, cpus) in [(0, &cpus[..half]), (1, &cpus[half..])] {
        let dir = format!("/opt/nodes/node{node}");
        let pages = format!("{dir}/hugepages/hugepages-2048kB");
        writeln!(script, "mkdir -p {pages}; echo 0 >{pages}/nr_hugepages").unwrap();
        for cpu in cpus {
            writeln!(
                script,
                "ln -s /sys/devices/system/cpu/cpu{cpu} {dir}/cpu{cpu}"
            )
            .unwrap();
        }
        let list = cpus.join(",");
        writeln!(script, "echo {list} >{dir}/cpulist").unwrap();
        let distance = ["10 20", "20 10"][node];
        writeln!(script, "echo {distance} >{dir}/distance").unwrap();
        let kib = "$(awk '/^MemTotal/ { print int($2 / 2) }' /proc/meminfo)";
        writeln!(
            script,
            "echo \"Node {node} MemTotal: {kib} kB\" >{dir}/meminfo"
        )
        .unwrap();
    }
    script += "echo 0-1 >/opt/nodes/online\nmount --bind /opt/nodes /sys/devices/system/node\n";
    machine.sh(&script);
}

/// Why the kubelet refused a pod.
fn refused(pod: &Value) -> Option<&str> {
    let failed = pod["status"]["phase"] == "Failed";
    pod["status"]["reason"].as_str().filter(|_| failed)
}

#[test]
fn a_container_gets_devices_of_one_numa_node_or_is_refused() {
    let cluster = Cluster::start(&lab().version);
    let path = |path: &str| format!("{{path: {path}}}");
    let machine = Machine::build("numa")
        .machinist()
        .file("/etc/cdi/acme.json", SPEC)
        .file("/etc/machinist/machinist.yaml", "devices: {cdi: edits}\n")
        .file(
            "/etc/machinist/devices.d/near.yaml",
            declared("near", "[0]", &path("/dev/fuse")),
        )
        .file(
            "/etc/machinist/devices.d/far.yaml",
            declared("far", "[1]", &path("/dev/net/tun")),
        )
        .file(
            "/etc/machinist/devices.d/either.yaml",
            declared("either", "[0, 1]", &path("/dev/null")),
        )
        .file(
            "/etc/machinist/devices.d/plain.yaml",
            declared("plain", "none", &path("/dev/zero")),
        )
        .file(
            "/etc/machinist/devices.d/card.yaml",
            declared("card", "[0]", "{cdi: {kind: acme.dev/card}}"),
        )
        .boot();
    let node = cluster.join(&machine);
    nodes(&machine);
    machine.sh(
        "echo 'topologyManagerPolicy: single-numa-node' >>/etc/lab/kubelet.yaml\n\
         sed -i 's/^enable_cdi = true/enable_cdi = false/' /etc/containerd/config.toml\n\
         systemctl restart containerd kubelet",
    );
    node.wait_ready(wait::seconds(60));
    machine.start_agent();
    for resource in [NEAR, FAR, EITHER, PLAIN] {
        wait_allocatable(&node, resource, "2");
    }
    // Combinations that one node can satisfy; devices close to both nodes or to none fit with
    // either.
    let fit: [(&str, &[(&str, u32)]); 3] = [
        ("near", &[(NEAR, 1), (EITHER, 1)]),
        ("far", &[(FAR, 2), (EITHER, 1), (PLAIN, 1)]),
        ("card", &[(NEAR, 1), (CARD, 1)]),
    ];
    for (pod, wanted) in fit {
        cluster.pod(pod, "numa", wanted);
        cluster.wait_pod(pod, "Running", wait::seconds(60));
    }
    // A combination that no single node can satisfy, though each device is free.
    for pod in ["far", "card"] {
        cluster.kubectl(&["delete", "pod", pod, "--timeout=60s"]);
    }
    for (pod, wanted) in [
        ("across", [(NEAR, 1), (FAR, 1)]),
        ("card-across", [(CARD, 1), (FAR, 1)]),
    ] {
        cluster.pod(pod, "numa", &wanted);
        let what = "a refusal by the topology manager";
        let object = cluster.wait_object("pod", pod, what, wait::seconds(60), |pod| {
            refused(pod).is_some()
        });
        assert_eq!(
            refused(&object),
            Some("TopologyAffinityError"),
            "{object:#}"
        );
    }
    cards_without_cdi(&cluster, &machine);
}

/// The runtime reads no CDI specs, and a container gets the spec's edits all the same.
fn cards_without_cdi(cluster: &Cluster, machine: &Machine) {
    let config = machine.sh("grep enable_cdi /etc/containerd/config.toml");
    assert_eq!(config, "enable_cdi = false\n");
    wait_allocatable(&cluster.node(machine), CARD, "2");
    cluster.pod("carded", "numa", &[(CARD, 1)]);
    cluster.wait_pod("carded", "Running", wait::seconds(60));
    let look = "echo $CARDS; stat -c %t:%T /dev/card0; exec 3<>/dev/card0 && echo open";
    assert_eq!(cluster.shell_in_pod("carded", look), "acme\na:e5\nopen\n");
    // The card whose spec has a hook is not advertised, and `devices explain` and the warning name
    // the reason.
    let message = machine.exec(&["/usr/bin/machinist", "devices", "explain", CARD]);
    let why =
        "/etc/cdi/acme.json: acme.dev/card=card1: containerEdits.hooks[0] (poststop /bin/true)";
    assert!(message.contains(why), "{message}");
}
