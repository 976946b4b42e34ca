//! The objects that an agent's token may change, rule by rule: the admission policies as shipped,
//! in a real API server.

mod controller_objects;

use serde_json::{Value, json};

use crate::installed::as_agent;
use crate::support::installed::NAMESPACE;
use crate::support::{Cluster, lab, wait};

const OWN: &str = "own";
const OTHER: &str = "other";
const LISTED: &str = "acme.dev/serial";

/// A token of the agents' account that names a node, like the tokens of their pods.
struct Token<'a> {
    cluster: &'a Cluster,
    token: String,
}

impl Token<'_> {
    fn run(&self, arguments: &[&str], input: &str) -> Result<(), String> {
        let output = as_agent(self.cluster, &self.token, arguments, input);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        output.status.success().then_some(()).ok_or(error)
    }

    fn patch(&self, kind: &str, patch: &Value) -> Result<(), String> {
        let patch = patch.to_string();
        self.run(&["patch", "node", OWN, kind, "-p", &patch], "")
    }

    fn merge(&self, patch: &Value) -> Result<(), String> {
        self.patch("--type=merge", patch)
    }

    fn status(&self, patch: &Value) -> Result<(), String> {
        let (flags, patch) = (["--subresource=status", "-p"], patch.to_string());
        let arguments = [&["patch", "node", OWN][..], &flags, &[&patch]].concat();
        self.run(&arguments, "")
    }
}

/// A refused request, its result, and the text that identifies the rule.
type Refused = (&'static str, Result<(), String>, &'static str);

fn is_refused(all: Vec<Refused>) {
    for (what, answer, message) in all {
        let error = answer.expect_err(what);
        assert!(error.contains(message), "{what}: {error}");
        println!("lab: refused: {what}");
    }
}

fn node(name: &str) -> String {
    let taint = json!({"key": "example.com/theirs", "value": "x", "effect": "NoSchedule"});
    let ready = json!({"type": "Ready", "status": "False", "reason": "Lab"});
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"example.com/theirs": "x"}},
        "spec": {"taints": [taint]},
        "status": {"conditions": [ready], "capacity": {"cpu": "1"}, "allocatable": {"cpu": "1"}},
    })
    .to_string()
}

/// A role for kubectl: it reads objects before it patches them, which agents may not do.
fn reads() -> String {
    let group = "rbac.authorization.k8s.io";
    let rules = json!([
        {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["get"]},
        {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["get"]},
    ]);
    let version = format!("{group}/v1");
    let metadata = json!({"name": "lab-reads"});
    let role = json!({"apiGroup": group, "kind": "ClusterRole", "name": "lab-reads"});
    let agents = json!([{"kind": "ServiceAccount", "name": "machinist", "namespace": NAMESPACE}]);
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": version, "kind": "ClusterRole", "metadata": metadata, "rules": rules},
        {"apiVersion": version, "kind": "ClusterRoleBinding", "metadata": metadata, "roleRef": role,
         "subjects": agents},
    ]})
    .to_string()
}

fn event(name: &str, about: &str, instance: &str) -> String {
    json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": name, "namespace": "default"},
        "eventTime": "2026-01-01T00:00:00.000000Z", "action": "Test", "reason": "Lab", "type": "Normal",
        "reportingController": "machinist.dev/agent", "reportingInstance": instance,
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": about},
    })
    .to_string()
}

#[test]
fn a_stolen_agent_token_can_change_only_the_agents_keys_of_its_node() {
    let cluster = Cluster::start(&lab().version);
    let shipped =
        |name: &str| format!("{}/packaging/kubernetes/{name}", env!("CARGO_MANIFEST_DIR"));
    cluster.kubectl(&["apply", "-k", &shipped("crds")]);
    cluster.kubectl(&["wait", "--for=condition=Established", "crd", "--all"]);
    cluster.kubectl(&["apply", "-k", &shipped("overlays/vanilla")]);
    cluster.apply(&reads());
    for name in [OWN, OTHER] {
        cluster.apply(&node(name));
    }
    let bound = ["--bound-object-kind=Node", "--bound-object-name", OWN];
    let arguments = [
        &["create", "token", "machinist", "-n", NAMESPACE][..],
        &bound,
    ]
    .concat();
    let token = Token {
        cluster: &cluster,
        token: cluster.kubectl(&arguments).trim().to_owned(),
    };
    for name in [
        "machinist-own-node",
        "machinist-node-names",
        "machinist-own-events",
        "machinist-own-objects",
    ] {
        let kind = "validatingadmissionpolicy";
        let checked = |policy: &Value| {
            let checked = &policy["status"]["typeChecking"];
            let warnings = &checked["expressionWarnings"];
            assert!(warnings.is_null(), "{name}: {warnings:#}");
            policy["status"]["observedGeneration"] == 1
        };
        cluster.wait_object(kind, name, "type checking", wait::seconds(60), checked);
    }
    wait::until("the policies to be in force", wait::seconds(60), || {
        let foreign = json!({"metadata": {"labels": {"example.com/lab": "x"}}});
        let readiness = json!({"status": {"conditions": [{"type": "Lab", "status": "True"}]}});
        token.merge(&foreign).is_err() && token.status(&readiness).is_err()
    });

    agents_own_changes(&token);
    is_refused(of_the_object(&token));
    is_refused(of_the_status(&token));
    events(&token);
    configs(&token);
    controller_objects::are_kept(&token);
    names(&token);
}

/// Changes that the agent itself makes; without them the refusals would prove nothing.
fn agents_own_changes(token: &Token<'_>) {
    let protocol = "machineconfiguration.openshift.io";
    let annotations = json!({
        "machinist.dev/cordoned": "update",
        format!("{protocol}/currentConfig"): "a",
        format!("{protocol}/state"): "Working",
        format!("{protocol}/reason"): "x",
        format!("{protocol}/desiredDrain"): "drain-a",
        format!("{protocol}/post-config-action"): "",
    });
    let labels = json!({
        "machinist.dev/resource.acme.dev-serial": "present",
        "remediation.medik8s.io/exclude-from-remediation": "true",
    });
    let metadata = json!({"annotations": annotations, "labels": labels});
    token
        .merge(&json!({"metadata": metadata, "spec": {"unschedulable": true}}))
        .unwrap();
    let startup = json!({"key": "machinist.dev/not-ready", "effect": "NoSchedule"});
    let add = json!([{"op": "add", "path": "/spec/taints/-", "value": startup}]);
    token.patch("--type=json", &add).unwrap();
    wait::until("its taint to be removed", wait::seconds(60), || {
        let text = token.cluster.kubectl(&["get", "node", OWN, "-o", "json"]);
        let node: Value = serde_json::from_str(&text).unwrap();
        let mut taints = node["spec"]["taints"].as_array().unwrap().iter();
        let index = taints.position(|taint| taint["key"] == "machinist.dev/not-ready");
        let path = format!("/spec/taints/{}/key", index.unwrap());
        // Others may change the list between the two requests.
        let is_own = json!({"op": "test", "path": path, "value": "machinist.dev/not-ready"});
        let remove = json!({"op": "remove", "path": path.trim_end_matches("/key")});
        token.patch("--type=json", &json!([is_own, remove])).is_ok()
    });
    let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": "Ok"});
    let kinds = ["machinist.dev/Ready", "machinist.dev/Drained"];
    token
        .status(&json!({"status": {"conditions": kinds.map(condition)}}))
        .unwrap();
    let gone = kinds.map(|kind| json!({"type": kind, "$patch": "delete"}));
    token
        .status(&json!({"status": {"conditions": gone}}))
        .unwrap();
}

fn of_the_object(token: &Token<'_>) -> Vec<Refused> {
    let metadata = |fields: Value| json!({"metadata": fields});
    let label = metadata(json!({"labels": {"node-role.kubernetes.io/control-plane": ""}}));
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": OTHER, "uid": "x"}]);
    let desired = json!({"machineconfiguration.openshift.io/desiredConfig": "b"});
    let taints = |op: Value| token.patch("--type=json", &json!([op]));
    let theirs = json!({"key": "example.com/more", "effect": "NoExecute"});
    let unlisted = json!({"key": LISTED, "effect": "NoSchedule"});
    let kept = json!({"key": "machinist.dev/not-ready", "effect": "NoSchedule"});
    vec![
        (
            "a label",
            token.merge(&label),
            "labels not listed in the annotation machinist.dev/names of this policy: node-role",
        ),
        (
            "a label by the status",
            token.status(&label),
            "labels not listed in the annotation machinist.dev/names of this policy: node-role",
        ),
        (
            "a label that others set",
            token.merge(&metadata(json!({"labels": {"example.com/theirs": null}}))),
            "labels not listed in the annotation machinist.dev/names of this policy: example.com/theirs",
        ),
        (
            "an annotation",
            token.merge(&metadata(json!({"annotations": {"example.com/x": "y"}}))),
            "annotations not listed in the annotation machinist.dev/names of this policy: example.com/x",
        ),
        (
            "the config that it is to have",
            token.merge(&metadata(json!({"annotations": desired}))),
            "desiredConfig",
        ),
        (
            "an annotation by the status",
            token.status(&metadata(json!({"annotations": {"example.com/x": "y"}}))),
            "annotations not listed in the annotation machinist.dev/names of this policy: example.com/x",
        ),
        (
            "a taint",
            taints(json!({"op": "add", "path": "/spec/taints/-", "value": theirs})),
            "taints not listed in the annotation machinist.dev/names of this policy: example.com/more",
        ),
        (
            "a taint of a declaration that is not listed",
            taints(json!({"op": "add", "path": "/spec/taints/-", "value": unlisted})),
            "taints not listed in the annotation machinist.dev/names of this policy: acme.dev/serial",
        ),
        (
            "taking the taints of others",
            taints(json!({"op": "add", "path": "/spec/taints", "value": [kept]})),
            "example.com/theirs",
        ),
        (
            "a finalizer",
            token.merge(&metadata(json!({"finalizers": ["example.com/x"]}))),
            "may not change metadata of a Node: finalizers",
        ),
        (
            "a finalizer by the status",
            token.status(&metadata(json!({"finalizers": ["example.com/x"]}))),
            "may not change metadata of a Node: finalizers",
        ),
        (
            "an owner",
            token.merge(&metadata(json!({"ownerReferences": owner}))),
            "may not change metadata of a Node: ownerReferences",
        ),
        (
            "the provider's name",
            token.merge(&json!({"spec": {"providerID": "lab://x"}})),
            "may not change the spec of a Node: providerID",
        ),
        (
            "another Node",
            token.run(
                &[
                    "patch",
                    "node",
                    OTHER,
                    "-p",
                    r#"{"spec":{"unschedulable":true}}"#,
                ],
                "",
            ),
            "other is not the node of the agent's token",
        ),
    ]
}

fn of_the_status(token: &Token<'_>) -> Vec<Refused> {
    let status = |fields: Value| token.status(&json!({"status": fields}));
    let address = json!([{"type": "InternalIP", "address": "10.0.0.9"}]);
    let message = "may not change the status of a Node: ";
    let theirs = "may not change conditions of a Node";
    let condition = |status: &str| json!([{"type": "Ready", "status": status}]);
    let gone = json!([{"type": "Ready", "$patch": "delete"}]);
    vec![
        (
            "capacity",
            status(json!({"capacity": {"cpu": "64"}})),
            message,
        ),
        (
            "an extended resource",
            status(json!({"capacity": {"acme.dev/serial": "9"}})),
            message,
        ),
        (
            "what is allocatable",
            status(json!({"allocatable": {"cpu": "64"}})),
            message,
        ),
        ("addresses", status(json!({"addresses": address})), message),
        (
            "where the kubelet listens",
            status(json!({"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}})),
            message,
        ),
        (
            "images",
            status(json!({"images": [{"names": ["example.com/x"]}]})),
            message,
        ),
        (
            "the kubelet's condition",
            status(json!({"conditions": condition("True")})),
            theirs,
        ),
        (
            "taking the kubelet's condition",
            status(json!({"conditions": gone})),
            theirs,
        ),
    ]
}

fn events(token: &Token<'_>) {
    let create = |text: &str| token.run(&["create", "-f", "-"], text);
    create(&event("lab-own", OWN, OWN)).unwrap();
    create(&event("lab-reported", OTHER, OWN)).unwrap();
    let theirs = event("lab-theirs", OTHER, OTHER);
    token.cluster.apply(&theirs);
    let patch = |name: &str, instance: &str| {
        let series = json!({
            "reportingInstance": instance,
            "series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"},
        });
        let flags = ["--type=merge", "-p", &series.to_string()];
        token.run(
            &[&["patch", "events.v1.events.k8s.io", name][..], &flags].concat(),
            "",
        )
    };
    patch("lab-own", OWN).unwrap();
    let message = "neither about the node of the agent's token nor reported by it: \"own\"";
    is_refused(vec![
        (
            "an event of another node",
            create(&event("lab-more", OTHER, OTHER)),
            message,
        ),
        ("another node's event", patch("lab-theirs", OTHER), message),
    ]);
}

fn configs(token: &Token<'_>) {
    let config = json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
        "metadata": {"name": "rendered-a"},
        "spec": {"config": {"ignition": {"version": "3.5.0"}}},
    });
    token.cluster.apply(&config.to_string());
    let run = |arguments: &[&str]| token.run(arguments, "");
    run(&["get", "machineconfig", "rendered-a"]).unwrap();
    let message = "orbidden";
    is_refused(vec![
        (
            "a list of configs",
            run(&["get", "machineconfigs"]),
            message,
        ),
        (
            "a change of a config",
            run(&["label", "machineconfig", "rendered-a", "x=y"]),
            message,
        ),
    ]);
}

/// Names that the administrator lists in the policy take effect; without a list no others are
/// allowed, whereas the agent's own requests pass.
fn names(token: &Token<'_>) {
    let policy = [
        "annotate",
        "validatingadmissionpolicy",
        "machinist-node-names",
    ];
    let annotate = |names: &str| token.cluster.kubectl(&[&policy[..], &[names]].concat());
    annotate(&format!(
        "machinist.dev/names=example.com/a, {LISTED}\nexample.com/c"
    ));
    let taint = json!({"key": LISTED, "effect": "NoSchedule"});
    let add = json!([{"op": "add", "path": "/spec/taints/-", "value": taint}]);
    wait::until("a listed taint to be accepted", wait::seconds(60), || {
        token.patch("--type=json", &add).is_ok()
    });
    let label = |name: &str| token.merge(&json!({"metadata": {"labels": {name: "x"}}}));
    for name in ["example.com/a", "example.com/c"] {
        label(name).unwrap();
    }
    let message =
        "labels not listed in the annotation machinist.dev/names of this policy: example.com/b";
    is_refused(vec![(
        "a label that is not listed",
        label("example.com/b"),
        message,
    )]);

    annotate("machinist.dev/names-");
    let removed = json!({"metadata": {"labels": {"example.com/a": null}}});
    let mut tries = 0;
    wait::until("the list to have no effect", wait::seconds(60), || {
        tries += 1;
        let changed = json!({"labels": {"example.com/c": tries.to_string()}});
        token.merge(&json!({"metadata": changed})).is_err()
    });
    is_refused(vec![
        (
            "a label when the list is missing",
            token.merge(&removed),
            "labels not listed in the annotation machinist.dev/names of this policy: example.com/a",
        ),
        (
            "a taint when the list is missing",
            token.merge(&json!({"spec": {"taints": []}})),
            "taints not listed in the annotation machinist.dev/names of this policy: ",
        ),
    ]);
    agents_own_changes(token);
}
