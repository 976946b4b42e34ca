//! OpenShift's machine-config-daemon, as the cluster shows it: its pod on a node.

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};

use super::{Cluster, ClusterError};
use crate::crd::names;

impl Cluster {
    /// The pod of machine-config-daemon that is bound to a node and has not ended; none where there is
    /// none. One request, for the moment that needs the answer: a watch would cost all the time.
    pub async fn machine_config_daemon_on(
        &self,
        node: &str,
    ) -> Result<Option<String>, ClusterError> {
        let namespace = names::DAEMON_NAMESPACE;
        let bound = format!("spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed");
        let bound = bound.as_str();
        let list = |client| async move {
            let params = ListParams::default()
                .labels(names::DAEMON_LABEL)
                .fields(bound)
                .limit(1);
            let pods = Api::<Pod>::namespaced(client, namespace);
            pods.list_metadata(&params).await
        };
        let object = format!("the pods of machine-config-daemon on {node}");
        let found = self.ask("list", object, list).await?;
        let pod = found.items.into_iter().find_map(|pod| pod.metadata.name);
        Ok(pod.map(|pod| format!("{namespace}/{pod}")))
    }
}
