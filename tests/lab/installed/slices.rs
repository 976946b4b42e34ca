//! The policy `machinist-own-slices`, which limits the ResourceSlices that an agent may write, as
//! the API server enforces it.

use serde_json::json;

use super::as_agent;
use crate::support::{Cluster, lab};

const DRIVER: &str = "dra.machinist.dev";

fn slice(name: &str, node: &str, driver: &str) -> String {
    let slice = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name},
        "spec": {
            "driver": driver, "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "lab"}],
        },
    });
    slice.to_string()
}

/// Asserts that the token of `first`'s agent may write slices of `first` and no others.
pub(super) fn are_of_its_own_node(cluster: &Cluster, token: &str) {
    if lab().version.starts_with("1.33.") {
        println!(
            "lab: Kubernetes 1.33 serves no ResourceSlices by default: their policy was not tried"
        );
        return;
    }
    let may = |arguments: &[&str], input: &str| {
        let output = as_agent(cluster, token, arguments, input);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        output.status.success().then_some(()).ok_or(error)
    };
    let create = |name: &str, node: &str, driver: &str| {
        may(&["create", "-f", "-"], &slice(name, node, driver))
    };
    // It may write its own slices; without this check the refusals below would prove nothing.
    create("lab-own", "first", DRIVER).unwrap();
    // No controller watches the slices of a node that does not exist, so this one stays unchanged.
    cluster.apply(&slice("lab-other", "elsewhere", DRIVER));
    // Server-side apply, like the agent itself: it may not read single slices.
    let apply = |name: &str, node: &str| {
        let arguments = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
        let mine = slice(name, node, DRIVER).replace("\"lab\"", "\"mine\"");
        may(&arguments, &mine)
    };
    apply("lab-own", "first").unwrap();
    for (what, answer) in [
        (
            "a slice of another node",
            create("lab-second", "second", DRIVER),
        ),
        (
            "a slice of another driver",
            create("lab-foreign", "first", "gpu.example.com"),
        ),
        ("a change", apply("lab-other", "elsewhere")),
        (
            "a deletion",
            may(
                &["delete", "resourceslice", "lab-other", "--wait=false"],
                "",
            ),
        ),
    ] {
        let error = answer.expect_err(what);
        let message = "is not a ResourceSlice of the node of the agent's token: \"first\"";
        assert!(error.contains(message), "{what}: {error}");
    }
    let there = cluster.object("resourceslice", "lab-other");
    assert!(there.is_some_and(|slice| slice["spec"]["devices"][0]["name"] == "lab"));
    cluster.kubectl(&["delete", "resourceslice", "lab-other"]);
}
