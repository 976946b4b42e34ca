//! The JSON of a notification, which `docs/interface.md` specifies.

use jiff::Timestamp;
use serde_json::json;

use crate::rollout_event::RolloutEvent;

/// The body of the request.
pub(crate) fn body(event: &RolloutEvent, time: Timestamp) -> String {
    let notification = json!({
        "apiVersion": "machinist.dev/v1",
        "kind": "RolloutNotification",
        "event": event.kind.as_str(),
        "pool": event.pool,
        "node": event.node,
        "target": event.target,
        "reason": event.reason,
        "message": event.message,
        "time": time.to_string(),
        "text": format!("Pool {}: {}.", event.pool, event.message.trim_end_matches('.')),
    });
    notification.to_string()
}
