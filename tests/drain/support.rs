//! Pods and budgets as the API server sends them.

use jiff::Timestamp;
use machinist_drain::{DisruptionBudget, Pod};
use serde_json::{Value, json};

/// 2027-01-15T08:00:00Z plus this many seconds.
pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

/// A pod as JSON of the API, merged from parts.
#[derive(Clone, Debug)]
pub(crate) struct Made(pub(crate) Value);

/// A pod `shop/NAME` with the label `app: shop` that runs, is ready and belongs to a ReplicaSet.
pub(crate) fn made(name: &str) -> Made {
    Made(json!({
        "metadata": {"namespace": "shop", "name": name, "uid": format!("uid-{name}"),
            "labels": {"app": "shop"}},
        "spec": {"nodeName": "a", "containers": []},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }))
    .owned_by("ReplicaSet", "web")
}

impl Made {
    pub(crate) fn with(mut self, more: Value) -> Self {
        merge(&mut self.0, more);
        self
    }
    pub(crate) fn owned_by(self, kind: &str, name: &str) -> Self {
        let group = if kind == "Job" { "batch/v1" } else { "apps/v1" };
        self.with(
            json!({"metadata": {"ownerReferences": [{"apiVersion": group, "kind": kind,
            "name": name, "uid": "o", "controller": true}]}}),
        )
    }
    pub(crate) fn bare(self) -> Self {
        self.with(json!({"metadata": {"ownerReferences": []}}))
    }
    pub(crate) fn local_data(self) -> Self {
        self.with(
            json!({"spec": {"volumes": [{"name": "scratch", "emptyDir": {"medium": "Memory"}},
            {"name": "code", "hostPath": {"path": "/code"}}]}}),
        )
    }
    pub(crate) fn finished(self, phase: &str) -> Self {
        self.with(json!({"status": {"phase": phase}}))
    }
    pub(crate) fn unready(self) -> Self {
        self.with(json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}))
    }
    pub(crate) fn priority(self, priority: i32) -> Self {
        self.with(json!({"spec": {"priority": priority}}))
    }
    pub(crate) fn grace(self, seconds: i64) -> Self {
        self.with(json!({"spec": {"terminationGracePeriodSeconds": seconds}}))
    }
    pub(crate) fn in_namespace(self, namespace: &str) -> Self {
        self.with(json!({"metadata": {"namespace": namespace}}))
    }
    pub(crate) fn finalizers(self, names: &[&str]) -> Self {
        self.with(json!({"metadata": {"finalizers": names}}))
    }
    pub(crate) fn deleting_by(self, deadline: Timestamp) -> Self {
        self.with(
            json!({"metadata": {"deletionTimestamp": deadline.to_string(),
            "deletionGracePeriodSeconds": 30}}),
        )
    }
    pub(crate) fn ended(self) -> Self {
        self.with(
            json!({"status": {"containerStatuses": [{"name": "c", "image": "i", "imageID": "",
            "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 0}}}]}}),
        )
    }
    pub(crate) fn pod(&self) -> Pod {
        let pod: k8s_openapi::api::core::v1::Pod = serde_json::from_value(self.0.clone()).unwrap();
        Pod::from(&pod)
    }
}

/// Lists replace lists, objects are merged.
pub(crate) fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}

/// A budget `shop/NAME` for `app: shop`, with its numbers: allowed, current, desired, expected.
pub(crate) fn budget(name: &str, spec: Value, counts: [i32; 4]) -> DisruptionBudget {
    let mut made = json!({
        "metadata": {"namespace": "shop", "name": name, "generation": 1},
        "spec": {"selector": {"matchLabels": {"app": "shop"}}},
        "status": {"observedGeneration": 1, "disruptionsAllowed": counts[0],
            "currentHealthy": counts[1], "desiredHealthy": counts[2], "expectedPods": counts[3]},
    });
    merge(&mut made["spec"], spec);
    from_api(made)
}

pub(crate) fn from_api(budget: Value) -> DisruptionBudget {
    let budget: k8s_openapi::api::policy::v1::PodDisruptionBudget =
        serde_json::from_value(budget).unwrap();
    DisruptionBudget::from(&budget)
}
