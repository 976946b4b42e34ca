//! Pools and leases, which no agent may change.

use serde_json::{Value, json};

use super::{OTHER, OWN, Token, is_refused};
use crate::support::installed::NAMESPACE;

/// Asserts that a request of each kind is refused.
pub(super) fn are_kept(token: &Token<'_>) {
    let labels = json!({"matchLabels": {"node-role.kubernetes.io/worker": ""}});
    let pool = json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool",
        "metadata": {"name": "worker"},
        "spec": {"nodeSelector": labels, "machineConfigSelector": labels},
    });
    let lease = |namespace: &str, name: &str| {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"holderIdentity": "lab"},
        })
        .to_string()
    };
    token.cluster.apply(&pool.to_string());
    token.cluster.apply(&lease("kube-node-lease", OTHER));
    token
        .cluster
        .apply(&lease(NAMESPACE, "machinist-controller"));
    let run = |arguments: &[&str]| token.run(arguments, "");
    let patch = |kind: &str, namespace: &str, name: &str, patch: &Value| {
        let patch = patch.to_string();
        run(&[
            "patch",
            kind,
            "-n",
            namespace,
            name,
            "--type=merge",
            "-p",
            &patch,
        ])
    };
    let grants = json!({"metadata": {"annotations": {"machinist.dev/grants": "{}"}}});
    let paused = json!({"spec": {"paused": true}});
    let holder = json!({"spec": {"holderIdentity": OWN}});
    let counts = [
        "patch",
        "machineconfigpool",
        "worker",
        "--subresource=status",
        "--type=merge",
        "-p",
        r#"{"status":{"machineCount":0}}"#,
    ];
    let message = "orbidden";
    is_refused(vec![
        (
            "grants",
            patch("machineconfigpool", "default", "worker", &grants),
            message,
        ),
        (
            "a paused pool",
            patch("machineconfigpool", "default", "worker", &paused),
            message,
        ),
        ("the counts of a pool", run(&counts), message),
        (
            "a pool's deletion",
            run(&["delete", "machineconfigpool", "worker"]),
            message,
        ),
        (
            "the lease of another node",
            patch("lease", "kube-node-lease", OTHER, &holder),
            message,
        ),
        (
            "the controller's lease",
            patch("lease", NAMESPACE, "machinist-controller", &holder),
            message,
        ),
        (
            "a new lease",
            token.run(&["create", "-f", "-"], &lease(NAMESPACE, "lab")),
            message,
        ),
    ]);
    token
        .cluster
        .kubectl(&["delete", "machineconfigpool", "worker"]);
}
