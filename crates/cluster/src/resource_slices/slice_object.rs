//! One ResourceSlice, desired and observed.

use kube::api::{ApiResource, DynamicObject};
use serde_json::{Value, json};

use super::KIND;
use machinist_device::{dra::DRIVER_NAME, resource_name::hex16};

/// Maximum length of an object name in bytes.
const MAX_OBJECT_NAME_LEN: usize = 253;

/// The desired slice, without the fields that all slices of the pool share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DesiredSlice {
    pub(super) name: String,
    pub(super) devices: Vec<Value>,
}

impl DesiredSlice {
    pub(super) fn has_taints(&self) -> bool {
        self.devices.iter().any(is_tainted)
    }
}

/// The slice as the server has it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ObservedSlice {
    pub(super) generation: u64,
    /// The `spec` without the times of taints.
    pub(super) spec: Value,
    /// The `spec` with the times of taints.
    whole: Value,
    /// The slice that was written, if the server stored this object for it.
    pub(super) meant: Option<DesiredSlice>,
}

impl ObservedSlice {
    pub(super) fn of(object: &DynamicObject, meant: Option<&DesiredSlice>) -> Self {
        let whole = object.data.get("spec").cloned().unwrap_or_default();
        Self {
            generation: whole["pool"]["generation"].as_u64().unwrap_or(0),
            spec: plain(object),
            whole,
            meant: meant.cloned(),
        }
    }

    /// Whether it matches the desired slice in a pool of `count` slices.
    pub(super) fn is(&self, wanted: &DesiredSlice, count: usize) -> bool {
        let devices = || self.spec["devices"].as_array().map(Vec::as_slice);
        let same = self.meant.as_ref() == Some(wanted)
            || devices().unwrap_or_default() == wanted.devices.as_slice();
        same && self.spec["pool"]["resourceSliceCount"] == json!(count)
    }

    pub(super) fn has_taints(&self) -> bool {
        let devices = self.spec["devices"].as_array();
        devices.is_some_and(|devices| devices.iter().any(is_tainted))
    }

    /// Keeps `timeAdded` of taints that still exist.
    pub(super) fn keep_times(&self, object: &mut Value) {
        let known = self.whole["devices"].as_array();
        let wanted = object["spec"]["devices"].as_array_mut();
        for device in wanted.into_iter().flatten() {
            let same = known
                .into_iter()
                .flatten()
                .find(|known| known["name"] == device["name"]);
            for taint in taints(device) {
                let before = same.map(all_taints).unwrap_or_default();
                let before = before.iter().find(|before| before["key"] == taint["key"]);
                if let Some(time) = before.and_then(|before| before.get("timeAdded")) {
                    taint["timeAdded"] = time.clone();
                }
            }
        }
    }
}

/// The name of a slice from node, driver and index; a node name that is too long is replaced by its
/// hash.
pub(super) fn name(node: &str, at: usize) -> String {
    let name = format!("{node}-{DRIVER_NAME}-{at}");
    match name.len() <= MAX_OBJECT_NAME_LEN {
        true => name,
        false => format!("{DRIVER_NAME}-{}-{at}", hex16(node)),
    }
}

/// The object to send. Its owner is the Node, so it is deleted with it.
pub(super) fn object(
    api: &ApiResource,
    node: &str,
    owner: &str,
    wanted: &DesiredSlice,
    (generation, count): (u64, usize),
) -> Value {
    json!({
        "apiVersion": api.api_version, "kind": KIND,
        "metadata": {"name": wanted.name, "ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": node, "uid": owner, "controller": true},
        ]},
        "spec": {
            "driver": DRIVER_NAME,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": count},
            "devices": wanted.devices,
        },
    })
}

/// The comparable part of the spec: the server sets the times of taints itself.
pub(super) fn plain(object: &DynamicObject) -> Value {
    let mut spec = object.data.get("spec").cloned().unwrap_or_default();
    for device in spec["devices"].as_array_mut().into_iter().flatten() {
        for taint in taints(device) {
            if let Some(taint) = taint.as_object_mut() {
                taint.remove("timeAdded");
            }
        }
    }
    spec
}

/// `v1beta1` nests the taints one level deeper.
fn taints(device: &mut Value) -> impl Iterator<Item = &mut Value> {
    let at = if device.get("basic").is_some() {
        "/basic/taints"
    } else {
        "/taints"
    };
    let taints = device.pointer_mut(at).and_then(Value::as_array_mut);
    taints.into_iter().flatten()
}

fn all_taints(device: &Value) -> Vec<Value> {
    let mut device = device.clone();
    taints(&mut device).map(|taint| taint.clone()).collect()
}

fn is_tainted(device: &Value) -> bool {
    !all_taints(device).is_empty()
}
