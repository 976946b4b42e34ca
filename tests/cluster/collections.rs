//! Collections that are served with the rules of the real server as far as the controller depends on them: lists,
//! UIDs and creation times, creation of what exists already, replacement and deletion on a version.

use axum::response::Response;
use serde_json::{Value, json};

use super::server::{Inside, RecordedRequest, reply, status};

/// Carries out a request about a collection or one of its objects; `None` if the server has no rule of its own for it.
pub(crate) fn carry_out(
    inside: &mut Inside,
    path: &str,
    request: &RecordedRequest,
) -> Option<Response> {
    let verb = request.what.split(' ').next().unwrap();
    if inside.collections.contains(path) {
        return match verb {
            "GET" if request.query.contains("fieldSelector") => None,
            "GET" => Some(list(inside, path)),
            "POST" => Some(create(inside, path, &request.body)),
            _ => None,
        };
    }
    let (collection, _) = path.rsplit_once('/')?;
    if !inside.collections.contains(collection) {
        return None;
    }
    let Some(known) = inside.objects.get(path) else {
        return Some(status(404, "NotFound", "not found"));
    };
    let versions = match verb {
        "PUT" => &request.body["metadata"],
        "DELETE" => &request.body["preconditions"],
        _ => return None,
    };
    let differs = |field: &str| {
        let wanted = &versions[field];
        !wanted.is_null() && *wanted != known["metadata"][field]
    };
    if differs("uid") || differs("resourceVersion") {
        return Some(status(409, "Conflict", "the object has been modified"));
    }
    if verb == "DELETE" {
        return None;
    }
    inside.put(path, request.body.clone());
    Some(reply(200, &inside.objects[path].to_string()))
}

fn list(inside: &Inside, path: &str) -> Response {
    let below = format!("{path}/");
    let all = inside.objects.iter();
    let found: Vec<&Value> = all
        .filter(|(at, _)| {
            at.strip_prefix(&below)
                .is_some_and(|name| !name.contains('/'))
        })
        .map(|(_, object)| object)
        .collect();
    let list = json!({
        "kind": "List", "apiVersion": "v1",
        "metadata": {"resourceVersion": inside.version.to_string()},
        "items": found,
    });
    reply(200, &list.to_string())
}

fn create(inside: &mut Inside, path: &str, body: &Value) -> Response {
    let name = body["metadata"]["name"].as_str().unwrap_or_default();
    let at = format!("{path}/{name}");
    if inside.objects.contains_key(&at) {
        return status(409, "AlreadyExists", "it exists already");
    }
    let mut object = body.clone();
    object["metadata"]["uid"] = json!(format!("uid-{}", inside.version + 1));
    object["metadata"]["creationTimestamp"] = json!("2026-11-20T00:00:00Z");
    inside.put(&at, object);
    reply(201, &inside.objects[&at].to_string())
}

/// The version that a watch begins after.
pub(crate) fn version(query: &str) -> u64 {
    let mut fields = query.split('&');
    let version = fields.find_map(|field| field.strip_prefix("resourceVersion="));
    version.and_then(|it| it.parse().ok()).unwrap_or(0)
}
