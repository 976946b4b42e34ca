//! One ResourceSlice: as it is wanted, and as it is.

use kube::api::{ApiResource, DynamicObject};
use serde_json::{Value, json};

use super::KIND;
use crate::device::{dra::DRIVER, name::hex16};

/// The longest name of an object.
const LONGEST: usize = 253;

/// A slice as it should be, but for what all slices of the pool have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) name: String,
    pub(super) devices: Vec<Value>,
}

impl Wanted {
    pub(super) fn has_taints(&self) -> bool {
        self.devices.iter().any(is_tainted)
    }
}

/// A slice as the server has it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Slice {
    pub(super) generation: u64,
    /// The `spec`, without the times of taints.
    pub(super) spec: Value,
    /// With them.
    whole: Value,
    /// What we wrote, where this is what the server made of it.
    pub(super) meant: Option<Wanted>,
}

impl Slice {
    pub(super) fn of(object: &DynamicObject, meant: Option<&Wanted>) -> Self {
        let whole = object.data.get("spec").cloned().unwrap_or_default();
        Self {
            generation: whole["pool"]["generation"].as_u64().unwrap_or(0),
            spec: plain(object),
            whole,
            meant: meant.cloned(),
        }
    }

    /// Whether it says what is wanted, as one of so many.
    pub(super) fn is(&self, wanted: &Wanted, count: usize) -> bool {
        let devices = || self.spec["devices"].as_array().map(Vec::as_slice);
        let same = self.meant.as_ref() == Some(wanted)
            || devices().unwrap_or_default() == wanted.devices.as_slice();
        same && self.spec["pool"]["resourceSliceCount"] == json!(count)
    }

    pub(super) fn has_taints(&self) -> bool {
        let devices = self.spec["devices"].as_array();
        devices.is_some_and(|devices| devices.iter().any(is_tainted))
    }

    /// A taint that stays has been there since then.
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

/// A name for each place in the pool: the node's and the driver's, or what stands for them where they are too long.
pub(super) fn name(node: &str, at: usize) -> String {
    let name = format!("{node}-{DRIVER}-{at}");
    match name.len() <= LONGEST {
        true => name,
        false => format!("{DRIVER}-{}-{at}", hex16(node)),
    }
}

/// The object as it is sent. It goes with its Node.
pub(super) fn object(
    api: &ApiResource,
    node: &str,
    owner: &str,
    wanted: &Wanted,
    (generation, count): (u64, usize),
) -> Value {
    json!({
        "apiVersion": api.api_version, "kind": KIND,
        "metadata": {"name": wanted.name, "ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": node, "uid": owner, "controller": true},
        ]},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": count},
            "devices": wanted.devices,
        },
    })
}

/// What can be compared: the server dates taints by itself.
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

/// `v1beta1` has them one level deeper.
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
