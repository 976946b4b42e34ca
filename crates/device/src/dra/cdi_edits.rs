//! The CDI spec of a claim, with one CDI device for each request of the claim.
//!
//! The unit is a request and not a device, since a container gets whole requests: the values of
//! several devices for one variable are joined in its CDI device.

use serde_json::{Value, json};

use super::{DRIVER_NAME, claim::ClaimName};
use crate::allocation::ContainerAllocation;

/// The CDI kind of all specs of this driver.
pub const CLAIM_CDI_KIND: &str = "dra.machinist.dev/claim";
/// The first CDI version with host paths and with names that begin with a digit; current runtimes
/// support later versions too.
const CDI_VERSION: &str = "0.5.0";

/// The name of the spec file of a claim. The UID makes it unique.
pub fn file_name(uid: &str) -> String {
    format!("{DRIVER_NAME}-{uid}.json")
}

/// The UID of the claim whose spec has this file name; none for a file that is not of this driver.
pub fn uid_of(file: &str) -> Option<&str> {
    let uid = file.strip_prefix(DRIVER_NAME)?.strip_prefix('-')?;
    uid.strip_suffix(".json")
        .filter(|uid| super::claim::is_uid(uid))
}

/// The CDI name of a request, `vendor/class=name`.
pub fn qualified(claim: &ClaimName, request: &str) -> String {
    format!("{CLAIM_CDI_KIND}={}", device(claim, request))
}

fn device(claim: &ClaimName, request: &str) -> String {
    format!("{}-{request}", claim.uid)
}

/// Whether a request needs no CDI device of its own; devices of other specs are passed by their
/// names.
pub fn is_empty(grant: &ContainerAllocation) -> bool {
    grant.nodes.is_empty() && grant.mounts.is_empty() && grant.env.is_empty()
}

/// The CDI spec; none if no request needs a CDI device.
pub fn spec<'a>(
    claim: &ClaimName,
    grants: impl IntoIterator<Item = (&'a str, &'a ContainerAllocation)>,
) -> Option<Value> {
    let grants = grants.into_iter().filter(|(_, grant)| !is_empty(grant));
    let devices: Vec<Value> = grants
        .map(|(request, grant)| json!({"name": device(claim, request), "containerEdits": edits(grant)}))
        .collect();
    (!devices.is_empty())
        .then(|| json!({"cdiVersion": CDI_VERSION, "kind": CLAIM_CDI_KIND, "devices": devices}))
}

/// Leaves out empty lists, since some runtimes treat them as the use of a feature.
fn edits(grant: &ContainerAllocation) -> Value {
    let mut edits = serde_json::Map::new();
    let mut add = |key: &str, all: Vec<Value>| {
        if !all.is_empty() {
            edits.insert(key.to_owned(), all.into());
        }
    };
    let env = grant
        .env
        .iter()
        .map(|(key, value)| json!(format!("{key}={value}")));
    add("env", env.collect());
    let nodes = grant.nodes.iter().map(
        |node| json!({"path": node.inside, "hostPath": node.host, "permissions": node.permissions}),
    );
    add("deviceNodes", nodes.collect());
    let mounts = grant.mounts.iter().map(|mount| {
        let mode = if mount.read_only { "ro" } else { "rw" };
        json!({
            "hostPath": mount.host, "containerPath": mount.inside,
            "options": ["rbind", "rprivate", mode],
        })
    });
    add("mounts", mounts.collect());
    Value::Object(edits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        allocation::{AllocatedMount, AllocatedNode},
        cdi,
    };

    #[test]
    fn a_spec_has_the_edits_of_each_request_and_is_valid_cdi() {
        let claim = ClaimName {
            namespace: "lab".into(),
            name: "c".into(),
            uid: "0a-1".into(),
        };
        let first = ContainerAllocation {
            nodes: vec![AllocatedNode {
                host: "/dev/fuse".into(),
                inside: "/dev/f".into(),
                permissions: "rw".into(),
            }],
            mounts: vec![AllocatedMount {
                host: "/opt/acme".into(),
                inside: "/lib".into(),
                read_only: true,
            }],
            env: [("IDS".to_owned(), "a,b".to_owned())].into(),
            ..ContainerAllocation::default()
        };
        let named = ContainerAllocation {
            cdi: vec!["acme.dev/gpu=0".into()],
            ..ContainerAllocation::default()
        };
        let spec = spec(&claim, [("one", &first), ("two", &named)]).unwrap();
        assert_eq!(
            spec,
            json!({"cdiVersion": "0.5.0", "kind": "dra.machinist.dev/claim", "devices": [{
                "name": "0a-1-one",
                "containerEdits": {
                    "env": ["IDS=a,b"],
                    "deviceNodes": [{"path": "/dev/f", "hostPath": "/dev/fuse", "permissions": "rw"}],
                    "mounts": [{"hostPath": "/opt/acme", "containerPath": "/lib", "options": ["rbind", "rprivate", "ro"]}],
                },
            }]})
        );
        // Parse it with the specification's strict rules.
        cdi::parse("claim.json", &spec.to_string()).unwrap();
        assert_eq!(qualified(&claim, "one"), "dra.machinist.dev/claim=0a-1-one");
        assert_eq!(super::spec(&claim, [("two", &named)]), None);
    }

    #[test]
    fn only_own_claim_cdi_files_are_recognised() {
        assert_eq!(uid_of(&file_name("0a-1")), Some("0a-1"));
        for other in [
            "acme.json",
            "dra.machinist.dev-.json",
            "dra.machinist.dev-a.yaml",
            ".dra.machinist.dev-a.json.new",
            "dra.machinist.dev-a.b.json",
        ] {
            assert_eq!(uid_of(other), None, "{other}");
        }
    }
}
