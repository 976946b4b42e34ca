//! Images that are pulled in advance, with a real containerd, a real API server and a registry that asks for a
//! password.

mod registry;

use serde_json::{Value, json};

use self::registry::{ADDRESS, Registry};
use crate::support::agent::{file, manifest};
use crate::support::api::condition;
use crate::support::{Cluster, Machine, lab, wait};

const GROUP: &str = "machineconfiguration.openshift.io";

/// The CRDs, as the installation ships them.
const CRDS: [&str; 4] = [
    include_str!("../../packaging/kubernetes/crds/machineconfigs.yaml"),
    include_str!("../../packaging/kubernetes/crds/machineconfigpools.yaml"),
    include_str!("../../packaging/kubernetes/crds/machineconfignodes.yaml"),
    include_str!("../../packaging/kubernetes/crds/pinnedimagesets.yaml"),
];

/// A machine whose agent takes its config from the cluster, and whose containerd speaks HTTP with the registry.
fn worker(cluster: &Cluster) -> Machine {
    let kubeconfig = std::fs::read(cluster.kubeconfig("machinist-w", "system:masters")).unwrap();
    let settings = "source: cluster\ncluster: {node: w, kubeconfig: /etc/machinist/kubeconfig}\n\
                    pinnedImages: {minFree: 1MiB}\n";
    let hosts = format!(
        "server = \"http://{ADDRESS}\"\n[host.\"http://{ADDRESS}\"]\ncapabilities = [\"pull\", \"resolve\"]\n"
    );
    let secret = json!({"auths": {ADDRESS: {"auth": registry::CREDENTIALS}}});
    Machine::build("w")
        .machinist()
        .file("/etc/machinist/kubeconfig", kubeconfig)
        .file("/etc/machinist/machinist.yaml", settings)
        .file(
            &format!("/etc/containerd/certs.d/{ADDRESS}/hosts.toml"),
            hosts,
        )
        .file("/var/lib/kubelet/config.json", secret.to_string())
        .boot()
}

fn wants(cluster: &Cluster, config: &str, motd: &str) {
    let files = json!({"files": [file("/etc/motd", 0o644, motd)]});
    cluster.apply(&manifest(config, files, Value::Null));
    let annotation = format!("{GROUP}/desiredConfig={config}");
    cluster.kubectl(&["annotate", "--overwrite", "node", "w", &annotation]);
}

fn wait_done(cluster: &Cluster, config: &str) {
    let current = format!("{GROUP}/currentConfig");
    cluster.wait_object("node", "w", config, wait::seconds(180), |node| {
        node["metadata"]["annotations"][&current] == config
    });
}

/// Waits for the status of the node's set `application`.
fn wait_set(cluster: &Cluster, what: &str, holds: impl Fn(&Value, &Value) -> bool) -> Value {
    cluster.wait_object(
        "machineconfignode",
        "w",
        what,
        wait::seconds(60),
        |object| {
            let sets = object["status"]["pinnedImageSets"].as_array();
            let mut sets = sets.into_iter().flatten();
            let set = sets.find(|set| set["name"] == "application");
            holds(object, set.unwrap_or(&Value::Null))
        },
    )
}

fn apply_set(cluster: &Cluster, images: &[&str]) {
    let images: Vec<_> = images.iter().map(|name| json!({"name": name})).collect();
    let set = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "PinnedImageSet",
        "metadata": {"name": "application", "labels": {format!("{GROUP}/role"): "worker"}},
        "spec": {"pinnedImages": images},
    });
    cluster.apply(&set.to_string());
}

/// The images with containerd's label, by name.
fn labelled(machine: &Machine) -> Vec<String> {
    let filter = "labels.\"io.cri-containerd.pinned\"==pinned";
    let all = machine.exec(&["ctr", "--namespace", "k8s.io", "images", "ls", "-q", filter]);
    all.lines()
        .filter(|name| name.starts_with(ADDRESS))
        .map(str::to_owned)
        .collect()
}

#[test]
fn an_update_waits_for_images_that_containerd_then_keeps() {
    let registry = Registry::start();
    let (first, second) = (registry.image("first"), registry.image("second"));
    let cluster = Cluster::start(&lab().version);
    for crd in CRDS {
        cluster.apply(crd);
    }
    let pool = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "MachineConfigPool", "metadata": {"name": "worker"},
        "spec": {
            "machineConfigSelector": {"matchLabels": {format!("{GROUP}/role"): "worker"}},
            "nodeSelector": {"matchLabels": {"node-role.kubernetes.io/worker": ""}},
        },
    });
    cluster.apply(&pool.to_string());
    let machine = worker(&cluster);
    cluster.join(&machine);
    cluster.kubectl(&["label", "node", "w", "node-role.kubernetes.io/worker="]);
    machine.start_agent();
    wants(&cluster, "rendered-worker-a", "a\n");
    wait_done(&cluster, "rendered-worker-a");
    // The annotation comes before the uncordon, and an update of a node that is cordoned already does not wait.
    machine.wait_status("the uncordon", wait::seconds(60), |status| {
        status["phase"] == "Idle"
    });

    // An update that drains waits for the first pull of a set.
    registry.answers(false);
    apply_set(&cluster, &[&first, &second]);
    wait_set(&cluster, "pulls", |object, set| {
        set["desiredGeneration"] == 1
            && condition(object, "PinnedImageSetsProgressing") == Some("True")
    });
    wants(&cluster, "rendered-worker-b", "b\n");
    machine.wait_status(
        "an update that waits for images",
        wait::seconds(30),
        |status| status.to_string().contains("PullingImages"),
    );
    let node = cluster.object("node", "w").unwrap();
    assert_ne!(node["spec"]["unschedulable"], true, "{node:#}");
    registry.answers(true);
    wait_done(&cluster, "rendered-worker-b");
    let object = wait_set(&cluster, "complete", |object, set| {
        set["currentGeneration"] == 1
            && condition(object, "PinnedImageSetsProgressing") == Some("False")
    });
    assert_eq!(condition(&object, "PinnedImageSetsDegraded"), Some("False"));
    // containerd's CRI, which the kubelet asks, reports both as pinned: otherwise the message says so.
    let conditions = object["status"]["conditions"].as_array().unwrap();
    let progress = conditions
        .iter()
        .find(|it| it["type"] == "PinnedImageSetsProgressing")
        .unwrap();
    assert_eq!(progress["message"], "2 of 2 images present");
    let mut both = vec![first.clone(), second.clone()];
    both.sort();
    assert_eq!(labelled(&machine), both);

    // An image that does not exist is named, and the others stay.
    let missing = first.replace(&first[first.len() - 8..], "00000000");
    apply_set(&cluster, &[&first, &missing]);
    let object = wait_set(&cluster, "the failure", |_, set| {
        set["lastFailedGeneration"] == 2
    });
    assert_eq!(condition(&object, "PinnedImageSetsDegraded"), Some("True"));
    let failure = object["status"]["pinnedImageSets"][0]["lastFailedGenerationError"].to_string();
    assert!(
        failure.contains("ImagePullFailed") && failure.contains(&missing),
        "{failure}"
    );
    assert_eq!(
        object["status"]["pinnedImageSets"][0]["currentGeneration"],
        1
    );
    assert_eq!(labelled(&machine), std::slice::from_ref(&first));

    // Without sets nothing is protected, and nothing was removed.
    cluster.kubectl(&["delete", "pinnedimageset", "application"]);
    machine.wait("no labels", wait::seconds(30), || {
        labelled(&machine).is_empty()
    });
    let images = machine.exec(&["ctr", "--namespace", "k8s.io", "images", "ls", "-q"]);
    assert!(
        both.iter().all(|image| images.contains(image.as_str())),
        "{images}"
    );
    machine.wait("no record", wait::seconds(30), || {
        machine
            .try_read("/var/lib/machinist/pinned-images.json")
            .is_none()
    });
}
