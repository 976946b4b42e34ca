//! Devices that are discovered by their attributes, and those of a vendor's own program, with a
//! real kubelet.

mod restart_sequences;
mod unmodified_plugin;

use serde_json::{Value, json};

use crate::devices::{registrations, wait_allocatable};
use crate::support::agent::{file, manifest};
use crate::support::{Cluster, Machine, Node, lab, wait};

const FOUND: &str = "acme.dev/found";
const OFFERED: &str = "acme.dev/accelerator";

/// Selects `/dev/fuse` by its device number, whatever the path of its node is.
const DECLARATION: &str = "apiVersion: machinist.dev/v1\nkind: DeviceDeclaration\n\
    metadata: {name: found}\nspec:\n  resource: acme.dev/found\n  \
    share: {replicas: 2}\n  match: [{subsystem: {name: misc, attributes: {dev: \"10:229\"}}}]\n  \
    health: [{unit: acme.service}]\n";
const VENDOR: &str = "apiVersion: machinist.dev/v1\nkind: DeviceVendor\nmetadata: {name: acme}\n\
    spec: {connects: program, resources: [acme.dev/*], devices: [\"/dev/acme*\", /dev/fuse, /dev/net/tun], grace: 10s}\n";
/// The example of the documentation, as a service of the machine.
const SERVICE: &str = "[Service]\n\
    Environment=MACHINIST_VENDOR_SOCKET=/run/machinist/vendors/acme/agent.sock\n\
    ExecStart=/usr/local/bin/acme\n";

/// Health and reason of each device of a resource.
fn healths(machine: &Machine, resource: &str) -> Vec<(String, String)> {
    let status = machine.status().unwrap_or_default();
    let resources = status["devices"].as_array().into_iter().flatten();
    let devices = resources.filter(|one| one["resource"] == resource);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    devices
        .flat_map(|one| one["devices"].as_array().into_iter().flatten())
        .map(|device| (text(&device["health"]), text(&device["reason"])))
        .collect()
}

/// A CDI spec as a vendor's toolkit generates it.
const SPEC: &str = r#"{"cdiVersion": "0.6.0", "kind": "acme.dev/card", "devices": [
    {"name": "card0", "containerEdits": {
        "deviceNodes": [{"path": "/dev/card0", "hostPath": "/dev/fuse"}], "env": ["CARD=card0"]}}]}"#;
const CARD: &str = "acme.dev/card";
const CARDS: &str = "apiVersion: machinist.dev/v1\nkind: DeviceDeclaration\n\
    metadata: {name: cards}\nspec: {resource: acme.dev/card, match: [{cdi: {kind: acme.dev/card}}]}\n";

/// Kubernetes' own sample plugin, unmodified: machinist's directory is mounted in place of the
/// kubelet's.
const PLUGIN: &str = "apiVersion: machinist.dev/v1\nkind: DeviceVendor\nmetadata: {name: sample}\n\
    spec: {connects: plugin, resources: [example.com/*], mounts: [/tmp]}\n";
const PLUGIN_SERVICE: &str = "[Service]\n\
    BindPaths=/var/lib/machinist/device-plugins/sample:/var/lib/kubelet/device-plugins\n\
    ExecStart=/usr/local/bin/sample-device-plugin\n";
const SAMPLE: &str = "example.com/resource";

struct Stage {
    cluster: Cluster,
    machine: Machine,
}

impl Stage {
    fn inside(&self, pod: &str, line: &str) -> String {
        self.cluster.shell_in_pod(pod, line)
    }

    fn restarts(&self, pod: &str) -> Value {
        let pod = self.cluster.object("pod", pod).expect("the pod");
        pod["status"]["containerStatuses"][0]["restartCount"].clone()
    }

    /// Waits until the pod's status reports this health of its device, on kubelets that publish it.
    fn wait_reported_health(&self, pod: &str, health: &str) {
        if lab().version.starts_with("1.33.") {
            return;
        }
        let what = format!("its device to be {health}");
        self.cluster
            .wait_object("pod", pod, &what, wait::seconds(60), |pod| {
                let container = &pod["status"]["containerStatuses"][0];
                container["allocatedResourcesStatus"][0]["resources"][0]["health"] == health
            });
    }

    /// A pod whose container never starts, because its image does not exist.
    fn run_without_image(&self, pod: &str, resource: &str) {
        let absent = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod},
            "spec": {
                "hostNetwork": true, "automountServiceAccountToken": false,
                "containers": [{
                    "name": "main", "image": "localhost/absent:1",
                    "resources": {"limits": {resource: "1"}},
                }],
            },
        });
        self.cluster.apply(&absent.to_string());
        let deadline = wait::seconds(60);
        self.cluster
            .wait_object("pod", pod, "no image", deadline, |pod| {
                let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
                waiting["reason"] == "ErrImagePull" || waiting["reason"] == "ImagePullBackOff"
            });
    }

    fn run(&self, pod: &str, resource: &str) {
        self.cluster.pod(pod, "vendor", &[(resource, 1)]);
        self.cluster.wait_pod(pod, "Running", wait::seconds(60));
    }
}

#[test]
fn hardware_cdi_and_vendor_devices_are_allocatable_and_faults_reported() {
    let cluster = Cluster::start(&lab().version);
    let files = [
        ("/etc/machinist/devices.d/found.yaml", DECLARATION),
        ("/etc/machinist/devices.d/cards.yaml", CARDS),
        ("/etc/machinist/vendors.d/acme.yaml", VENDOR),
        ("/etc/machinist/vendors.d/sample.yaml", PLUGIN),
    ];
    let files = files.map(|(path, text)| file(path, 0o644, text));
    let config = manifest("70-devices", json!({"files": files}), Value::Null);
    let machine = Machine::build("vendor")
        .machinist()
        .file_with_mode("/usr/local/bin/acme", lab().example("vendor"), 0o755)
        .file("/etc/systemd/system/acme.service", SERVICE)
        .file("/etc/systemd/system/sample.service", PLUGIN_SERVICE)
        .bind(&lab().plugin, "/usr/local/bin/sample-device-plugin")
        .file("/etc/cdi/acme.json", SPEC)
        .config(("70-devices.yaml".to_owned(), config))
        .boot();
    let mut stage = Stage { cluster, machine };
    let (cluster, machine) = (&stage.cluster, &stage.machine);
    let node = cluster.join(machine);
    machine.sh("ln -s fuse /dev/acme0; ln -s net/tun /dev/acme1");
    machine.exec(&["systemctl", "start", "acme"]);
    machine.start_agent();
    for (resource, count) in [(FOUND, "2"), (CARD, "1"), (OFFERED, "2")] {
        wait_allocatable(&node, resource, count);
    }
    devices_are_advertised(&stage);
    outlive_the_container_and_a_reload(&stage);
    the_quota_counts_them(&stage);
    the_vendors_lives(&stage, &node);
    an_unmodified_plugin_is_served(&stage, &node);
    unmodified_plugin::by_a_policy(&stage);
    restart_sequences::every_order_of_two(&stage, &node);
    restart_sequences::a_power_loss(&mut stage);
}

fn devices_are_advertised(stage: &Stage) {
    for (pod, resource) in [("finder", FOUND), ("taker", OFFERED), ("player", CARD)] {
        stage.run(pod, resource);
    }
    assert_eq!(stage.inside("finder", "stat -c %t:%T /dev/fuse"), "a:e5\n");
    let taken = stage.inside("taker", "echo $ACME_DEVICES; stat -c %F /dev/$ACME_DEVICES");
    let (device, kind) = taken.split_once('\n').unwrap();
    assert!(device.starts_with("acme"), "{taken}");
    assert_eq!(kind, "character special file\n");
    let card = "echo $CARD; stat -c %t:%T /dev/card0; exec 3<>/dev/card0 && echo open";
    assert_eq!(stage.inside("player", card), "card0\na:e5\nopen\n");
    let machine = &stage.machine;
    machine.wait("the list to name all three", wait::seconds(10), || {
        let list = machine.exec(&["/usr/bin/machinist", "devices", "list"]);
        ["finder", "taker", "player"]
            .iter()
            .all(|pod| list.contains(&format!("default/{pod}/main")))
    });
}

/// The kubelet allocates the same devices to a restarted container, and systemd rewrites its device
/// rules at a daemon-reload.
fn outlive_the_container_and_a_reload(stage: &Stage) {
    stage.machine.exec(&["systemctl", "daemon-reload"]);
    let open = "exec 3<>/dev/fuse && echo open";
    assert_eq!(stage.inside("finder", open), "open\n");
    let pod = stage.cluster.object("pod", "finder").expect("the pod");
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str();
    let id = id.and_then(|id| id.strip_prefix("containerd://")).unwrap();
    stage
        .machine
        .exec(&["ctr", "-n", "k8s.io", "tasks", "kill", "-s", "KILL", id]);
    wait::until("the container again", wait::seconds(60), || {
        stage.restarts("finder") == 1 && stage.inside("finder", open) == "open\n"
    });
}

fn the_quota_counts_them(stage: &Stage) {
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"},
        "spec": {"hard": {"requests.acme.dev/accelerator": "1"}},
    });
    stage.cluster.apply(&quota.to_string());
    stage.cluster.wait_object(
        "resourcequota",
        "few",
        "its count",
        wait::seconds(30),
        |quota| quota["status"]["used"]["requests.acme.dev/accelerator"] == "1",
    );
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "greedy"},
        "spec": {"containers": [{
            "name": "main", "image": "localhost/pause:1",
            "resources": {"limits": {OFFERED: "1"}},
        }]},
    });
    let refused = stage
        .cluster
        .try_kubectl_with(&["create", "-f", "-"], &pod.to_string());
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(why.contains("exceeded quota"), "{why}");
}

/// A restart of the program does not affect the kubelet; its end is reported, whether the program
/// or its unit ended.
fn the_vendors_lives(stage: &Stage, node: &Node<'_>) {
    let machine = &stage.machine;
    let before = registrations(machine, OFFERED);
    machine.exec(&["systemctl", "restart", "acme"]);
    machine.exec(&["systemctl", "restart", "machinist"]);
    machine.wait("the agent's return", wait::seconds(30), || {
        registrations(machine, OFFERED) > before
    });
    stage.run_without_image("stillborn", FOUND);
    stage.wait_reported_health("stillborn", "Healthy");
    machine.exec(&["systemctl", "stop", "acme"]);
    machine.wait("the unit's end", wait::seconds(5), || {
        let why = "acme.service is not active".to_owned();
        let sick = ("Unhealthy".to_owned(), why);
        healths(machine, FOUND) == [sick.clone(), sick]
    });
    wait_allocatable(node, FOUND, "0");
    // The pod that has the device keeps running, and the Node's capacity still includes it.
    assert_eq!(node.object()["status"]["capacity"][FOUND], "2");
    for pod in ["finder", "stillborn"] {
        stage.wait_reported_health(pod, "Unhealthy");
    }
    assert_eq!(stage.restarts("finder"), json!(1));
    let gone =
        |(health, reason): &(String, String)| health == "Unhealthy" && reason.contains("acme");
    machine.wait("the end of the grace", wait::seconds(30), || {
        let devices = healths(machine, OFFERED);
        devices.len() == 2 && devices.iter().all(gone)
    });
    wait_allocatable(node, OFFERED, "0");
    machine.exec(&["systemctl", "start", "acme"]);
    wait_allocatable(node, OFFERED, "2");
    wait_allocatable(node, FOUND, "2");
    for pod in ["finder", "stillborn"] {
        stage.wait_reported_health(pod, "Healthy");
    }
    let ended = stage.cluster.object("pod", "stillborn").expect("the pod");
    let container = &ended["status"]["containerStatuses"][0];
    assert_eq!(container["restartCount"], 0, "it never started");
    assert!(container["containerID"].is_null(), "{container:#}");
    let delete = ["delete", "pod", "stillborn", "--timeout=60s"];
    stage.cluster.kubectl(&delete);
    assert_eq!(
        (stage.restarts("taker"), stage.restarts("player")),
        (json!(0), json!(0))
    );
}

/// A restart of the kubelet does not affect the plugin, a restart of the plugin does not affect the
/// kubelet, and neither affects a pod.
fn an_unmodified_plugin_is_served(stage: &Stage, node: &Node<'_>) {
    let machine = &stage.machine;
    machine.exec(&["systemctl", "start", "sample"]);
    wait_allocatable(node, SAMPLE, "2");
    stage.run("sampler", SAMPLE);
    let mounted = stage.inside("sampler", "ls /tmp");
    assert!(mounted.starts_with("Dev-"), "{mounted}");
    let plugin = machine.property("sample", "MainPID");

    let again = |what: &str, act: &dyn Fn()| {
        let before = registrations(machine, SAMPLE);
        act();
        machine.wait(what, wait::seconds(30), || {
            registrations(machine, SAMPLE) > before
        });
    };
    again("the kubelet's restart", &|| node.restart_kubelet());
    again("the agent's restart", &|| {
        machine.exec(&["systemctl", "restart", "machinist"]);
    });
    node.wait_ready(wait::seconds(30));
    wait_allocatable(node, SAMPLE, "2");
    assert_eq!(machine.property("sample", "MainPID"), plugin, "it runs on");

    let before = registrations(machine, SAMPLE);
    machine.exec(&["systemctl", "restart", "sample"]);
    machine.wait("the plugin's return", wait::seconds(30), || {
        let devices = healths(machine, SAMPLE);
        devices.len() == 2 && devices.iter().all(|(health, _)| health == "Healthy")
    });
    assert_eq!(
        registrations(machine, SAMPLE),
        before,
        "the kubelet saw nothing"
    );
    stage.run("second-sampler", SAMPLE);
    assert_eq!(stage.restarts("sampler"), json!(0));
}
