//! Finds out whether a controller rolls out configs in this cluster, by its Lease.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;

use super::{Cluster, ClusterError};
use machinist_kube_api::keys;

/// The Lease of the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerLease {
    /// The process that holds it; none if it was released.
    pub holder: Option<String>,
    /// When the holder renewed it last, by the clock of its machine.
    pub renewed: Option<Timestamp>,
    /// How long it is valid after that.
    pub duration: SignedDuration,
}

impl Cluster {
    /// Whether `machinist controller` is responsible for this cluster: its Lease has a holder. The times of the Lease
    /// are not compared with this machine's clock, and a controller that is down for a while stays responsible.
    ///
    /// An agent that must not read the Lease (403) was installed without the controller's permissions: `false`.
    pub async fn has_grant_controller(&self) -> Result<bool, ClusterError> {
        match self.controller_lease().await {
            Ok(lease) => Ok(lease.is_some_and(|lease| lease.holder.is_some())),
            Err(error) if error.code() == 403 => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The Lease of the controller; `None` if there is none.
    pub async fn controller_lease(&self) -> Result<Option<ControllerLease>, ClusterError> {
        let (namespace, name) = (keys::NAMESPACE, keys::CONTROLLER_LEASE);
        let get = |client| async move {
            let leases = Api::<Lease>::namespaced(client, namespace);
            leases.get_opt(name).await
        };
        let object = format!("Lease {namespace}/{name}");
        let found = self.request("get", object, get).await?;
        Ok(found.map(|lease| {
            let spec = lease.spec.unwrap_or_default();
            let seconds = spec.lease_duration_seconds.unwrap_or_default();
            ControllerLease {
                holder: spec.holder_identity.filter(|holder| !holder.is_empty()),
                renewed: spec.renew_time.map(|time| time.0),
                duration: SignedDuration::from_secs(i64::from(seconds)),
            }
        }))
    }
}
