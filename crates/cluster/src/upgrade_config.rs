//! Reads OpenShift's UpgradeConfig: when nodes may be disrupted, and how long a drain respects
//! disruption budgets.

use std::time::Duration;

use jiff::Timestamp;
use kube::{Client, api::GetParams, core::Request};
use serde::Deserialize;

use super::{Cluster, ClusterError, ClusterErrorKind};
use machinist_kube_api::keys;

/// The fields of an UpgradeConfig that are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpgradeConfig {
    /// `upgradeAt`: no update starts earlier.
    pub not_before: Option<Timestamp>,
    /// `PDBForceDrainTimeout`: how long a drain uses evictions before it deletes pods. Zero minutes
    /// mean no limit, as in the managed-upgrade operator: an unset number must not bypass a budget.
    pub force_after: Option<Duration>,
}

#[derive(Deserialize)]
struct UpgradeConfigObject {
    #[serde(default)]
    spec: UpgradeConfigSpec,
}

#[derive(Default, Deserialize)]
struct UpgradeConfigSpec {
    #[serde(rename = "upgradeAt")]
    upgrade_at: Option<String>,
    #[serde(rename = "PDBForceDrainTimeout")]
    force_minutes: Option<u32>,
}

impl UpgradeConfigObject {
    /// None if a field cannot be parsed.
    fn read(self) -> Option<UpgradeConfig> {
        let at = self.spec.upgrade_at.filter(|text| !text.is_empty());
        let not_before = match at {
            Some(text) => Some(text.parse().ok()?),
            None => None,
        };
        let minutes = self.spec.force_minutes.filter(|minutes| *minutes > 0);
        Some(UpgradeConfig {
            not_before,
            force_after: minutes.map(|minutes| Duration::from_secs(60 * u64::from(minutes))),
        })
    }
}

impl Cluster {
    /// The cluster's UpgradeConfig; none if it does not exist or must not be read (404, 403).
    pub async fn upgrade_config(&self) -> Result<Option<UpgradeConfig>, ClusterError> {
        const API_VERB: &str = "get";
        let (group, name) = (keys::UPGRADE_GROUP, keys::UPGRADE_CONFIG);
        let namespace = keys::UPGRADE_NAMESPACE;
        let path = format!("/apis/{group}/v1alpha1/namespaces/{namespace}/upgradeconfigs");
        let (path, object) = (path.as_str(), format!("UpgradeConfig {namespace}/{name}"));
        let get = |client: Client| async move {
            let request = Request::new(path).get(name, &GetParams::default());
            let request = request.map_err(kube::Error::BuildRequest)?;
            client.request::<UpgradeConfigObject>(request).await
        };
        match self.request(API_VERB, object.clone(), get).await {
            Ok(found) => match found.read() {
                Some(read) => Ok(Some(read)),
                None => Err(ClusterError {
                    act: API_VERB,
                    object,
                    why: ClusterErrorKind::NotUnderstood,
                }),
            },
            Err(error) if error.is_not_found() || error.code() == 403 => Ok(None),
            Err(error) => Err(error),
        }
    }
}
