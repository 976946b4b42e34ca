//! Merges a user's policies with OpenShift's built-in ones, as OpenShift's operator does for the status of
//! `MachineConfiguration`.
//!
//! The merged list holds OpenShift's table and the user's entries, and not the table for ordinary distributions. The
//! format has no place for "the first of these units that exists", "run a oneshot again" or "except .link files": a
//! daemon of OpenShift would restart both chronyd.service and chrony.service, and fail on the one that does not exist.
//! It loses nothing: an agent has both tables, and an entry of the merged list either repeats OpenShift's row or is the
//! user's, so that an agent that reads it decides as one with its tables and the user's spec.

use serde_json::{Value, json};

use super::{
    Policies,
    builtin::{OPENSHIFT_POLICIES, OPENSHIFT_UNITS, OpenShiftRow},
};
use crate::ActionKind;
use machinist_ignition::Refusal;

/// Returns `status.nodeDisruptionPolicyStatus.clusterPolicies` of `object`, a whole `MachineConfiguration`: OpenShift's
/// built-in policies in their order, each replaced by the user's of the same path or unit, then the user's others.
///
/// At most 13 and 50 entries are merged, so that the schema's limit of 100 is kept.
///
/// # Errors
/// Every violation of the schema in `spec.nodeDisruptionPolicy`.
pub fn cluster_policies(object: &Value) -> Result<Value, Vec<Refusal>> {
    let spec = &object["spec"]["nodeDisruptionPolicy"];
    if !spec.is_null() {
        Policies::from_machine_configuration(object)?;
    }
    let ssh_key = match &spec["sshkey"] {
        Value::Null => built_in_actions(&[]),
        own => user_actions(own),
    };
    Ok(json!({
        "files": merged(OPENSHIFT_POLICIES, "path", &spec["files"]),
        "units": merged(OPENSHIFT_UNITS, "name", &spec["units"]),
        "sshkey": {"actions": ssh_key},
    }))
}

/// The entries of one list; `key` is the field that names their path or unit.
fn merged(table: &[OpenShiftRow], key: &str, own: &Value) -> Value {
    let entry = |name: &str, actions| json!({key: name, "actions": actions});
    let rows = table.iter();
    let mut all: Vec<Value> = rows
        .map(|(name, acts)| entry(name, built_in_actions(acts)))
        .collect();
    for given in own.as_array().into_iter().flatten() {
        let name = given[key].as_str().unwrap_or_default();
        let entry = entry(name, user_actions(given));
        match all.iter_mut().find(|known| known[key] == name) {
            Some(known) => *known = entry,
            None => all.push(entry),
        }
    }
    Value::Array(all)
}

fn built_in_actions(acts: &[(ActionKind, &str)]) -> Value {
    let action = |(kind, unit): &(ActionKind, &str)| match kind {
        ActionKind::Reload => json!({"type": "Reload", "reload": {"serviceName": unit}}),
        ActionKind::Restart => json!({"type": "Restart", "restart": {"serviceName": unit}}),
        // The unit of Special is not part of the format.
        other => json!({"type": format!("{other:?}")}),
    };
    match acts {
        [] => json!([{"type": "None"}]),
        acts => acts.iter().map(action).collect(),
    }
}

/// The valid actions of a user's entry, without fields that their types do not have.
fn user_actions(entry: &Value) -> Value {
    let action = |given: &Value| {
        let service = |field: &str| json!({"serviceName": given[field]["serviceName"]});
        match given["type"].as_str().unwrap_or_default() {
            "Reload" => json!({"type": "Reload", "reload": service("reload")}),
            "Restart" => json!({"type": "Restart", "restart": service("restart")}),
            other => json!({"type": other}),
        }
    };
    let given = entry["actions"].as_array();
    given.into_iter().flatten().map(action).collect()
}

#[cfg(test)]
mod tests;
