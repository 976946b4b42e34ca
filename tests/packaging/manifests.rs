//! The manifests of the agent.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use k8s_openapi::api::core::v1 as core;
use machinist_drain::{PodToleration, Taint, TolerationTime, evaluate_taints};
use serde_json::{Value, json};

use super::{documents, resources, shipped};

const ACCOUNT: &str = "system:serviceaccount:machinist-system:machinist";

/// A directory's documents with those of the directories that it includes.
fn all(dir: &str) -> Vec<Value> {
    let mut found = Vec::new();
    for name in resources(dir) {
        let path = shipped(dir).join(&name);
        if path.is_dir() {
            found.extend(all(&format!("{dir}/{name}")));
        } else {
            found.extend(documents(&fs::read_to_string(path).unwrap()));
        }
    }
    found
}

fn only(dir: &str, kind: &str) -> Value {
    let mut found: Vec<_> = all(dir)
        .into_iter()
        .filter(|one| one["kind"] == kind)
        .collect();
    assert_eq!(found.len(), 1, "{kind} in {dir}");
    found.remove(0)
}

fn pod() -> Value {
    only("base", "DaemonSet")["spec"]["template"]["spec"].clone()
}

/// Resources and verbs of a directory's roles.
fn allowed(dir: &str) -> BTreeSet<(String, String)> {
    let roles = all(dir)
        .into_iter()
        .filter(|one| one["kind"] == "ClusterRole" || one["kind"] == "Role");
    let mut found = BTreeSet::new();
    for role in roles {
        for rule in role["rules"].as_array().unwrap() {
            for resource in texts(&rule["resources"]) {
                for verb in texts(&rule["verbs"]) {
                    assert!(
                        found.insert((resource.clone(), verb.clone())),
                        "{resource} {verb} twice"
                    );
                }
            }
            assert!(!texts(&rule["apiGroups"]).contains(&"*".to_owned()));
        }
    }
    found
}

fn texts(list: &Value) -> Vec<String> {
    serde_json::from_value(list.clone()).unwrap()
}

/// The rows of the table at the beginning of a role's file: resource, verbs, caller.
fn documented_rows(file: &str) -> BTreeSet<(String, String)> {
    let text = fs::read_to_string(shipped(file)).unwrap();
    let rows = text
        .lines()
        .skip_while(|line| !line.starts_with("# resource "))
        .skip(1)
        .take_while(|line| line.starts_with("# "));
    rows.flat_map(|row| {
        let cells: Vec<_> = row[2..]
            .split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .collect();
        assert_eq!(cells.len(), 3, "{row}");
        let verbs = cells[1].split(' ').map(str::to_owned);
        verbs
            .map(|verb| (cells[0].to_owned(), verb))
            .collect::<Vec<_>>()
    })
    .collect()
}

#[test]
fn the_agent_stays_on_a_node_with_any_taint() {
    let given: Vec<core::Toleration> =
        serde_json::from_value(pod()["tolerations"].clone()).unwrap();
    let tolerations: Vec<_> = given
        .iter()
        .map(|one| PodToleration::try_from(one).unwrap())
        .collect();
    let keys = ["not-ready", "unreachable", "disk-pressure", "pid-pressure"];
    let keys = keys.map(|key| format!("node.kubernetes.io/{key}"));
    for key in keys.iter().map(String::as_str).chain(["example.com/mine"]) {
        for effect in ["NoSchedule", "PreferNoSchedule", "NoExecute"] {
            let taint = json!({"key": key, "value": "x", "effect": effect});
            let taint: core::Taint = serde_json::from_value(taint).unwrap();
            let found = evaluate_taints(&[Taint::read(&taint).unwrap()], &tolerations);
            assert!(found.schedulable && !found.avoided, "{key} {effect}");
            assert_eq!(found.stay, TolerationTime::Forever, "{key} {effect}");
        }
    }
}

#[test]
fn the_daemon_set_manifest_has_the_required_fields() {
    let set = only("base", "DaemonSet");
    let pod = pod();
    assert_eq!(set["metadata"]["namespace"], "machinist-system");
    assert_eq!(set["spec"]["updateStrategy"]["type"], "RollingUpdate");
    let labels = &set["spec"]["template"]["metadata"]["labels"];
    let selected = set["spec"]["selector"]["matchLabels"].as_object().unwrap();
    assert!(selected.iter().all(|(key, value)| &labels[key] == value));

    let account = only("base", "ServiceAccount");
    assert_eq!(account["metadata"]["name"], pod["serviceAccountName"]);
    assert_eq!(account["metadata"]["namespace"], "machinist-system");
    assert_ne!(pod["serviceAccountName"], "default");
    assert_eq!(pod["priorityClassName"], "system-node-critical");
    assert_eq!(pod["nodeSelector"], json!({"kubernetes.io/os": "linux"}));
    assert_eq!(pod["hostNetwork"], true);
    assert!(pod["hostPID"].is_null() && pod["hostIPC"].is_null());

    let containers = pod["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 1);
    let agent = &containers[0];
    let env = agent["env"].as_array().unwrap();
    for (name, field) in [("NODE_NAME", "spec.nodeName"), ("POD_UID", "metadata.uid")] {
        let one = env.iter().find(|one| one["name"] == name).unwrap();
        assert_eq!(one["valueFrom"]["fieldRef"]["fieldPath"], field, "{name}");
    }
    for resource in ["cpu", "memory"] {
        assert!(agent["resources"]["requests"][resource].is_string());
    }
    let mounts = agent["volumeMounts"].as_array().unwrap();
    let of = |volume: &str| mounts.iter().find(|one| one["name"] == volume).unwrap();
    assert_eq!(of("host")["mountPath"], "/host");
    assert_eq!(of("host")["mountPropagation"], "HostToContainer");
    assert!(of("settings")["subPath"].is_null(), "it would never change");
    assert!(mounts.iter().all(|one| one["mountPath"] != "/"));
    let volumes = pod["volumes"].as_array().unwrap();
    let host = volumes.iter().find(|one| one["name"] == "host").unwrap();
    assert_eq!(host["hostPath"]["path"], "/");
}

#[test]
fn probes_use_the_agents_port_and_paths() {
    let text = fs::read_to_string(shipped("base/machinist.yaml")).unwrap();
    let settings = documents(&text).remove(0);
    let pod = pod();
    let agent = &pod["containers"][0];
    let probes = [
        ("startupProbe", "/livez"),
        ("livenessProbe", "/livez"),
        ("readinessProbe", "/readyz/agent"),
    ];
    for (name, path) in probes {
        let ask = &agent[name]["httpGet"];
        let at = format!("{}:{}", ask["host"].as_str().unwrap(), ask["port"]);
        assert_eq!(settings["admin"]["listen"], *at, "{name}");
        assert_eq!(ask["path"], path, "{name}");
    }
}

#[test]
fn the_image_is_named_by_digest() {
    let text = fs::read_to_string(shipped("base/kustomization.yaml")).unwrap();
    let kustomization = documents(&text).remove(0);
    let pod = pod();
    let image = &kustomization["images"][0];
    assert_eq!(pod["containers"][0]["image"], image["name"]);
    let digest = image["digest"].as_str().unwrap();
    let hex = digest.strip_prefix("sha256:").unwrap();
    assert!(hex.len() == 64 && hex.bytes().all(|c| c.is_ascii_hexdigit()));
    assert!(image["newTag"].is_null());
}

#[test]
fn a_default_node_selector_does_not_affect_the_agent() {
    let namespace = only("base", "Namespace");
    assert_eq!(namespace["metadata"]["name"], "machinist-system");
    let annotations = &namespace["metadata"]["annotations"];
    assert_eq!(annotations["openshift.io/node-selector"], "");
    let labels = &namespace["metadata"]["labels"];
    assert_eq!(labels["pod-security.kubernetes.io/enforce"], "privileged");
}

#[test]
fn the_agents_security_context_constraint_is_for_its_account_only() {
    let constraint = only("overlays/openshift", "SecurityContextConstraints");
    assert_eq!(constraint["metadata"]["name"], "machinist");
    assert_eq!(constraint["users"], json!([ACCOUNT]));
    assert_eq!(constraint["groups"], json!([]));
    let pod = pod();
    assert_eq!(constraint["allowHostNetwork"], pod["hostNetwork"]);
    for more in ["allowHostPID", "allowHostIPC", "allowHostPorts"] {
        assert_eq!(constraint[more], false, "{more}");
    }
    for role in all("overlays/openshift") {
        assert!(!role["rules"].to_string().contains("security.openshift.io"));
    }
}

#[test]
fn the_openshift_overlay_has_no_crds_pools_or_config_role() {
    let kinds: BTreeSet<_> = all("overlays/openshift")
        .iter()
        .map(|one| one["kind"].as_str().unwrap().to_owned())
        .collect();
    assert!(!kinds.contains("CustomResourceDefinition"), "{kinds:?}");
    assert!(!kinds.contains("MachineConfigPool"), "{kinds:?}");
    let text = fs::read_to_string(shipped("overlays/openshift/machinist.yaml")).unwrap();
    assert_eq!(
        documents(&text)[0]["roles"],
        json!(["devices", "readiness"])
    );
    let may = allowed("overlays/openshift");
    assert!(may.iter().all(|(resource, _)| !resource.contains("pod")));
}

#[test]
fn rbac_roles_allow_exactly_the_documented_rules() {
    assert_eq!(allowed("base"), documented_rows("base/role.yaml"));
    assert_eq!(allowed("updates"), documented_rows("updates/role.yaml"));
    let controller = documented_rows("controller/role.yaml");
    assert_eq!(allowed("controller"), controller);
    let may = allowed("overlays/vanilla");
    let expected: BTreeSet<_> = allowed("base")
        .union(&allowed("updates"))
        .cloned()
        .collect();
    assert_eq!(may, expected);
    let never = [
        "secrets",
        "configmaps",
        "serviceaccounts/token",
        "pods/exec",
        "*",
    ];
    for (resource, verb) in &may {
        assert!(!never.contains(&resource.as_str()), "{resource}");
        assert!(
            ["get", "list", "watch", "create", "patch", "delete"].contains(&verb.as_str()),
            "{verb}"
        );
        let changes = ["create", "delete"].contains(&verb.as_str());
        let known = [
            "events",
            "pods",
            "pods/eviction",
            "machineconfignodes",
            "resourceslices",
        ];
        assert!(
            !changes || known.contains(&resource.as_str()),
            "{verb} {resource}"
        );
    }
    for binding in all("overlays/vanilla") {
        if binding["kind"] == "ClusterRoleBinding" {
            let subject = json!([{"kind": "ServiceAccount", "name": "machinist", "namespace": "machinist-system"}]);
            assert_eq!(binding["subjects"], subject);
            assert_eq!(binding["roleRef"]["name"], binding["metadata"]["name"]);
        }
    }
}

#[test]
fn every_write_allowed_by_rbac_is_restricted_to_the_agents_own_node() {
    let policies: Vec<_> = all("policies")
        .into_iter()
        .filter(|one| one["kind"] == "ValidatingAdmissionPolicy")
        .collect();
    let mut judged = BTreeSet::new();
    for policy in &policies {
        let spec = &policy["spec"];
        assert_eq!(spec["failurePolicy"], "Fail");
        let condition = spec["matchConditions"][0]["expression"].as_str().unwrap();
        assert!(condition.contains(ACCOUNT), "{condition}");
        for rule in spec["matchConstraints"]["resourceRules"]
            .as_array()
            .unwrap()
        {
            for resource in texts(&rule["resources"]) {
                for operation in texts(&rule["operations"]) {
                    judged.insert((resource.clone(), operation));
                }
            }
        }
        let bound = all("policies").into_iter().any(|one| {
            one["kind"] == "ValidatingAdmissionPolicyBinding"
                && one["spec"]["policyName"] == policy["metadata"]["name"]
                && one["spec"]["validationActions"] == json!(["Deny"])
        });
        assert!(bound, "{}", policy["metadata"]["name"]);
    }
    for (resource, verb) in allowed("overlays/vanilla") {
        let operation = match verb.as_str() {
            "create" => "CREATE",
            "patch" => "UPDATE",
            "delete" => "DELETE",
            _ => continue,
        };
        let judged = judged.contains(&(resource.clone(), operation.to_owned()));
        assert!(judged, "{verb} {resource}");
    }
}

/// The API server does not evaluate a policy whose parameter is missing: this one is its own.
#[test]
fn the_policy_of_node_names_cannot_be_without_its_parameter_and_lists_no_names() {
    let of = |kind: &str| {
        let mut all = all("policies").into_iter();
        let found = all
            .find(|one| one["kind"] == kind && one["metadata"]["name"] == "machinist-node-names");
        found.unwrap()
    };
    let binding = of("ValidatingAdmissionPolicyBinding");
    let policy = of("ValidatingAdmissionPolicy");
    assert!(policy["metadata"]["annotations"].is_null());
    let parameter = &binding["spec"]["paramRef"];
    assert_eq!(parameter["name"], policy["metadata"]["name"]);
    let kind = &policy["spec"]["paramKind"];
    for field in ["apiVersion", "kind"] {
        assert_eq!(kind[field], policy[field]);
    }
    let texts = policy.to_string();
    assert!(texts.contains(machinist_kube_api::keys::label::NO_REMEDIATION));
    assert!(texts.contains(machinist_kube_api::keys::GROUP));
}

/// In the container, the program itself prevents core dumps.
#[test]
fn every_shipped_unit_that_starts_the_program_prevents_core_dumps() {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd");
    let mut starts = 0;
    for entry in fs::read_dir(units).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let mut lines = text.lines();
        if lines.any(|line| line.starts_with("ExecStart=") && line.contains("/machinist")) {
            starts += 1;
            let limits: Vec<_> = text
                .lines()
                .filter(|line| line.starts_with("LimitCORE="))
                .collect();
            assert_eq!(limits, ["LimitCORE=0"], "{}", path.display());
        }
    }
    assert_eq!(starts, 3);
}

#[test]
fn the_mounted_settings_are_read_by_the_program() {
    for settings in ["base/machinist.yaml", "overlays/openshift/machinist.yaml"] {
        // A ConfigMap is mounted as links to a directory that is exchanged as a whole.
        let mount = tempfile::tempdir().unwrap();
        let at = |name: &str| mount.path().join(name);
        fs::create_dir(at("..1")).unwrap();
        fs::copy(shipped(settings), at("..1/machinist.yaml")).unwrap();
        std::os::unix::fs::symlink("..1", at("..data")).unwrap();
        std::os::unix::fs::symlink("..data/machinist.yaml", at("machinist.yaml")).unwrap();
        let output = settings_of(mount.path());
        assert!(output.contains("\"cluster\""), "{output}");
    }
}

fn settings_of(dir: &Path) -> String {
    let root = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_machinist"))
        .arg("--root")
        .arg(root.path())
        .arg("--config")
        .arg(dir)
        .args(["settings", "-o", "json"])
        .env_clear()
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The pods that replace the agents: each touches its own node only, and is ready when it is done.
#[test]
fn uninstall_pods_equal_agent_pods_except_for_arguments() {
    let text = fs::read_to_string(shipped("uninstall/daemonset.yaml")).unwrap();
    let patch = documents(&text).remove(0);
    let set = only("base", "DaemonSet");
    for field in ["name", "namespace"] {
        assert_eq!(patch["metadata"][field], set["metadata"][field]);
    }
    let (changed, agent) = (&patch["spec"]["template"]["spec"], &pod()["containers"][0]);
    let (first, stays) = (&changed["initContainers"][0], &changed["containers"][0]);
    let mut args = vec![
        "--root",
        "/host",
        "--config",
        "/etc/machinist",
        "uninstall",
        "--yes",
    ];
    assert_eq!(first["args"], json!(args));
    args.push("--stay");
    assert_eq!(stays["args"], json!(args));
    assert_eq!(stays["name"], agent["name"]);
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        assert!(agent[probe].is_object() && stays.as_object().unwrap()[probe].is_null());
    }
    assert_eq!(first["securityContext"], agent["securityContext"]);
    // The cluster's device declarations do not concern them.
    let mounts = agent["volumeMounts"].as_array().unwrap().iter();
    let devices = |one: &&Value| one["name"] != "devices" && one["name"] != "vendors";
    let mounts: Vec<_> = mounts.filter(devices).cloned().collect();
    assert_eq!(first["volumeMounts"], json!(mounts));
    assert!(
        first["env"]
            .as_array()
            .unwrap()
            .iter()
            .all(|one| agent["env"].as_array().unwrap().contains(one))
    );
    let base = fs::read_to_string(shipped("base/kustomization.yaml")).unwrap();
    let image = &documents(&base)[0]["images"][0]["newName"];
    assert_eq!(first["image"], *image, "one entry of `images` names both");
}

#[test]
fn the_probes_of_the_controller_use_the_port_that_it_listens_on() {
    let all = all("controller");
    let deployment = all.iter().find(|one| one["kind"] == "Deployment").unwrap();
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let arguments = container["args"].as_array().unwrap();
    let listen = arguments
        .iter()
        .find_map(|it| it.as_str().unwrap().strip_prefix("--listen="))
        .unwrap();
    let listen: std::net::SocketAddr = listen.parse().unwrap();
    assert!(
        listen.ip().is_unspecified(),
        "the kubelet is outside the pod"
    );
    assert_eq!(container["ports"][0]["containerPort"], listen.port());
    for (probe, path) in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")] {
        let request = &container[probe]["httpGet"];
        assert_eq!(*request, json!({"port": listen.port(), "path": path}));
    }
}

#[test]
fn every_packaged_manifest_is_used_by_a_kustomization() {
    for dir in [
        "base",
        "controller",
        "updates",
        "plugins",
        "policies",
        "uninstall",
        "overlays/vanilla",
        "overlays/openshift",
    ] {
        let text = fs::read_to_string(shipped(dir).join("kustomization.yaml")).unwrap();
        for entry in fs::read_dir(shipped(dir)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(
                name == "kustomization.yaml" || text.contains(&name),
                "{dir}/{name}"
            );
        }
    }
}

#[test]
fn only_the_plugin_directory_of_labelled_pods_is_redirected() {
    let all = all("plugins");
    let policies: Vec<_> = all
        .iter()
        .filter(|one| one["kind"] == "MutatingAdmissionPolicy")
        .collect();
    assert_eq!(policies.len(), 2);
    let label = "machinist.dev/device-plugin";
    let there = json!({"key": label, "operator": "Exists"});
    for policy in &policies {
        let matched = &policy["spec"]["matchConstraints"];
        let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}]);
        assert_eq!(matched["resourceRules"], rules);
        let selects = |selector: &str| matched[selector]["matchExpressions"] == json!([there]);
        assert!(
            selects("objectSelector") ^ selects("namespaceSelector"),
            "{matched}"
        );
        let mutations = policy["spec"]["mutations"].as_array().unwrap();
        let [mutation] = mutations.as_slice() else {
            panic!("{mutations:?}");
        };
        let expression = mutation["applyConfiguration"]["expression"].as_str();
        let to = format!(
            "'{}/' + variables.vendor",
            machinist_device_plugins::plugin_proxy::VENDOR_DIRS_ROOT
        );
        let from = format!("'{}'", machinist_device_plugins::kubelet::DEVICE_PLUGIN_DIR);
        assert!(expression.unwrap().contains(&to) && expression.unwrap().contains(&from));
        let bound = all.iter().filter(|one| {
            one["kind"] == "MutatingAdmissionPolicyBinding"
                && one["spec"]["policyName"] == policy["metadata"]["name"]
        });
        assert_eq!(bound.count(), 1);
    }
    for dir in ["overlays/vanilla", "overlays/openshift"] {
        let text = fs::read_to_string(shipped(dir).join("kustomization.yaml")).unwrap();
        assert!(
            !text.contains("plugins"),
            "{dir} must suit older API servers"
        );
    }
}
