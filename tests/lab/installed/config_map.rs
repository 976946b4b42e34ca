//! Declares devices for all nodes through a ConfigMap.

use serde_json::json;

use crate::support::installed::NAMESPACE;
use crate::support::{Cluster, wait};

const RESOURCE: &str = "acme.dev/fuse";

/// The kubelet syncs a pod's ConfigMap volumes about once a minute.
const BROUGHT: std::time::Duration = wait::seconds(180);

/// Declares this many shares of a device that every machine here has.
pub(super) fn declares(cluster: &Cluster, replicas: u32) {
    let declaration = format!(
        "apiVersion: machinist.dev/v1\nkind: DeviceDeclaration\nmetadata: {{name: fuse}}\nspec:\n  \
         resource: {RESOURCE}\n  match: [{{path: /dev/fuse}}]\n  share: {{replicas: {replicas}}}\n"
    );
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "machinist-devices", "namespace": NAMESPACE},
        "data": {"fuse.yaml": declaration},
    });
    cluster.apply(&map.to_string());
}

/// Asserts that every node advertises that count, and that no pod was recreated for it.
pub(super) fn is_followed(cluster: &Cluster, nodes: &[&str], replicas: u32) {
    for node in nodes {
        let what = format!("{replicas} {RESOURCE} on {node}");
        wait::until(&what, BROUGHT, || {
            let node = cluster.object("node", node).unwrap_or_default();
            node["status"]["allocatable"][RESOURCE] == json!(replicas.to_string())
        });
    }
}
