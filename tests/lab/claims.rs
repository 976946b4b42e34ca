//! Devices that pods claim (DRA): a real scheduler allocates them, a real kubelet has them
//! prepared, and a real runtime adds them to containers.

mod program;
mod sides;

use std::time::Instant;

use serde_json::{Value, json};

use crate::support::{Cluster, Machine, Node, lab, wait};

const DRIVER: &str = "dra.machinist.dev";
const FUSE: &str = "machinist.dev/fuse";
const DECLARED: &str = "/etc/machinist/devices.d/fuse.yaml";

/// Two shares of one device; a systemd unit's state is its health.
fn declaration(serve: &str) -> String {
    format!(
        "apiVersion: machinist.dev/v1\nkind: DeviceDeclaration\nmetadata: {{name: fuse}}\nspec:\n  \
         resource: {FUSE}\n  serve: {serve}\n  match: [{{path: /dev/fuse}}]\n  share: {{replicas: 2}}\n  \
         container: {{env: {{FUSE_ID: \"{{id}}\"}}}}\n  health: [{{unit: acme.service}}]\n"
    )
}

const SERVICE: &str = "[Service]\nExecStart=/usr/bin/sleep infinity\n";

struct Stage {
    cluster: Cluster,
    machine: Machine,
}

impl Stage {
    fn node(&self) -> Node<'_> {
        self.cluster.node(&self.machine)
    }

    /// The ResourceSlices of our driver.
    fn slices(&self) -> Vec<Value> {
        let kind = format!("resourceslices.{}.resource.k8s.io", self.cluster.claims());
        let all = self.cluster.kubectl_json(&["get", &kind]);
        let items = all["items"].as_array().cloned().unwrap_or_default();
        let ours = |slice: &Value| slice["spec"]["driver"] == DRIVER;
        items.into_iter().filter(ours).collect()
    }

    fn devices(&self) -> Vec<Value> {
        let slices = self.slices();
        let devices = slices
            .iter()
            .filter_map(|slice| slice["spec"]["devices"].as_array());
        // The oldest API version nests the device's fields one level deeper, in `basic`.
        let plain = |device: &Value| match device.get("basic") {
            Some(basic) => basic.clone(),
            None => device.clone(),
        };
        devices.flatten().map(plain).collect()
    }

    /// Whether the API server keeps device taints. Where it does not, the agent omits the unhealthy
    /// devices from its slices.
    fn knows_taints(&self) -> bool {
        self.cluster.claims() == "v1"
    }

    fn wait_devices(&self, what: &str, count: usize, tainted: bool) {
        let is_tainted = |device: &Value| device["taints"][0]["key"] == "machinist.dev/unhealthy";
        wait::until(what, wait::seconds(60), || {
            let devices = self.devices();
            devices.len() == count && devices.iter().all(|one| is_tainted(one) == tainted)
        });
    }

    /// Creates a DeviceClass for the devices of a resource and a claim template for one device that
    /// satisfies the CEL expression `holds`; both are called `name`.
    fn create_claim(&self, name: &str, resource: &str, holds: &[&str]) {
        let version = self.cluster.claims();
        let group = format!("resource.k8s.io/{version}");
        let select = |all: &[&str]| -> Vec<Value> {
            let one = |text: &&str| json!({"cel": {"expression": text}});
            all.iter().map(one).collect()
        };
        let ours = format!(
            "device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].resource == '{resource}'"
        );
        let class = json!({
            "apiVersion": group, "kind": "DeviceClass", "metadata": {"name": name},
            "spec": {"selectors": select(&[&ours])},
        });
        let wanted = json!({"deviceClassName": name, "selectors": select(holds)});
        let mut request = match version {
            "v1beta1" => wanted,
            _ => json!({"exactly": wanted}),
        };
        request["name"] = json!("card");
        let template = json!({
            "apiVersion": group, "kind": "ResourceClaimTemplate", "metadata": {"name": name},
            "spec": {"spec": {"devices": {"requests": [request]}}},
        });
        for object in [class, template] {
            self.cluster.apply(&object.to_string());
        }
    }

    fn pod(&self, name: &str) {
        self.pod_with(name, "fuse");
    }

    /// A pod with a claim of its own, created from this template.
    fn pod_with(&self, name: &str, template: &str) {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {
                "hostNetwork": true, "terminationGracePeriodSeconds": 2,
                "automountServiceAccountToken": false,
                "containers": [{
                    "name": "main", "image": "localhost/pause:1", "imagePullPolicy": "Never",
                    "resources": {"claims": [{"name": "claim"}]},
                }],
                "resourceClaims": [{"name": "claim", "resourceClaimTemplateName": template}],
            },
        });
        self.cluster.apply(&pod.to_string());
    }

    fn run(&self, name: &str) {
        self.run_with(name, "fuse");
    }

    fn run_with(&self, name: &str, template: &str) {
        self.pod_with(name, template);
        self.cluster.wait_pod(name, "Running", wait::seconds(90));
    }

    fn inside(&self, pod: &str, line: &str) -> String {
        self.cluster.shell_in_pod(pod, line)
    }

    fn run_of(&self, pod: &str) -> Value {
        let pod = self.cluster.object("pod", pod).expect("the pod");
        let container = &pod["status"]["containerStatuses"][0];
        json!([
            pod["metadata"]["uid"],
            container["containerID"],
            container["restartCount"]
        ])
    }

    /// How many CDI specs the driver has written for the runtime.
    fn specs(&self) -> usize {
        let list = "ls /run/cdi 2>/dev/null | grep -c dra.machinist.dev || true";
        self.machine.sh(list).trim().parse().unwrap()
    }

    /// How often the kubelet has registered the driver so far.
    fn registrations(&self) -> usize {
        let line = format!("DRA driver {DRIVER} is registered");
        let story = self.machine.agent_log();
        story
            .iter()
            .filter(|output| output.starts_with(&line))
            .count()
    }

    fn registered_again(&self, what: &str, act: impl FnOnce()) {
        let before = self.registrations();
        let start = Instant::now();
        act();
        self.machine
            .wait("the next registration", wait::seconds(60), || {
                self.registrations() > before
            });
        let after = start.elapsed().as_millis();
        println!("lab: figure: the driver is registered again {after} ms after {what}");
    }

    fn delete(&self, pod: &str) {
        self.cluster
            .kubectl(&["delete", "pod", pod, "--timeout=60s"]);
    }
}

fn stage() -> Stage {
    let cluster = Cluster::start(&lab().version);
    let kubeconfig = cluster.kubeconfig("machinist-claimed", "system:masters");
    let kubeconfig = std::fs::read(kubeconfig).unwrap();
    let settings = "source: cluster\nroles: [devices, readiness]\n\
         cluster: {node: claimed, kubeconfig: /etc/machinist/kubeconfig}\n";
    let machine = Machine::build("claimed")
        .machinist()
        .file("/etc/machinist/kubeconfig", kubeconfig)
        .file("/etc/machinist/machinist.yaml", settings)
        .file(DECLARED, declaration("dra"))
        .file("/etc/systemd/system/acme.service", SERVICE)
        .file(program::FILE, program::VENDOR)
        .file(program::UNIT, program::SERVICE)
        .file_with_mode("/usr/local/bin/acme", lab().example("vendor"), 0o755)
        .boot();
    Stage { cluster, machine }
}

#[test]
fn claimed_devices_survive_restarts_of_kubelet_and_agent() {
    let stage = stage();
    let (cluster, machine) = (&stage.cluster, &stage.machine);
    let node = cluster.join(machine);
    machine.exec(&["systemctl", "start", "acme"]);
    machine.start_agent();
    stage.wait_devices("two shares to be claimed", 2, false);
    let device = &stage.devices()[0];
    assert_eq!(device["attributes"]["resource"]["string"], FUSE);
    assert_eq!(stage.slices()[0]["spec"]["nodeName"], "claimed");
    let status = node.object();
    assert!(
        status["status"]["allocatable"][FUSE].is_null(),
        "never both"
    );
    stage.create_claim("fuse", FUSE, &[]);

    // A pod gets the device and the environment of its declaration; two pods do, a third one waits.
    stage.run("one");
    let look = "stat -c %t:%T /dev/fuse; exec 3<>/dev/fuse && echo open $FUSE_ID";
    assert_eq!(stage.inside("one", look), "a:e5\nopen fuse\n");
    stage.run("two");
    assert_eq!(stage.specs(), 2);
    machine.wait("the list to name both", wait::seconds(10), || {
        let list = machine.exec(&["/usr/bin/machinist", "devices", "list"]);
        ["one", "two"]
            .iter()
            .all(|pod| list.contains(&format!("default/{pod}/main")))
    });
    stage.pod("three");
    cluster.wait_object("pod", "three", "no device", wait::seconds(30), |pod| {
        let conditions = pod["status"]["conditions"].as_array();
        conditions
            .into_iter()
            .flatten()
            .any(|one| one["reason"] == "Unschedulable")
    });

    restarts(&stage);
    unhealthy_device_is_reported(&stage);

    // A released device can be claimed again, and the last CDI spec is removed with the last pod.
    stage.delete("one");
    stage.delete("two");
    cluster.wait_pod("three", "Running", wait::seconds(90));
    assert_eq!(stage.inside("three", look), "a:e5\nopen fuse\n");
    machine.wait("one spec", wait::seconds(30), || stage.specs() == 1);
    stage.delete("three");
    machine.wait("no spec", wait::seconds(30), || stage.specs() == 0);

    sides::both(&stage);
    sides::neither(&stage);
    program::is_claimed(&stage);
}

/// Restarts of the agent and of the kubelet do not disturb pods, and the ResourceSlices that a
/// starting kubelet deletes are published again.
fn restarts(stage: &Stage) {
    let (machine, node) = (&stage.machine, stage.node());
    let pods = ["one", "two"];
    let runs = pods.map(|pod| stage.run_of(pod));
    stage.registered_again("systemctl restart kubelet began", || node.restart_kubelet());
    node.wait_ready(wait::seconds(60));
    stage.wait_devices("the slices after the kubelet's start", 2, false);
    stage.registered_again("systemctl restart machinist began", || {
        machine.exec(&["systemctl", "restart", "machinist"]);
    });
    stage.wait_devices("the slices after the agent's start", 2, false);
    stage
        .cluster
        .kubectl(&["delete", "resourceslices", "--all"]);
    stage.wait_devices("slices that were deleted externally", 2, false);
    assert_eq!(pods.map(|pod| stage.run_of(pod)), runs, "no pod noticed");
    // The claim is released while the agent is stopped: the kubelet retries until the agent runs
    // again.
    machine.exec(&["systemctl", "stop", "machinist"]);
    stage
        .cluster
        .kubectl(&["delete", "pod", "two", "--wait=false"]);
    machine.exec(&["systemctl", "start", "machinist"]);
    machine.wait("the claim to be given back", wait::seconds(120), || {
        stage.specs() <= 2
    });
    stage
        .cluster
        .wait_pod("three", "Running", wait::seconds(120));
    stage.delete("three");
    // A pod that is created while the kubelet is stopped.
    machine.exec(&["systemctl", "stop", "kubelet"]);
    stage.pod("two");
    machine.exec(&["systemctl", "start", "kubelet"]);
    stage.cluster.wait_pod("two", "Running", wait::seconds(120));
    machine.wait("two specs", wait::seconds(30), || stage.specs() == 2);
    stage.pod("three");
}

/// An unhealthy device is reported to the scheduler and in the status of the pod that uses it.
fn unhealthy_device_is_reported(stage: &Stage) {
    let machine = &stage.machine;
    machine.exec(&["systemctl", "stop", "acme"]);
    if !stage.knows_taints() {
        stage.wait_devices("no sick device", 0, false);
        machine.exec(&["systemctl", "start", "acme"]);
        return stage.wait_devices("both again", 2, false);
    }
    stage.wait_devices("taints", 2, true);
    let sick = |pod: &Value| pod.to_string().contains("\"health\":\"Unhealthy\"");
    let message = "an unhealthy device";
    stage
        .cluster
        .wait_object("pod", "one", message, wait::seconds(60), sick);
    machine.exec(&["systemctl", "start", "acme"]);
    stage.wait_devices("no taints", 2, false);
    let well = |pod: &Value| pod.to_string().contains("\"health\":\"Healthy\"");
    stage
        .cluster
        .wait_object("pod", "one", "health", wait::seconds(60), well);
}
