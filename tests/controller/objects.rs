//! The objects of a small cluster, as administrators and agents write them.

use machinist_kube_api::keys::{annotation, protocol};
use machinist_pool::{DRAIN_PHASE, Grant, GrantEnd, GrantOutcome, UpdateTimes};
use serde_json::{Value, json};

use super::harness::Lab;

pub(crate) const NODES: &str = "/api/v1/nodes";
pub(crate) const POOLS: &str = "/apis/machineconfiguration.openshift.io/v1/machineconfigpools";
pub(crate) const CONFIGS: &str = "/apis/machineconfiguration.openshift.io/v1/machineconfigs";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
pub(crate) const BUDGETS: &str = "/apis/policy/v1/poddisruptionbudgets";
pub(crate) const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/machinist-system/leases";
pub(crate) const LEASE: &str =
    "/apis/coordination.k8s.io/v1/namespaces/machinist-system/leases/machinist-controller";
pub(crate) const GRANTOR: &str =
    "/apis/machineconfiguration.openshift.io/v1/controllerconfigs/machine-config-controller";
pub(crate) const WORKER: &str =
    "/apis/machineconfiguration.openshift.io/v1/machineconfigpools/worker";
pub(crate) const GRANTS: &str = "machinist.dev/grants";

/// The config that all nodes are on at first.
pub(crate) const OLD: &str = "rendered-worker-00000000000000000000000000000000";

pub(crate) fn node_path(name: &str) -> String {
    format!("{NODES}/{name}")
}

pub(crate) fn config_path(name: &str) -> String {
    format!("{CONFIGS}/{name}")
}

/// A ready worker whose agent is alive for the whole test.
pub(crate) fn node(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name, "uid": format!("uid-{name}"),
            "labels": {"node-role.kubernetes.io/worker": ""},
            "annotations": {
                protocol::CURRENT_CONFIG: OLD,
                protocol::DESIRED_CONFIG: OLD,
                protocol::STATE: "Done",
            },
        },
        "spec": {},
        "status": {"conditions": [
            {"type": "Ready", "status": "True"},
            {"type": "machinist.dev/Ready", "status": "True", "lastHeartbeatTime": "2027-01-01T00:00:00Z"},
        ]},
    })
}

/// The pool of the workers, whose rollouts an administrator has permitted.
pub(crate) fn pool(uid: &str) -> Value {
    json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool",
        "metadata": {
            "name": "worker", "uid": uid, "generation": 1,
            "annotations": {"machinist.dev/resume": uid, "machinist.dev/canary": "0"},
        },
        "spec": {
            "nodeSelector": {"matchLabels": {"node-role.kubernetes.io/worker": ""}},
            "machineConfigSelector": {"matchLabels": {"machineconfiguration.openshift.io/role": "worker"}},
        },
    })
}

/// A MachineConfig of the workers with one file.
pub(crate) fn config(name: &str, path: &str, content: &str) -> Value {
    json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
        "metadata": {
            "name": name, "uid": format!("uid-{name}"),
            "labels": {"machineconfiguration.openshift.io/role": "worker"},
        },
        "spec": {"config": {
            "ignition": {"version": "3.2.0"},
            "storage": {"files": [
                {"path": path, "mode": 420, "overwrite": true, "contents": {"source": format!("data:,{content}")}},
            ]},
        }},
    })
}

/// A rendered config of the workers that the controller created earlier.
pub(crate) fn rendered(name: &str, created: &str) -> Value {
    let mut config = config(name, "/etc/earlier", name);
    config["metadata"]["labels"] = json!({"machinist.dev/rendered-for": "worker"});
    config["metadata"]["creationTimestamp"] = json!(created);
    config
}

impl Lab {
    /// The config that the pool is to run.
    pub(crate) fn target(&self) -> String {
        let pool = self.server.object(WORKER);
        let name = pool["spec"]["configuration"]["name"].as_str();
        name.unwrap_or_default().to_owned()
    }

    /// The grants that the pool lists.
    pub(crate) fn grants(&self) -> Vec<Grant> {
        let pool = self.server.object(WORKER);
        let text = pool["metadata"]["annotations"][GRANTS].as_str();
        let found = machinist_pool::PoolGrants::parse("worker", text).unwrap();
        found.map(|it| it.grants).unwrap_or_default()
    }

    /// The grant that is placed on a node.
    pub(crate) fn placed(&self, node: &str) -> Option<Grant> {
        let node = self.server.object(&node_path(node));
        let text = node["metadata"]["annotations"][annotation::GRANT].as_str();
        text.map(|text| serde_json::from_str(text).unwrap())
    }

    /// The nodes of the lab on which a grant is placed.
    pub(crate) fn granted_nodes(&self) -> Vec<String> {
        let paths = self.server.below(NODES);
        let names = paths.iter().map(|path| path[NODES.len() + 1..].to_owned());
        names.filter(|name| self.placed(name).is_some()).collect()
    }

    /// The agent of a node acknowledges its grant and cordons.
    pub(crate) fn acknowledge(&self, node: &str) {
        let grant = self.placed(node).unwrap();
        self.server.edit(&node_path(node), |node| {
            let annotations = &mut node["metadata"]["annotations"];
            annotations[annotation::GRANT_ACKNOWLEDGED] = json!(grant.id);
            annotations[protocol::STATE] = json!("Working");
            node["spec"]["unschedulable"] = json!(true);
        });
    }

    /// The agent of a node ends its grant after a drain; after [`GrantOutcome::Done`] the node is on the target.
    pub(crate) fn end(&self, node: &str, outcome: GrantOutcome, reason: &str) {
        self.end_after(node, outcome, reason, &[(DRAIN_PHASE, 5), ("Staging", 1)]);
    }

    /// The same after these phases, in seconds.
    pub(crate) fn end_after(
        &self,
        node: &str,
        outcome: GrantOutcome,
        reason: &str,
        phases: &[(&str, u64)],
    ) {
        let grant = self.placed(node).unwrap();
        let phases = phases.iter();
        let times = UpdateTimes {
            phases: phases
                .map(|(name, seconds)| ((*name).to_owned(), *seconds))
                .collect(),
            blocked: 0,
        };
        let mark = GrantEnd {
            times: Some(times),
            ..grant.end(outcome.clone(), reason, self.now())
        };
        self.server.edit(&node_path(node), |node| {
            let annotations = node["metadata"]["annotations"].as_object_mut().unwrap();
            annotations.remove(annotation::GRANT);
            annotations.remove(annotation::GRANT_ACKNOWLEDGED);
            annotations.insert(
                annotation::GRANT_ENDS.to_owned(),
                json!(json!([mark]).to_string()),
            );
            let (state, current) = match outcome {
                GrantOutcome::Done => ("Done", grant.target.as_str()),
                _ => ("Degraded", OLD),
            };
            annotations.insert(protocol::STATE.to_owned(), json!(state));
            annotations.insert(protocol::CURRENT_CONFIG.to_owned(), json!(current));
            node["spec"]["unschedulable"] = json!(false);
        });
    }

    /// The events of the pool, as reason and note.
    pub(crate) fn events(&self) -> Vec<(String, String)> {
        let paths = self.server.below(EVENTS);
        let mut events: Vec<_> = paths.iter().map(|path| self.server.object(path)).collect();
        events.sort_by_key(|event| event["metadata"]["name"].to_string());
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let pool = |event: &&Value| event["regarding"]["kind"] == "MachineConfigPool";
        let pools = events.iter().filter(pool);
        pools
            .map(|event| (text(&event["reason"]), text(&event["note"])))
            .collect()
    }

    /// Whether the pool has an event with this reason, and this text in its note.
    pub(crate) fn has_event(&self, reason: &str, note: &str) -> bool {
        let events = self.events();
        events
            .iter()
            .any(|it| it.0 == reason && it.1.contains(note))
    }

    /// A condition of the pool.
    pub(crate) fn condition(&self, kind: &str) -> Value {
        let pool = self.server.object(WORKER);
        let all = pool["status"]["conditions"].as_array().cloned();
        let found = all
            .unwrap_or_default()
            .into_iter()
            .find(|it| it["type"] == kind);
        found.unwrap_or_default()
    }

    /// Whether a condition of the pool is true, with this reason.
    pub(crate) fn is(&self, kind: &str, reason: &str) -> bool {
        let condition = self.condition(kind);
        condition["status"] == "True" && condition["reason"] == reason
    }
}
