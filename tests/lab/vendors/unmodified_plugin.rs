//! A vendor's pod that mounts the kubelet's directory, deployed unmodified; an admission policy
//! redirects it to a directory of its own.

use serde_json::{Value, json};

use super::{SAMPLE, Stage, healths};
use crate::{
    devices::{allocatable, wait_allocatable},
    support::{image, wait},
};

const POLICY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/kubernetes/plugins");
const THEIRS: &str = "/var/lib/kubelet/device-plugins";
const PROGRAM: &str = "/usr/local/bin/sample-device-plugin";

/// The sample plugin in a pod; it has the label if the policy is to select it.
fn plugin(name: &str, labels: &Value) -> String {
    let mounts = [("plugins", THEIRS), ("program", PROGRAM)];
    let volumes = mounts.map(|(name, path)| json!({"name": name, "hostPath": {"path": path}}));
    let mounts = mounts.map(|(name, path)| json!({"name": name, "mountPath": path}));
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
        "spec": {
            "hostNetwork": true,
            "terminationGracePeriodSeconds": 2,
            "automountServiceAccountToken": false,
            "nodeSelector": {"kubernetes.io/hostname": "vendor"},
            "volumes": volumes,
            "containers": [{
                "name": "main", "image": image::PAUSE, "imagePullPolicy": "Never",
                "command": [PROGRAM], "securityContext": {"privileged": true},
                "volumeMounts": mounts,
            }],
        },
    });
    pod.to_string()
}

/// The host paths of a pod's two volumes after admission.
fn lead(stage: &Stage, pod: &str) -> Vec<String> {
    let command = ["create", "--dry-run=server", "-o", "json", "-f", "-"];
    let made = stage.cluster.try_kubectl_with(&command, pod);
    let pod: Value = serde_json::from_slice(&made.stdout).unwrap_or_default();
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let paths = volumes.map(|volume| volume["hostPath"]["path"].as_str());
    paths.flatten().map(str::to_owned).collect()
}

/// The plugin is registered through machinist, with an unmodified manifest.
pub fn by_a_policy(stage: &Stage) {
    let kinds = ["api-resources", "--api-group=admissionregistration.k8s.io"];
    let kinds = stage.cluster.kubectl(&kinds);
    if !kinds.contains("MutatingAdmissionPolicy") {
        println!("lab: this API server has no MutatingAdmissionPolicy; nothing is redirected");
        return;
    }
    stage.machine.exec(&["systemctl", "stop", "sample"]);
    stage.cluster.kubectl(&["apply", "-k", POLICY]);
    let labelled = plugin("plugin", &json!({"machinist.dev/device-plugin": "sample"}));
    let ours = "/var/lib/machinist/device-plugins/sample".to_owned();
    wait::until("the policy", wait::seconds(60), || {
        lead(stage, &labelled) == [ours.clone(), PROGRAM.to_owned()]
    });
    let other = plugin("plugin", &json!({"app": "x"}));
    assert_eq!(lead(stage, &other), [THEIRS, PROGRAM]);

    stage
        .machine
        .wait("the plugin's end", wait::seconds(60), || {
            let devices = healths(&stage.machine, SAMPLE);
            devices.iter().all(|(health, _)| health == "Unhealthy")
        });
    stage.cluster.apply(&labelled);
    stage
        .cluster
        .wait_pod("plugin", "Running", wait::seconds(60));
    stage.machine.wait("its devices", wait::seconds(30), || {
        let devices = healths(&stage.machine, SAMPLE);
        devices.len() == 2 && devices.iter().all(|(health, _)| health == "Healthy")
    });
    taken_back(stage);
}

/// Follows `docs/vendors/plugins.md`: first the file is removed, then the mount. The kubelet then
/// uses the plugin directly, and continues to.
fn taken_back(stage: &Stage) {
    let (cluster, machine) = (&stage.cluster, &stage.machine);
    let node = cluster.node(machine);
    let file = "/etc/machinist/vendors.d/sample.yaml";
    machine.sh(&format!("mv {file} /root/"));
    wait_allocatable(&node, SAMPLE, "0");
    assert!(healths(machine, SAMPLE).is_empty());
    cluster.kubectl(&["delete", "-k", POLICY]);
    cluster.kubectl(&["delete", "pod", "plugin"]);
    cluster.apply(&plugin("again", &json!({"app": "x"})));
    cluster.wait_pod("again", "Running", wait::seconds(60));
    wait_allocatable(&node, SAMPLE, "2");
    // Longer than an agent waits before it registers the resources that it still offers.
    std::thread::sleep(std::time::Duration::from_secs(10));
    assert_eq!(allocatable(&node, SAMPLE).as_deref(), Some("2"));
    cluster.kubectl(&["delete", "pod", "again"]);
    machine.sh(&format!("mv /root/sample.yaml {file}"));
}
