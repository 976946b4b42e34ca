//! OpenShift's managed upgrades: what an UpgradeConfig says of when nodes may be disturbed, and for how
//! long budgets count.

use std::time::Duration;

use jiff::Timestamp;
use kube::{Client, api::GetParams, core::Request};
use serde::Deserialize;

use super::{Cluster, ClusterError, Why};
use crate::crd::names;

/// What is read of an UpgradeConfig.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpgradeConfig {
    /// `upgradeAt`: nothing begins earlier.
    pub not_before: Option<Timestamp>,
    /// `PDBForceDrainTimeout`: for how long a drain asks before it deletes. Zero minutes are no limit, as
    /// in the service that these objects come from: a budget must not be passed by an unset number.
    pub force_after: Option<Duration>,
}

#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    spec: Spec,
}

#[derive(Default, Deserialize)]
struct Spec {
    #[serde(rename = "upgradeAt")]
    upgrade_at: Option<String>,
    #[serde(rename = "PDBForceDrainTimeout")]
    force_minutes: Option<u32>,
}

impl Object {
    /// None: it is not understood.
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
    /// The cluster's UpgradeConfig; none where there is none, or it is none of our business.
    pub async fn upgrade_config(&self) -> Result<Option<UpgradeConfig>, ClusterError> {
        const ACT: &str = "get";
        let (group, name) = (names::UPGRADE_GROUP, names::UPGRADE_CONFIG);
        let namespace = names::UPGRADE_NAMESPACE;
        let path = format!("/apis/{group}/v1alpha1/namespaces/{namespace}/upgradeconfigs");
        let (path, object) = (path.as_str(), format!("UpgradeConfig {namespace}/{name}"));
        let get = |client: Client| async move {
            let request = Request::new(path).get(name, &GetParams::default());
            let request = request.map_err(kube::Error::BuildRequest)?;
            client.request::<Object>(request).await
        };
        match self.ask(ACT, object.clone(), get).await {
            Ok(found) => match found.read() {
                Some(read) => Ok(Some(read)),
                None => Err(ClusterError {
                    act: ACT,
                    object,
                    why: Why::NotUnderstood,
                }),
            },
            Err(error) if error.is_not_found() || error.code() == 403 => Ok(None),
            Err(error) => Err(error),
        }
    }
}
