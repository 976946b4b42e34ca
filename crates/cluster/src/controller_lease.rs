//! Finds out whether a controller rolls out configs in this cluster, by its Lease.

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;

use super::{Cluster, ClusterError};
use machinist_kube_api::keys;

impl Cluster {
    /// Whether `machinist controller` is responsible for this cluster: its Lease has a holder. The times of the Lease
    /// are not compared with this machine's clock, and a controller that is down for a while stays responsible.
    ///
    /// An agent that must not read the Lease (403) was installed without the controller's permissions: `false`.
    pub async fn has_grant_controller(&self) -> Result<bool, ClusterError> {
        let (namespace, name) = (keys::NAMESPACE, keys::CONTROLLER_LEASE);
        let get =
            |client| async move { Api::<Lease>::namespaced(client, namespace).get(name).await };
        let found = self.request("get", format!("Lease {namespace}/{name}"), get);
        match found.await {
            Ok(lease) => {
                let holder = lease.spec.and_then(|spec| spec.holder_identity);
                Ok(holder.is_some_and(|holder| !holder.is_empty()))
            }
            Err(error) if error.is_not_found() || error.code() == 403 => Ok(false),
            Err(error) => Err(error),
        }
    }
}
