//! What the kubelet has written of its device plugins.

use super::{Kubelet, directory, until};

/// The healthy devices of a resource in the checkpoint.
pub(super) fn written(kubelet: &impl Kubelet, resource: &str) -> Option<Vec<String>> {
    let path = directory(kubelet).join("kubelet_internal_checkpoint");
    let whole: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()?;
    let devices = whole["Data"]["RegisteredDevices"].get(resource)?;
    let devices = devices.as_array().into_iter().flatten();
    let mut ids: Vec<_> = devices.map(|id| id.as_str().unwrap().to_owned()).collect();
    ids.sort();
    Some(ids)
}

/// Waits for the checkpoint, which the kubelet writes after it has updated its counts.
pub(super) async fn until_written(kubelet: &impl Kubelet, resource: &str, wanted: &[&str]) {
    let what = format!("{wanted:?} in the checkpoint");
    until(&what, async || {
        written(kubelet, resource).is_some_and(|ids| ids == wanted)
    })
    .await;
}
