//! Another daemon on the node, requests of operators that came too late, and a node that is handed
//! back.

use machinist_cluster::handover_annotations;
use serde_json::json;

use super::{
    node::{NODE, node, with_node},
    server::{InjectedFailure, Server},
};

const PODS: &str = "/api/v1/namespaces/openshift-machine-config-operator/pods";

#[tokio::test]
async fn the_machine_config_daemon_pod_is_listed_by_label_on_this_node_only() {
    let (server, _) = with_node().await;
    let list = |names: &[&str]| {
        let items: Vec<_> = names
            .iter()
            .map(|name| json!({"metadata": {"name": name}}))
            .collect();
        json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
            "metadata": {"resourceVersion": "1"}, "items": items})
    };
    let cluster = server.cluster().await;
    server.put(PODS, list(&[]));
    assert_eq!(cluster.machine_config_daemon_on("a").await.unwrap(), None);
    server.put(PODS, list(&["machine-config-daemon-x7k2p"]));
    let seen = cluster.machine_config_daemon_on("a").await.unwrap();
    let named = "openshift-machine-config-operator/machine-config-daemon-x7k2p";
    assert_eq!(seen.as_deref(), Some(named));
    let received = server.requests_starting(&format!("GET {PODS}"));
    let query = &received[0].query;
    for part in [
        "limit=1",
        "labelSelector=k8s-app%3Dmachine-config-daemon",
        "spec.nodeName%3Da",
        "status.phase%21%3DFailed",
    ] {
        assert!(query.contains(part), "{part}: {query}");
    }
    server.trouble(
        &format!("GET {PODS}"),
        InjectedFailure::Code(403, "Forbidden"),
    );
    assert!(cluster.machine_config_daemon_on("a").await.is_err());
}

#[tokio::test]
async fn an_answered_cancel_request_is_removed_and_a_newer_one_kept() {
    let (server, own) = with_node().await;
    let ask = |server: &Server, config: &str| {
        server.edit(NODE, |node| {
            node["metadata"]["annotations"]["machinist.dev/cancel"] = json!(config);
        });
    };
    ask(&server, "one");
    own.answer_cancel("one", Some("it is too late"))
        .await
        .unwrap();
    let annotations = server.object(NODE)["metadata"]["annotations"].clone();
    assert!(annotations["machinist.dev/cancel"].is_null());
    assert_eq!(
        annotations["machinist.dev/cancel-refused"],
        "one: it is too late"
    );
    ask(&server, "two");
    let refused = own.answer_cancel("one", None).await.unwrap_err();
    assert!(refused.is_conflict());
    let annotations = server.object(NODE)["metadata"]["annotations"].clone();
    assert_eq!(annotations["machinist.dev/cancel"], "two");
}

#[tokio::test]
async fn a_released_node_publishes_that_no_update_is_pending() {
    let server = Server::start().await;
    let mut before = node();
    let annotations = &mut before["metadata"]["annotations"];
    annotations["machineconfiguration.openshift.io/state"] = json!("Working");
    annotations["machineconfiguration.openshift.io/reason"] = json!("Cancelled: x");
    // The name of a repeated request, which the controller has served.
    for name in ["desiredDrain", "lastAppliedDrain"] {
        let name = format!("machineconfiguration.openshift.io/{name}");
        annotations[name] = json!("uncordon-rendered-worker-1-1");
    }
    annotations["machinist.dev/cancel"] = json!("x");
    server.put(NODE, before);
    handover_annotations(&server.cluster().await, "a", "rendered-worker-1")
        .await
        .unwrap();
    let annotations = server.object(NODE)["metadata"]["annotations"].clone();
    for (name, text) in [
        ("currentConfig", "rendered-worker-1"),
        ("desiredConfig", "rendered-worker-1"),
        ("state", "Done"),
        ("reason", ""),
        ("post-config-action", ""),
        ("desiredDrain", "uncordon-rendered-worker-1"),
        ("lastAppliedDrain", "uncordon-rendered-worker-1-1"),
    ] {
        let name = format!("machineconfiguration.openshift.io/{name}");
        assert_eq!(annotations[&name], text, "{name}");
    }
    assert!(annotations["machinist.dev/cancel"].is_null());
}

/// A machine with one file of a config, as that daemon left it.
fn managed() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("etc/motd", "hello");
    write("etc/passwd", "root:x:0:0::/root:/bin/sh\n");
    write("etc/group", "root:x:0:\n");
    let config = json!({"metadata": {"name": "rendered-worker-1"}, "spec": {"config": {
        "ignition": {"version": "3.4.0"},
        "storage": {"files": [{"path": "/etc/motd", "mode": 0o644, "contents": {"source": "data:,hello"}}]},
    }}});
    write(
        "etc/machine-config-daemon/currentconfig",
        &config.to_string(),
    );
    dir
}

async fn machinist(
    server: &Server,
    root: &tempfile::TempDir,
    command: &str,
) -> (Option<i32>, String) {
    let mut process = std::process::Command::new(env!("CARGO_BIN_EXE_machinist"));
    process
        .env_clear()
        .env("MACHINIST_CLUSTER__NODE", "a")
        // The flag takes precedence over the settings.
        .env("MACHINIST_CLUSTER__KUBECONFIG", "/etc/another-cluster")
        .args([command, "--yes", "--root"])
        .arg(root.path())
        .arg("--kubeconfig")
        .arg(server.kubeconfig());
    let ended = tokio::task::spawn_blocking(move || process.output().unwrap());
    let ended = ended.await.unwrap();
    let output = String::from_utf8_lossy(&ended.stderr).into_owned();
    (ended.status.code(), output)
}

async fn refuses(server: &Server, root: &tempfile::TempDir, verb: &str, why: &str) {
    let (code, output) = machinist(server, root, verb).await;
    assert!(code == Some(1) && output.contains(why), "{output}");
}

#[tokio::test(flavor = "multi_thread")]
async fn handover_compares_node_annotations_before_and_updates_them_after() {
    let (server, _) = with_node().await;
    let root = managed();
    let pods = |items: serde_json::Value| {
        json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
            "metadata": {"resourceVersion": "1"}, "items": items})
    };
    let annotate = |name: &str, text: &str| {
        server.edit(NODE, |node| {
            let name = format!("machineconfiguration.openshift.io/{name}");
            node["metadata"]["annotations"][name] = json!(text);
        });
    };
    server.put(PODS, pods(json!([{"metadata": {"name": "mcd-1"}}])));
    refuses(
        &server,
        &root,
        "adopt",
        "(pod openshift-machine-config-operator/mcd-1",
    )
    .await;
    server.put(PODS, pods(json!([])));
    annotate("desiredConfig", "rendered-worker-2");
    let why = "has desired config rendered-worker-2";
    refuses(&server, &root, "adopt", why).await;
    annotate("desiredConfig", "rendered-worker-1");
    annotate("currentConfig", "rendered-worker-0");
    let why = "has current config rendered-worker-0";
    refuses(&server, &root, "adopt", why).await;
    annotate("currentConfig", "rendered-worker-1");
    let (code, output) = machinist(&server, &root, "adopt").await;
    assert_eq!(code, Some(0), "{output}");
    // An update that is requested meanwhile is not handed back half way.
    annotate("desiredConfig", "rendered-worker-2");
    let why = "has desired config rendered-worker-2";
    refuses(&server, &root, "release", why).await;
    annotate("desiredConfig", "rendered-worker-1");
    annotate("state", "Working");
    server.edit(NODE, |node| {
        node["spec"]["unschedulable"] = json!(true);
        node["metadata"]["annotations"]["machinist.dev/cordoned"] = json!("update");
    });
    let (code, output) = machinist(&server, &root, "release").await;
    assert_eq!(code, Some(0), "{output}");
    let node = server.object(NODE);
    assert!(node["spec"]["unschedulable"].is_null(), "uncordoned");
    let state = &node["metadata"]["annotations"]["machineconfiguration.openshift.io/state"];
    assert_eq!(state, "Done");
    // An unreachable API server does not prevent it.
    server.trouble(&format!("GET {NODE}"), InjectedFailure::Proxy(503));
    let (code, output) = machinist(&server, &root, "adopt").await;
    assert!(
        code == Some(0) && output.contains("neither compared nor changed"),
        "{output}"
    );
}
