//! The command `plan --pool`.

use std::{fs, process::Output};

use serde_json::{Value, json};

use crate::{
    cluster::server::{InjectedFailure, Server},
    fleet::{
        assert_contains,
        cluster::{GROUP, NEW, OLD, ago},
        err, fits, json_of, out,
        pool_world::{
            annotate, config_path, machinist, node, node_path, pool_path, rollout, world,
        },
    },
};

const BASE: &str = "00-worker";

/// A MachineConfig with one file.
fn config(name: &str, path: &str, text: &str) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "MachineConfig",
        "metadata": {"name": name, "labels": {format!("{GROUP}/role"): "worker"}},
        "spec": {"config": {"ignition": {"version": "3.4.0"}, "storage": {"files": [
            {"path": path, "mode": 420, "contents": {"source": format!("data:,{text}")}}]}}},
    })
}

async fn document(server: &Server, files: &[&str]) -> Value {
    let call = [&["plan", "--pool", "worker", "-o", "json"], files].concat();
    json_of(&machinist(server, &call).await)
}

/// A pool whose three nodes are on the config that is rendered from one MachineConfig.
async fn settled() -> (Server, String) {
    let server = world().await;
    server.edit(&pool_path("worker"), |pool| {
        let labels = json!({format!("{GROUP}/role"): "worker"});
        pool["spec"]["machineConfigSelector"] = json!({"matchLabels": labels});
    });
    let base = config(BASE, "/etc/chrony.conf", "pool%20a%0A");
    server.put(&config_path(BASE), base.clone());
    let name = document(&server, &[]).await["to"]
        .as_str()
        .unwrap()
        .to_owned();
    let mut rendered = base;
    rendered["metadata"] =
        json!({"name": name, "labels": {"machinist.dev/rendered-for": "worker"}});
    server.put(&config_path(&name), rendered);
    server.edit(&pool_path("worker"), |pool| {
        pool["spec"]["configuration"]["name"] = json!(name);
    });
    for it in ["w1", "w2", "w3"] {
        server.put(&node_path(it), node(it, "worker", &name));
    }
    rollout(&server, "worker", |state| state.target.clone_from(&name));
    (server, name)
}

fn written(dir: &tempfile::TempDir, name: &str, object: &Value) -> String {
    let path = dir.path().join(name);
    fs::write(&path, object.to_string()).unwrap();
    path.to_str().unwrap().to_owned()
}

async fn plan(server: &Server, files: &[&str]) -> Output {
    machinist(server, &[&["plan", "--pool", "worker"], files].concat()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_without_changes_keeps_its_config() {
    let (server, name) = settled().await;
    let output = plan(&server, &[]).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_contains(
        &out(&output),
        &[
            &format!("the rendered config remains\n  {name}"),
            "none changes",
        ],
    );
    let document = document(&server, &[]).await;
    assert_eq!(document["kind"], "PoolPlan");
    assert_eq!(
        (&document["from"], &document["to"]),
        (&json!(name), &json!(name))
    );
    assert_eq!(document["plan"]["changes"], json!([]));
    assert_eq!(document["blockers"], json!([]));
    assert_eq!(server.writes().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_added_file_is_planned_with_the_needs_and_the_order_of_the_nodes() {
    let (server, name) = settled().await;
    let dir = tempfile::tempdir().unwrap();
    let file = written(&dir, "a.json", &config("50-extra", "/etc/extra", "1%0A"));
    let output = plan(&server, &[&file]).await;
    assert_eq!(output.status.code(), Some(2), "{}", err(&output));
    let page = out(&output);
    fits(&page);
    assert!(
        page.starts_with(&format!("pool worker: {name} →\n")),
        "{page}"
    );
    assert_contains(
        &page,
        &[
            "merged from 00-worker, 50-extra\n",
            "of the files: 50-extra\n",
            "+ file /etc/extra",
            "cost: Reboot",
            "w1 on ",
            ": drain and reboot\n",
            "The nodes were not asked",
            "canary: w1\n",
        ],
    );
    let document = document(&server, &[&file]).await;
    assert_ne!(document["to"], json!(name));
    assert_eq!(document["sources"], json!([BASE, "50-extra"]));
    assert_eq!(document["fromFiles"], json!(["50-extra"]));
    assert_eq!(document["plan"]["changes"][0]["name"], "/etc/extra");
    assert_eq!(document["nodes"].as_array().unwrap().len(), 3);
    let first = &document["nodes"][0];
    assert_eq!(
        (&first["name"], &first["current"], &first["updates"]),
        (&json!("w1"), &json!(name), &json!(true))
    );
    assert_eq!(
        (&first["cost"], &first["drain"], &first["actions"]),
        (&json!("Reboot"), &json!(true), &json!(["Reboot"]))
    );
    let waves = &document["rollout"]["waves"];
    let names: Vec<&Value> = waves
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["names"])
        .collect();
    assert_eq!(names, [&json!(["w1"]), &json!(["w2"]), &json!(["w3"])]);
    assert_eq!(document["waits"], json!([]));
    let target = &server.object(&pool_path("worker"))["spec"]["configuration"]["name"];
    assert_eq!((server.writes().len(), target), (0, &json!(name)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_replaces_the_object_of_its_name_and_nodes_are_planned_from_their_configs() {
    let (server, name) = settled().await;
    let older = "rendered-worker-3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d3d";
    let mut object = config(older, "/etc/other", "1");
    object["metadata"]["labels"] = json!({"machinist.dev/rendered-for": "worker"});
    server.put(&config_path(older), object);
    server.put(&node_path("w2"), node("w2", "worker", older));
    let gone = "rendered-worker-4e4e4e4e4e4e4e4e4e4e4e4e4e4e4e4e";
    server.put(&node_path("w3"), node("w3", "worker", gone));
    let dir = tempfile::tempdir().unwrap();
    let file = written(
        &dir,
        "a.json",
        &config(BASE, "/etc/chrony.conf", "pool%20b%0A"),
    );
    let page = out(&plan(&server, &[&file]).await);
    assert_contains(
        &page,
        &[
            "-pool a",
            "+pool b",
            ": restart (Restart chronyd.service)\n",
        ],
    );
    let document = document(&server, &[&file]).await;
    assert_eq!(document["sources"], json!([BASE]));
    let needs = |at: usize| {
        let node = &document["nodes"][at];
        (node["cost"].clone(), node["drain"].clone())
    };
    assert_eq!(document["from"], json!(name));
    assert_eq!(needs(0), (json!("Restart"), json!(false)));
    assert_eq!(needs(1), (json!("Reboot"), json!(true)), "a file leaves");
    assert_eq!(needs(2), (Value::Null, Value::Null));
    let unknown = document["nodes"][2]["unknown"].as_str().unwrap();
    assert_eq!(unknown, format!("MachineConfig {gone} does not exist"));
}

const POLICIES: &str = "/apis/operator.openshift.io/v1/machineconfigurations/cluster";

fn put_policies(server: &Server, action: &str) {
    let object = json!({
        "apiVersion": "operator.openshift.io/v1", "kind": "MachineConfiguration",
        "metadata": {"name": "cluster", "generation": 2},
        "spec": {"nodeDisruptionPolicy": {"files": [
            {"path": "/etc/extra", "actions": [{"type": action}]}]}},
        // Agents read the spec: a status that is not up to date changes nothing.
        "status": {"observedGeneration": 1, "nodeDisruptionPolicyStatus": {"clusterPolicies": {"files": []}}},
    });
    server.put(POLICIES, object);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_planned_with_the_disruption_policies_of_the_cluster() {
    let (server, _) = settled().await;
    let dir = tempfile::tempdir().unwrap();
    let file = written(&dir, "a.json", &config("50-extra", "/etc/extra", "1%0A"));
    let found = document(&server, &[&file]).await;
    assert_eq!(
        (&found["policies"], &found["nodes"][0]["cost"]),
        (&json!("BuiltIn"), &json!("Reboot"))
    );
    let minutes = |found: &Value| found["rollout"]["nodeSeconds"].as_i64().unwrap() / 60;
    assert_eq!(minutes(&found), 20, "with a reboot");
    put_policies(&server, "None");
    let found = document(&server, &[&file]).await;
    assert_eq!(minutes(&found), 5, "without one");
    let node = &found["nodes"][0];
    assert_eq!(found["policies"], "Cluster");
    assert_eq!(
        (&node["cost"], &node["drain"]),
        (&json!("None"), &json!(false))
    );
    assert_eq!(found["plan"]["changes"][0]["policy"], "user:/etc/extra");
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let page = words(&out(&plan(&server, &[&file]).await));
    assert_contains(
        &page,
        &[
            ": no disruption",
            "the policies of MachineConfiguration cluster with the built-in ones",
        ],
    );

    // Agents refuse every config then.
    put_policies(&server, "Pause");
    let found = document(&server, &[&file]).await;
    let refusal = &found["nodes"][0]["refusals"][0];
    assert_eq!(refusal["file"], "MachineConfiguration cluster");
    let field = "spec.nodeDisruptionPolicy.files[0].actions[0].type";
    assert_eq!(refusal["field"], field);
}

#[tokio::test(flavor = "multi_thread")]
async fn forbidden_policies_leave_the_built_in_ones_and_are_named() {
    let (server, _) = settled().await;
    let dir = tempfile::tempdir().unwrap();
    let file = written(&dir, "a.json", &config("50-extra", "/etc/extra", "1%0A"));
    put_policies(&server, "None");
    let forbidden = crate::cluster::server::InjectedFailure::Code(403, "Forbidden");
    server.trouble(&format!("GET {POLICIES}"), forbidden);
    let found = document(&server, &[&file]).await;
    assert_eq!(
        (&found["policies"], &found["nodes"][0]["cost"]),
        (&json!("Unreadable"), &json!("Reboot"))
    );
    let warnings = found["warnings"].to_string();
    assert!(
        warnings.contains("MachineConfiguration cluster"),
        "{warnings}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_rendering_names_the_object_and_the_field() {
    let (server, name) = settled().await;
    let dir = tempfile::tempdir().unwrap();
    let file = written(&dir, "bad.json", &config("50-bad", "etc/extra", "1"));
    let output = plan(&server, &[&file]).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let page = out(&output).replace("\n    ", " ");
    assert_contains(
        &page,
        &[
            "pool worker: no config would be rendered",
            "bad.json:1:",
            "in 50-bad: spec.config.storage.files[0].path:",
            "[PathInvalid]",
            &name,
        ],
    );
    server.put(&config_path("60-bad"), config("60-bad", "etc/other", "1"));
    let output = plan(&server, &[]).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let page = out(&output).replace("\n    ", " ");
    let place = "MachineConfig 60-bad: spec.config.storage.files[0].path:";
    assert_contains(&page, &[place]);
    let document = document(&server, &[]).await;
    assert_eq!(document["to"], Value::Null);
    let refusal = &document["refused"]["refusals"][0];
    assert_eq!(document["refused"]["code"], "PathInvalid");
    assert_eq!(refusal["file"], "MachineConfig 60-bad");
    assert_eq!(refusal["field"], "spec.config.storage.files[0].path");
    // A file that replaces the object corrects it.
    let file = written(&dir, "good.json", &config("60-bad", "/etc/other", "1"));
    assert_eq!(plan(&server, &[&file]).await.status.code(), Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_the_pool_does_not_select_is_named_and_changes_nothing() {
    let (server, _) = settled().await;
    let dir = tempfile::tempdir().unwrap();
    let mut object = config("50-extra", "/etc/extra", "1");
    object["metadata"]["labels"] = json!({format!("{GROUP}/role"): "infra"});
    let file = written(&dir, "a.json", &object);
    let output = plan(&server, &[&file]).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let page = out(&output).replace("\n    ", " ");
    assert_contains(&page, &["MachineConfig 50-extra of the files is not part"]);
}

fn put_workload(server: &Server, allowed: i64) {
    let labels = json!({"app": "web"});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "shop", "name": "web-1", "uid": "1", "labels": labels,
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "2",
                "controller": true}]},
        "spec": {"nodeName": "w2", "containers": []},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    });
    server.put("/api/v1/pods/web-1", pod);
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"namespace": "shop", "name": "web", "generation": 1},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": labels}},
        "status": {"observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 2,
            "desiredHealthy": 2, "expectedPods": 3},
    });
    server.put("/apis/policy/v1/poddisruptionbudgets/web", budget);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_that_allows_no_disruption_blocks_the_drain_of_its_nodes() {
    let (server, _) = settled().await;
    let dir = tempfile::tempdir().unwrap();
    let reboots = written(&dir, "a.json", &config("50-extra", "/etc/extra", "1"));
    let restarts = written(&dir, "b.json", &config(BASE, "/etc/chrony.conf", "b"));
    put_workload(&server, 0);
    let page = out(&plan(&server, &[&reboots]).await).replace("\n             ", " ");
    let line = "budget shop/web allows 0 disruptions (2 of 3 pods healthy, 2 required): blocks the drain of node w2";
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_contains(&words(&page), &[line]);
    let blockers = document(&server, &[&reboots]).await["blockers"].clone();
    assert_eq!(blockers.as_array().unwrap().len(), 1);
    let found = &blockers[0];
    assert_eq!(
        (&found["budgets"], &found["nodes"], &found["pods"]),
        (&json!(["shop/web"]), &json!(["w2"]), &json!(["shop/web-1"]))
    );
    assert_eq!(found["reason"], "DrainBlockedByBudget");
    // No node is drained for a restart.
    assert_eq!(document(&server, &[&restarts]).await["blockers"], json!([]));
    put_workload(&server, 1);
    assert_eq!(document(&server, &[&reboots]).await["blockers"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_holds_the_rollout_and_what_cannot_be_read_is_named() {
    let (server, _) = settled().await;
    let dir = tempfile::tempdir().unwrap();
    let file = written(&dir, "a.json", &config("50-extra", "/etc/extra", "1"));
    // A gate is known to the controller alone.
    server.edit(&pool_path("worker"), |pool| {
        pool["status"] = json!({"conditions": [{"type": "RolloutHeld", "status": "True",
            "reason": "GateClosed", "message": "a gate", "lastTransitionTime": ago(1, 0)}]});
        pool["spec"]["paused"] = json!(true);
    });
    annotate(
        &server,
        &pool_path("worker"),
        "machinist.dev/pinned-config",
        OLD,
    );
    let held = document(&server, &[&file]).await;
    let codes: Vec<&Value> = held["waits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["code"])
        .collect();
    assert_eq!(codes, ["Pinned", "GateClosed", "Paused"]);
    assert_eq!(held["rollout"]["target"], held["to"], "as after the pin");
    // No pods are served.
    assert_eq!(held["blockers"], Value::Null);
    let page = out(&plan(&server, &[&file]).await);
    assert_contains(
        &page,
        &[
            "waits: ",
            "[Paused]",
            "[Pinned]",
            "note: it is not known whether",
        ],
    );
    let output = machinist(&server, &["plan", "--pool", "gpu"]).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        err(&output).contains("MachineConfigPool gpu not found"),
        "{output:?}"
    );
    let output = machinist(&server, &["plan", "--context", "it"]).await;
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    assert_ne!(held["from"], json!(NEW));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_rollout_of_a_pool_waits_for_its_start() {
    let server = world().await;
    server.edit(&pool_path("worker"), |pool| {
        let labels = json!({format!("{GROUP}/role"): "worker"});
        pool["spec"]["machineConfigSelector"] = json!({"matchLabels": labels});
    });
    server.put(&config_path(BASE), config(BASE, "/etc/chrony.conf", "a"));
    let found = document(&server, &[]).await;
    assert_eq!(found["waits"][0]["code"], "FirstRollout");
    assert_eq!(found["rollout"]["pending"], 3);
}

const UPGRADE_CONFIG: &str = "/apis/upgrade.managed.openshift.io/v1alpha1/namespaces/\
                              openshift-managed-upgrade-operator/upgradeconfigs/managed-upgrade-config";

#[tokio::test(flavor = "multi_thread")]
async fn the_time_of_an_upgrade_config_before_which_nothing_begins_is_named() {
    let (server, _) = settled().await;
    let dir = tempfile::tempdir().unwrap();
    let file = written(&dir, "a.json", &config("50-extra", "/etc/extra", "1"));
    server.put(
        UPGRADE_CONFIG,
        json!({"metadata": {"name": "managed-upgrade-config"},
            "spec": {"upgradeAt": "2999-06-20T12:00:00Z"}}),
    );
    let held = document(&server, &[&file]).await;
    let (waits, message) = (&held["waits"], held["waits"][0]["message"].to_string());
    assert_eq!(waits[0]["code"], "NotYetDue", "{held}");
    assert!(
        message.contains("nothing begins before 2999-06-20T12:00:00Z"),
        "{message}"
    );
    let estimated = machinist(&server, &["estimate", "--pool", "worker"]).await;
    assert!(!out(&estimated).contains("not known"), "{estimated:?}");

    let refused = InjectedFailure::Code(403, "Forbidden");
    server.trouble(&format!("GET {UPGRADE_CONFIG}"), refused);
    let held = document(&server, &[&file]).await;
    assert_eq!(held["waits"], json!([]));
    let notes = held["rollout"]["notes"].to_string();
    assert!(notes.contains("whether an UpgradeConfig names"), "{notes}");
}
