//! Finds the pod of OpenShift's machine-config-daemon on a node.

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};

use super::{Cluster, ClusterError};
use machinist_kube_api::keys;

impl Cluster {
    /// The machine-config-daemon pod that is bound to the node and has not ended, if any. It costs
    /// one request when the answer is needed, instead of a permanent watch.
    pub async fn machine_config_daemon_on(
        &self,
        node: &str,
    ) -> Result<Option<String>, ClusterError> {
        let namespace = keys::DAEMON_NAMESPACE;
        let bound = format!("spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed");
        let bound = bound.as_str();
        let list = |client| async move {
            let params = ListParams::default()
                .labels(keys::DAEMON_LABEL)
                .fields(bound)
                .limit(1);
            let pods = Api::<Pod>::namespaced(client, namespace);
            pods.list_metadata(&params).await
        };
        let object = format!("the pods of machine-config-daemon on {node}");
        let found = self.request("list", object, list).await?;
        let pod = found.items.into_iter().find_map(|pod| pod.metadata.name);
        Ok(pod.map(|pod| format!("{namespace}/{pod}")))
    }
}
