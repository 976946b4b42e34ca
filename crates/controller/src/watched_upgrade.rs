//! What the watch on UpgradeConfigs keeps of an object.

use kube::{
    ResourceExt as _,
    api::{ApiResource, DynamicObject},
};

use machinist_cluster::upgrade_config::{UPGRADE_VERSION, rollout_start};
use machinist_kube_api::keys;
use machinist_pool::RolloutStart;

/// The kind UpgradeConfig.
pub(crate) fn upgrade_config_kind() -> ApiResource {
    ApiResource {
        group: keys::UPGRADE_GROUP.to_owned(),
        version: UPGRADE_VERSION.to_owned(),
        api_version: format!("{}/{UPGRADE_VERSION}", keys::UPGRADE_GROUP),
        kind: "UpgradeConfig".to_owned(),
        plural: "upgradeconfigs".to_owned(),
    }
}

/// An UpgradeConfig, of which those in other namespaces than the operator's are not used.
#[derive(Clone, Debug)]
pub(crate) struct WatchedUpgradeConfig {
    /// Whether it is in the namespace of the operator.
    pub(crate) is_used: bool,
    /// When it lets nodes begin.
    pub(crate) start: RolloutStart,
}

impl WatchedUpgradeConfig {
    /// The name under which its changes are collected: the watch delivers all namespaces.
    pub(crate) fn key(object: &DynamicObject) -> String {
        key(&object.namespace().unwrap_or_default())
    }
}

/// The name under which changes of the UpgradeConfig in this namespace are collected.
pub(crate) fn key(namespace: &str) -> String {
    format!("{namespace}/{}", keys::UPGRADE_CONFIG)
}

impl From<DynamicObject> for WatchedUpgradeConfig {
    fn from(object: DynamicObject) -> Self {
        Self {
            is_used: object.namespace().as_deref() == Some(keys::UPGRADE_NAMESPACE),
            start: rollout_start(&object.data),
        }
    }
}
