//! The requests of the leader to the API server.

use std::sync::Arc;

use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, Patch, PostParams, Preconditions},
};
use serde_json::Value;

use crate::{
    config_object::ConfigObject, failure_log::response_code, leadership::Leadership,
    monitor::ControllerMonitor, policy_object::PolicyObject, pool_events::PoolEvents,
    watched_budget::BoundPod, watched_view::slim,
};
use machinist_cluster::{
    Cluster, ClusterError, cluster_policies, fleet_queries, json_patch, node::NodeObject,
    node_commands::DryRun, pod_queries, pool_commands, resource,
};
use machinist_drain::Pod;
use machinist_kube_api::{NodeView, PoolView, keys};

/// Sends requests as long as this process is the leader.
#[derive(Debug)]
pub(crate) struct LeaderRequests {
    cluster: Cluster,
    leadership: Arc<Leadership>,
    monitor: ControllerMonitor,
    events: PoolEvents,
}

const NODES: &str = "nodes";
const POOLS: &str = "machineconfigpools";
const POOL_STATUS: &str = "machineconfigpools/status";
const CONFIGS: &str = "machineconfigs";
const PODS: &str = "pods";
const POLICY_STATUS: &str = "machineconfigurations/status";

impl LeaderRequests {
    pub(crate) fn new(
        cluster: Cluster,
        leadership: Arc<Leadership>,
        monitor: ControllerMonitor,
        events: PoolEvents,
    ) -> Self {
        Self {
            cluster,
            leadership,
            monitor,
            events,
        }
    }

    pub(crate) const fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The leadership, without which nothing is written.
    pub(crate) fn leadership(&self) -> &Leadership {
        &self.leadership
    }

    /// Events about pools and policies, which are written beside the other requests.
    pub(crate) const fn events(&self) -> &PoolEvents {
        &self.events
    }

    /// Counts a response, which is also a step of the leader.
    fn counted<T>(
        &self,
        verb: &str,
        resource: &str,
        response: Result<T, ClusterError>,
    ) -> Result<T, ClusterError> {
        let code = response_code(&response);
        self.monitor.metrics.requested(verb, resource, code);
        self.monitor.turn_step();
        response
    }

    pub(crate) async fn nodes(&self) -> Result<Vec<NodeView>, ClusterError> {
        let nodes = fleet_queries::nodes(&self.cluster).await;
        let nodes = self.counted("list", NODES, nodes)?;
        Ok(nodes.into_iter().map(slim).collect())
    }

    pub(crate) async fn pools(&self) -> Result<Vec<PoolView>, ClusterError> {
        let pools = fleet_queries::pools(&self.cluster).await;
        self.counted("list", POOLS, pools)
    }

    /// One Node; `None` if it does not exist.
    pub(crate) async fn node(&self, name: &str) -> Result<Option<NodeView>, ClusterError> {
        let get = |client| async move { Api::<NodeObject>::all(client).get_opt(name).await };
        let object = format!("Node {name}");
        let found = self.cluster.request("get", object, get).await;
        let found = self.counted("get", NODES, found)?;
        Ok(found.map(|node| slim(node.into())))
    }

    /// One pool; `None` if it does not exist.
    pub(crate) async fn pool(&self, name: &str) -> Result<Option<PoolView>, ClusterError> {
        let found = fleet_queries::pool(&self.cluster, name).await;
        self.counted("get", POOLS, found)
    }

    /// The pods of a namespace that have these labels and are bound to a Node.
    pub(crate) async fn pods(
        &self,
        namespace: &str,
        selector: &str,
    ) -> Result<Vec<BoundPod>, ClusterError> {
        let found = pod_queries::selected_pods(&self.cluster, namespace, selector).await;
        let found = self.counted("list", PODS, found)?;
        let bound = found.into_iter();
        Ok(bound.map(|(node, pod)| BoundPod { node, pod }).collect())
    }

    /// The pods that are bound to a Node.
    pub(crate) async fn pods_of_node(&self, node: &str) -> Result<Vec<Pod>, ClusterError> {
        let found = pod_queries::pods_of_node(&self.cluster, node).await;
        self.counted("list", PODS, found)
    }

    /// Patches a Node; 422 if a test of the patch fails.
    pub(crate) async fn patch_node(
        &self,
        name: &str,
        operations: &Value,
    ) -> Result<NodeView, ClusterError> {
        self.leadership.permit().await;
        let patch = |client| async move {
            let patch = json_patch::body(operations)?;
            let nodes = Api::<NodeObject>::all(client);
            nodes.patch(name, &json_patch::params(false), &patch).await
        };
        let object = format!("Node {name}");
        let patched = self.cluster.request("patch", object, patch).await;
        let patched = self.counted("patch", NODES, patched)?;
        Ok(slim(patched.into()))
    }

    /// Patches a pool; 422 if a test of the patch fails.
    pub(crate) async fn patch_pool(
        &self,
        name: &str,
        operations: &Value,
    ) -> Result<PoolView, ClusterError> {
        self.leadership.permit().await;
        let patched =
            pool_commands::patch_pool(&self.cluster, name, operations, DryRun::None).await;
        self.counted("patch", POOLS, patched)
    }

    /// Merges fields into a pool's status; 409 if `body` names another resource version than the pool has.
    pub(crate) async fn patch_pool_status(
        &self,
        name: &str,
        body: &Value,
    ) -> Result<PoolView, ClusterError> {
        self.leadership.permit().await;
        let patch = |client| async move {
            let patch = Patch::Merge(body);
            pools(client)
                .patch_status(name, &json_patch::params(false), &patch)
                .await
        };
        let act = "write the status of";
        let request = self.cluster.request(act, pool_object(name), patch);
        let patched = self.counted("patch", POOL_STATUS, request.await)?;
        Ok(fleet_queries::pool_view(patched))
    }

    /// Merges fields into the status of MachineConfiguration `cluster`; 409 if it has changed.
    pub(crate) async fn patch_policy_status(
        &self,
        body: &Value,
    ) -> Result<PolicyObject, ClusterError> {
        self.leadership.permit().await;
        let name = keys::MACHINE_CONFIGURATION;
        let patch = |client| async move {
            let kind = cluster_policies::machine_configuration();
            Api::<DynamicObject>::all_with(client, &kind)
                .patch_status(name, &json_patch::params(false), &Patch::Merge(body))
                .await
        };
        let object = format!("MachineConfiguration {name}");
        let request = self.cluster.request("write the status of", object, patch);
        let patched = self.counted("patch", POLICY_STATUS, request.await)?;
        Ok(patched.into())
    }

    /// Creates a MachineConfig from a manifest; `None` if it exists already, which is not changed.
    pub(crate) async fn create_config(
        &self,
        name: &str,
        manifest: &Value,
    ) -> Result<Option<ConfigObject>, ClusterError> {
        self.leadership.permit().await;
        let create = |client| async move {
            let object: DynamicObject =
                serde_json::from_value(manifest.clone()).map_err(kube::Error::SerdeError)?;
            let params = PostParams {
                field_manager: Some(keys::FIELD_MANAGER.to_owned()),
                ..PostParams::default()
            };
            configs(client).create(&params, &object).await
        };
        let object = format!("MachineConfig {name}");
        let created = self.cluster.request("create", object, create).await;
        match self.counted("create", CONFIGS, created) {
            Ok(created) => Ok(Some(created.into())),
            Err(error) if error.code() == 409 => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes a MachineConfig, if it is still the same object. One that does not exist is no error.
    pub(crate) async fn delete_config(&self, config: &ConfigObject) -> Result<(), ClusterError> {
        self.leadership.permit().await;
        let name = config.name.as_str();
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(config.uid.clone()),
                resource_version: Some(config.resource_version.clone()),
            }),
            ..DeleteParams::default()
        };
        let params = &params;
        let delete = |client| async move { configs(client).delete(name, params).await.map(drop) };
        let object = format!("MachineConfig {name}");
        let deleted = self.cluster.request("delete", object, delete).await;
        match self.counted("delete", CONFIGS, deleted) {
            Err(error) if error.is_not_found() => Ok(()),
            other => other,
        }
    }
}

fn pools(client: Client) -> Api<DynamicObject> {
    let kind = resource("MachineConfigPool", "machineconfigpools");
    Api::all_with(client, &kind)
}

fn configs(client: Client) -> Api<DynamicObject> {
    Api::all_with(client, &resource("MachineConfig", "machineconfigs"))
}

fn pool_object(name: &str) -> String {
    format!("MachineConfigPool {name}")
}
