//! The effect of a patch on an object, by RFC 6902, RFC 7386 and the API server's documentation: as
//! much of it as the adapter uses.

use serde_json::{Value, json};

use super::server::RecordedRequest;

type Refused = (u16, &'static str);

const INVALID: Refused = (422, "Invalid");
const CONFLICT: Refused = (409, "Conflict");

pub(crate) fn patched(object: Value, received: &RecordedRequest) -> Result<Value, Refused> {
    let version = received.body.pointer("/metadata/resourceVersion");
    if version.is_some_and(|version| *version != object["metadata"]["resourceVersion"]) {
        return Err(CONFLICT);
    }
    let uid = received.body.pointer("/metadata/uid");
    if uid.is_some_and(|uid| *uid != object["metadata"]["uid"]) {
        return Err(CONFLICT);
    }
    match received.content.as_str() {
        "application/json-patch+json" => operations(object, received.body.as_array().unwrap()),
        "application/merge-patch+json" => Ok(merged(object, &received.body, false)),
        "application/strategic-merge-patch+json" | "application/apply-patch+yaml" => {
            Ok(merged(object, &received.body, true))
        }
        other => panic!("a patch of type {other}"),
    }
}

fn operations(mut object: Value, operations: &[Value]) -> Result<Value, Refused> {
    for operation in operations {
        let path = operation["path"].as_str().unwrap();
        let (parent, last) = path.rsplit_once('/').unwrap();
        let last = last.replace("~1", "/").replace("~0", "~");
        let value = operation["value"].clone();
        match operation["op"].as_str().unwrap() {
            "test" if object.pointer(path) == Some(&value) => {}
            "add" => match object.pointer_mut(parent).ok_or(INVALID)? {
                Value::Object(fields) => {
                    fields.insert(last, value);
                }
                _ => return Err(INVALID),
            },
            "replace" => *object.pointer_mut(path).ok_or(INVALID)? = value,
            "remove" => match object.pointer_mut(parent).ok_or(INVALID)? {
                Value::Object(fields) => drop(fields.remove(&last).ok_or(INVALID)?),
                _ => return Err(INVALID),
            },
            _ => return Err(INVALID),
        }
    }
    Ok(object)
}

/// Lists are replaced, except that conditions are merged by type where the patch is one of the API
/// server's own kinds.
fn merged(object: Value, patch: &Value, by_type: bool) -> Value {
    let Value::Object(patch) = patch else {
        return patch.clone();
    };
    let mut object = match object {
        Value::Object(fields) => fields,
        _ => serde_json::Map::new(),
    };
    for (name, patch) in patch {
        match (object.remove(name), patch) {
            (_, Value::Null) => {}
            (Some(Value::Array(old)), Value::Array(new)) if by_type && name == "conditions" => {
                object.insert(name.clone(), json!(conditions(old, new)));
            }
            (old, patch) => {
                let old = old.unwrap_or_default();
                object.insert(name.clone(), merged(old, patch, by_type));
            }
        }
    }
    Value::Object(object)
}

fn conditions(mut all: Vec<Value>, new: &[Value]) -> Vec<Value> {
    for one in new {
        let deleted = one["$patch"] == "delete";
        let at = all.iter().position(|known| known["type"] == one["type"]);
        match at {
            Some(at) if deleted => drop(all.remove(at)),
            Some(at) => all[at] = merged(all[at].clone(), one, true),
            None if deleted => {}
            None => all.push(one.clone()),
        }
    }
    all
}
