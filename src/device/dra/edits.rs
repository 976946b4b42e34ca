//! What containers get by a claim, as a spec of the container device interface (CDI): one device of the spec for
//! each request of the claim.
//!
//! A request and not a device is the unit, since a container gets whole requests: values of several devices that
//! go into one variable are joined there.

use serde_json::{Value, json};

use super::{DRIVER, claim::ClaimName};
use crate::device::allocation::Grant;

/// What all specs of this driver are of.
pub const KIND: &str = "dra.machinist.dev/claim";
/// Host paths, and names that begin with a digit, came with it; runtimes of today read far more.
const VERSION: &str = "0.5.0";

/// The file of a claim's spec. Others by this driver are told from it by the UID.
pub fn file_name(uid: &str) -> String {
    format!("{DRIVER}-{uid}.json")
}

/// The claim that a file of this name is of; none where it is nobody's of ours.
pub fn uid_of(file: &str) -> Option<&str> {
    let uid = file.strip_prefix(DRIVER)?.strip_prefix('-')?;
    uid.strip_suffix(".json")
        .filter(|uid| super::claim::is_uid(uid))
}

/// How the runtime is told of a request: `vendor/class=name`.
pub fn qualified(claim: &ClaimName, request: &str) -> String {
    format!("{KIND}={}", device(claim, request))
}

fn device(claim: &ClaimName, request: &str) -> String {
    format!("{}-{request}", claim.uid)
}

/// Whether a container gets anything that has to be written down; devices of other specs are named only.
pub fn is_empty(grant: &Grant) -> bool {
    grant.nodes.is_empty() && grant.mounts.is_empty() && grant.env.is_empty()
}

/// The spec; none where no request has anything to be written down.
pub fn spec<'a>(
    claim: &ClaimName,
    grants: impl IntoIterator<Item = (&'a str, &'a Grant)>,
) -> Option<Value> {
    let grants = grants.into_iter().filter(|(_, grant)| !is_empty(grant));
    let devices: Vec<Value> = grants
        .map(|(request, grant)| json!({"name": device(claim, request), "containerEdits": edits(grant)}))
        .collect();
    (!devices.is_empty()).then(|| json!({"cdiVersion": VERSION, "kind": KIND, "devices": devices}))
}

/// Empty lists are left out: some runtimes read them as a feature that is used.
fn edits(grant: &Grant) -> Value {
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
    use crate::device::{
        allocation::{MountGrant, NodeGrant},
        cdi,
    };

    #[test]
    fn a_spec_has_what_each_request_gets_and_runtimes_read_it() {
        let claim = ClaimName {
            namespace: "lab".into(),
            name: "c".into(),
            uid: "0a-1".into(),
        };
        let first = Grant {
            nodes: vec![NodeGrant {
                host: "/dev/fuse".into(),
                inside: "/dev/f".into(),
                permissions: "rw".into(),
            }],
            mounts: vec![MountGrant {
                host: "/opt/acme".into(),
                inside: "/lib".into(),
                read_only: true,
            }],
            env: [("IDS".to_owned(), "a,b".to_owned())].into(),
            ..Grant::default()
        };
        let named = Grant {
            cdi: vec!["acme.dev/gpu=0".into()],
            ..Grant::default()
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
        // Read as strictly as the specification wants it.
        cdi::parse("claim.json", &spec.to_string()).unwrap();
        assert_eq!(qualified(&claim, "one"), "dra.machinist.dev/claim=0a-1-one");
        assert_eq!(super::spec(&claim, [("two", &named)]), None);
    }

    #[test]
    fn only_own_files_are_known_again() {
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
