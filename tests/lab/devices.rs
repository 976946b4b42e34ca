//! Devices of a real machine, allocated by a real kubelet to real pods.

use std::time::Instant;

use serde_json::{Value, json};

use crate::support::agent::{example, file, manifest};
use crate::support::api::condition;
use crate::support::{Cluster, Machine, Node, lab, wait};

const FUSE: &str = "machinist.dev/fuse";
const TUN: &str = "machinist.dev/tun";

const TUN_DECLARATION: &str = "apiVersion: machinist.dev/v1\nkind: DeviceDeclaration\n\
    metadata: {name: tun}\nspec: {resource: machinist.dev/tun, match: [{path: /dev/net/tun}]}\n";

pub fn allocatable(node: &Node<'_>, resource: &str) -> Option<String> {
    let object = node.object();
    let count = object["status"]["allocatable"][resource].as_str();
    count.map(str::to_owned)
}

/// Waits until the Node reports this allocatable count of a resource.
pub fn wait_allocatable(node: &Node<'_>, resource: &str, count: &str) {
    let what = format!("{resource} {count} allocatable");
    wait::until(&what, wait::seconds(60), || {
        allocatable(node, resource).as_deref() == Some(count)
    });
}

/// How often the agent has registered a resource so far.
pub fn registrations(machine: &Machine, resource: &str) -> usize {
    let story = machine.agent_log();
    let message = |output: &&String| output.contains(" registered, ") && output.contains(resource);
    story.iter().filter(message).count()
}

/// Runs `act`, which ends the registration, and returns how long it took until the next one.
fn registered_again(machine: &Machine, what: &str, act: impl FnOnce()) {
    let before = registrations(machine, FUSE);
    let start = Instant::now();
    act();
    machine.wait("the next registration", wait::seconds(30), || {
        registrations(machine, FUSE) > before
    });
    println!(
        "lab: figure: registered again {} ms after {what}",
        start.elapsed().as_millis()
    );
    let output = machine.agent_log();
    let last = output
        .iter()
        .rfind(|output| output.contains(" registered, "));
    println!("lab: figure: of which the agent saw: {}", last.unwrap());
    machine.wait_status(
        "every resource to be registered",
        wait::seconds(10),
        |status| {
            let devices = status["devices"].as_array().unwrap();
            !devices.is_empty()
                && devices
                    .iter()
                    .all(|resource| resource["registered"] == true)
        },
    );
}

/// The fields that differ between two runs of a pod.
fn run_of(cluster: &Cluster, pod: &str) -> Value {
    let pod = cluster.object("pod", pod).expect("the pod");
    let container = &pod["status"]["containerStatuses"][0];
    json!([
        pod["metadata"]["uid"],
        container["containerID"],
        container["restartCount"]
    ])
}

fn wait_pending(cluster: &Cluster, pod: &str) {
    let about = "Insufficient machinist.dev/fuse";
    cluster.wait_object("pod", pod, about, wait::seconds(30), |pod| {
        let conditions = pod["status"]["conditions"].as_array();
        let unscheduled = conditions.into_iter().flatten().any(|condition| {
            condition["reason"] == "Unschedulable"
                && condition["message"]
                    .as_str()
                    .is_some_and(|why| why.contains(about))
        });
        pod["status"]["phase"] == "Pending" && unscheduled
    });
}

#[test]
fn declared_devices_are_allocatable_across_kubelet_and_agent_restarts() {
    let cluster = Cluster::start(&lab().version);
    let tun = file("/etc/machinist/devices.d/tun.yaml", 0o644, TUN_DECLARATION);
    let tun = manifest("71-tun", json!({"files": [tun]}), Value::Null);
    let machine = Machine::build("lender")
        .machinist()
        .config(example("70"))
        .config(("71-tun.yaml".to_owned(), tun))
        .boot();
    let node = cluster.join(&machine);
    let start = Instant::now();
    machine.start_agent();
    wait_allocatable(&node, FUSE, "2");
    println!(
        "lab: figure: allocatable {:.1?} after the agent's start",
        start.elapsed()
    );
    wait_allocatable(&node, TUN, "1");
    let ready = machine.wait_updated("", wait::seconds(30));
    assert_eq!(ready["ready"], true, "{ready:#}");

    // Both shares are allocated, with the device node in the container and permission to open it; a
    // third pod waits; other pods do not see the device.
    for (pod, resource) in [("one", FUSE), ("two", FUSE), ("tunnel", TUN)] {
        cluster.pod(pod, "lender", &[(resource, 1)]);
    }
    cluster.pod("none", "lender", &[]);
    for pod in ["one", "two", "tunnel", "none"] {
        cluster.wait_pod(pod, "Running", wait::seconds(60));
    }
    let inside = |pod: &str, line: &str| cluster.shell_in_pod(pod, line);
    for (pod, path, number) in [
        ("one", "/dev/fuse", "a:e5"),
        ("two", "/dev/fuse", "a:e5"),
        ("tunnel", "/dev/net/tun", "a:c8"),
    ] {
        let look = format!("stat -c %t:%T {path}; exec 3<>{path} && echo open");
        assert_eq!(inside(pod, &look), format!("{number}\nopen\n"), "{pod}");
    }
    let nothing = "ls /dev/fuse /dev/net/tun 2>/dev/null; echo looked";
    assert_eq!(inside("none", nothing), "looked\n");
    cluster.pod("three", "lender", &[(FUSE, 1)]);
    wait_pending(&cluster, "three");

    let pods = ["one", "two", "tunnel"];
    let runs = pods.map(|pod| run_of(&cluster, pod));
    registered_again(&machine, "systemctl restart kubelet began", || {
        node.restart_kubelet()
    });
    node.wait_ready(wait::seconds(30));
    wait_allocatable(&node, FUSE, "2");
    registered_again(&machine, "systemctl restart machinist began", || {
        machine.exec(&["systemctl", "restart", "machinist"]);
    });
    wait_allocatable(&node, FUSE, "2");
    assert_eq!(
        pods.map(|pod| run_of(&cluster, pod)),
        runs,
        "no pod noticed"
    );
    wait_pending(&cluster, "three");

    // Without the agent no further device is allocated, and a pod that has a device keeps it.
    machine.exec(&["systemctl", "stop", "machinist"]);
    wait_allocatable(&node, FUSE, "0");
    assert_eq!(
        pods.map(|pod| run_of(&cluster, pod)),
        runs,
        "no pod noticed"
    );
    registered_again(&machine, "systemctl start machinist began", || {
        machine.exec(&["systemctl", "start", "machinist"]);
    });
    wait_allocatable(&node, FUSE, "2");

    // A released device is allocated again.
    cluster.kubectl(&["delete", "pod", "one", "--wait=false"]);
    let three = cluster.wait_pod("three", "Running", wait::seconds(60));
    assert_eq!(condition(&three, "Ready"), Some("True"));
    assert_eq!(inside("three", "stat -c %t:%T /dev/fuse"), "a:e5\n");
}

/// Registers through the plugin watcher's directory, without a call to the kubelet's own socket;
/// the watcher scans once a second.
#[test]
fn a_resource_of_the_plugin_watcher_is_registered_after_every_restart() {
    let cluster = Cluster::start(&lab().version);
    let declaration = example("70");
    let settings = "devices: {registration: watcher}\n";
    let machine = Machine::build("watched")
        .machinist()
        .file("/etc/machinist/machinist.yaml", settings)
        .config(declaration)
        .boot();
    let node = cluster.join(&machine);
    machine.start_agent();
    wait_allocatable(&node, FUSE, "2");
    let shown = || machine.sh("ls /var/lib/kubelet/plugins_registry");
    let ours = || machine.sh("ls /var/lib/kubelet/device-plugins");
    assert!(shown().starts_with("m-"), "{}", shown());
    assert!(!ours().contains("m-"), "{}", ours());
    let take = |pod: &str| {
        cluster.pod(pod, "watched", &[(FUSE, 1)]);
        cluster.wait_pod(pod, "Running", wait::seconds(60));
        let seen = cluster.shell_in_pod(pod, "stat -c %t:%T /dev/fuse");
        assert_eq!(seen, "a:e5\n", "{pod}");
    };
    take("one");
    let run = run_of(&cluster, "one");
    registered_again(&machine, "systemctl restart kubelet began", || {
        node.restart_kubelet()
    });
    node.wait_ready(wait::seconds(30));
    wait_allocatable(&node, FUSE, "2");
    registered_again(&machine, "systemctl restart machinist began", || {
        machine.exec(&["systemctl", "restart", "machinist"]);
    });
    wait_allocatable(&node, FUSE, "2");
    assert_eq!(run_of(&cluster, "one"), run, "the pod did not notice");
    take("two");
    assert!(!ours().contains("m-"), "{}", ours());
}
