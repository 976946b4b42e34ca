//! Reads OpenShift's UpgradeConfig: when nodes may be disrupted, and how long a drain respects
//! disruption budgets.

use std::time::Duration;

use jiff::Timestamp;
use kube::{Client, api::GetParams, core::Request};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::{Cluster, ClusterError, ClusterErrorKind};
use machinist_kube_api::{keys, truncate_at_char};
use machinist_pool::RolloutStart;

/// The version of the API that is read.
pub const UPGRADE_VERSION: &str = "v1alpha1";

/// How much of an invalid value a message shows.
const MAX_SHOWN_VALUE_BYTES: usize = 100;

const API_VERB: &str = "get";

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
    upgrade_at: Option<Value>,
    #[serde(rename = "PDBForceDrainTimeout")]
    force_minutes: Option<u32>,
}

impl UpgradeConfigObject {
    /// None if a field cannot be parsed.
    fn read(self) -> Option<UpgradeConfig> {
        let not_before = upgrade_at(self.spec.upgrade_at.as_ref()).ok()?;
        let minutes = self.spec.force_minutes.filter(|minutes| *minutes > 0);
        Some(UpgradeConfig {
            not_before,
            force_after: minutes.map(|minutes| Duration::from_secs(60 * u64::from(minutes))),
        })
    }
}

/// Parses `upgradeAt`, which may be absent or empty; the error is its value.
fn upgrade_at(value: Option<&Value>) -> Result<Option<Timestamp>, &Value> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(value) => {
            let time = value.as_str().and_then(|text| text.parse().ok());
            time.map(Some).ok_or(value)
        }
    }
}

/// When nodes may begin by an UpgradeConfig, of which `object` has the fields beside the metadata.
pub fn rollout_start(object: &Value) -> RolloutStart {
    match upgrade_at(object.pointer("/spec/upgradeAt")) {
        Ok(None) => RolloutStart::Anytime,
        Ok(Some(time)) => RolloutStart::NotBefore(time),
        Err(value) => {
            let shown = truncate_at_char(&value.to_string(), MAX_SHOWN_VALUE_BYTES).to_owned();
            RolloutStart::Invalid(format!(
                "UpgradeConfig {}/{}: spec.upgradeAt is {shown}; expected a time as in RFC 3339, such as \
                 \"2020-06-20T12:00:00Z\"",
                keys::UPGRADE_NAMESPACE,
                keys::UPGRADE_CONFIG
            ))
        }
    }
}

impl Cluster {
    /// When nodes may begin by the cluster's UpgradeConfig; `None` if it must not be read (403).
    pub async fn rollout_start(&self) -> Result<Option<RolloutStart>, ClusterError> {
        match self.get_upgrade_config::<Value>().await {
            Ok(found) => Ok(Some(rollout_start(&found))),
            Err(error) if error.is_not_found() => Ok(Some(RolloutStart::Anytime)),
            Err(error) if error.is_forbidden() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The cluster's UpgradeConfig; none if it does not exist or must not be read (404, 403).
    pub async fn upgrade_config(&self) -> Result<Option<UpgradeConfig>, ClusterError> {
        match self.get_upgrade_config::<UpgradeConfigObject>().await {
            Ok(found) => match found.read() {
                Some(read) => Ok(Some(read)),
                None => Err(ClusterError {
                    act: API_VERB,
                    object: object(),
                    why: ClusterErrorKind::NotUnderstood,
                }),
            },
            Err(error) if error.is_not_found() || error.is_forbidden() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn get_upgrade_config<T: DeserializeOwned>(&self) -> Result<T, ClusterError> {
        let (group, namespace) = (keys::UPGRADE_GROUP, keys::UPGRADE_NAMESPACE);
        let path = format!("/apis/{group}/{UPGRADE_VERSION}/namespaces/{namespace}/upgradeconfigs");
        let path = path.as_str();
        let get = |client: Client| async move {
            let request = Request::new(path).get(keys::UPGRADE_CONFIG, &GetParams::default());
            let request = request.map_err(kube::Error::BuildRequest)?;
            client.request::<T>(request).await
        };
        self.request(API_VERB, object(), get).await
    }
}

fn object() -> String {
    format!(
        "UpgradeConfig {}/{}",
        keys::UPGRADE_NAMESPACE,
        keys::UPGRADE_CONFIG
    )
}
