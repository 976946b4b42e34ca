//! What a Node says when its config is given back to machine-config-daemon.

use serde_json::json;

use super::{
    Cluster, ClusterError,
    by_hand::{DryRun, merge},
};
use crate::crd::{
    DrainRequest, State,
    names::{annotation, protocol},
};

/// That the machine is on `config` and nothing is under way: what the daemon that takes over compares with
/// its disk, and finds nothing to do. What was between people and us goes.
pub async fn handed_over(cluster: &Cluster, name: &str, config: &str) -> Result<(), ClusterError> {
    let change = json!({"metadata": {"annotations": {
        protocol::CURRENT_CONFIG: config,
        protocol::STATE: State::Done.as_str(),
        protocol::REASON: "",
        protocol::POST_CONFIG_ACTION: "",
        protocol::DESIRED_DRAIN: DrainRequest::Uncordon(config.to_owned()).to_string(),
        annotation::BLOCKED_BY: null,
        annotation::CANCEL: null,
        annotation::CANCELLED: null,
        annotation::CANCEL_REFUSED: null,
    }}});
    merge(cluster, "change", name, DryRun::None, &change).await
}
