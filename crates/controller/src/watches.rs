//! The watches: one each on Nodes, MachineConfigPools, MachineConfigs, PodDisruptionBudgets, and on the ControllerConfig
//! that only OpenShift's controllers create.

use std::{fmt::Debug, marker::PhantomData, sync::Arc, time::Duration};

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::{
    Resource, ResourceExt as _,
    api::{ApiResource, DynamicObject},
};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    config_object::ConfigObject,
    failure_log::log_failure,
    inbox::{Inbox, Mailbox},
    watched_budget::WatchedBudget,
};
use machinist_cluster::{
    Cluster, ClusterError, WatchChange, fleet_queries,
    node::NodeObject,
    resource,
    watch_loop::{self, WatchHandler},
};
use machinist_kube_api::{NodeView, PoolView, keys};

/// How many objects a list reads at once, as kubectl does.
const WATCH_PAGE_ITEMS: u32 = 500;

/// How long until a kind that does not exist is looked for again: its CRD may be installed later.
const ABSENT_KIND_RECHECK: Duration = Duration::from_secs(60);

/// The fields of an object that are kept.
pub(crate) trait WatchedView: Send + Sync + Sized + 'static {
    /// The object in the API server.
    type Object: Resource<DynamicType: Clone + Debug + Send + Sync>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + 'static;

    fn of(object: Self::Object) -> Self;

    /// The name under which changes of an object are collected.
    fn key(object: &Self::Object) -> String {
        object.name_any()
    }

    fn mailbox(inbox: &Inbox) -> &Mailbox<Self>;
}

impl WatchedView for NodeView {
    type Object = NodeObject;

    fn of(object: NodeObject) -> Self {
        slim(object.into())
    }

    fn mailbox(inbox: &Inbox) -> &Mailbox<Self> {
        &inbox.nodes
    }
}

impl WatchedView for PoolView {
    type Object = DynamicObject;

    fn of(object: DynamicObject) -> Self {
        fleet_queries::pool_view(object)
    }

    fn mailbox(inbox: &Inbox) -> &Mailbox<Self> {
        &inbox.pools
    }
}

impl WatchedView for ConfigObject {
    type Object = DynamicObject;

    fn of(object: DynamicObject) -> Self {
        object.into()
    }

    fn mailbox(inbox: &Inbox) -> &Mailbox<Self> {
        &inbox.configs
    }
}

impl WatchedView for WatchedBudget {
    type Object = PodDisruptionBudget;

    fn of(object: PodDisruptionBudget) -> Self {
        object.into()
    }

    fn key(object: &PodDisruptionBudget) -> String {
        Self::key(object)
    }

    fn mailbox(inbox: &Inbox) -> &Mailbox<Self> {
        &inbox.budgets
    }
}

impl WatchedView for String {
    type Object = DynamicObject;

    fn of(object: DynamicObject) -> Self {
        object.name_any()
    }

    fn mailbox(inbox: &Inbox) -> &Mailbox<Self> {
        &inbox.grantors
    }
}

/// Drops fields of a Node that no decision depends on; there may be thousands of Nodes.
pub(crate) fn slim(mut node: NodeView) -> NodeView {
    node.status.capacity.clear();
    node.status.allocatable.clear();
    for condition in &mut node.status.conditions {
        condition.message = String::new();
    }
    node.status.conditions.shrink_to_fit();
    node
}

/// The item of a list, with its name.
#[derive(Debug)]
pub(crate) struct ListedItem<V>(V);

impl<V: WatchedView<Object = NodeObject>> From<NodeObject> for ListedItem<V> {
    fn from(object: NodeObject) -> Self {
        Self(V::of(object))
    }
}

impl<V: WatchedView<Object = DynamicObject>> From<DynamicObject> for ListedItem<V> {
    fn from(object: DynamicObject) -> Self {
        Self(V::of(object))
    }
}

impl<V: WatchedView<Object = PodDisruptionBudget>> From<PodDisruptionBudget> for ListedItem<V> {
    fn from(object: PodDisruptionBudget) -> Self {
        Self(V::of(object))
    }
}

/// The watch on one kind.
#[derive(Debug)]
struct KindWatch<V: WatchedView> {
    cluster: Cluster,
    kind: <V::Object as Resource>::DynamicType,
    object: &'static str,
    selector: String,
    /// A kind that does not exist is the same as one without objects.
    may_be_absent: bool,
    inbox: Arc<Inbox>,
    view: PhantomData<V>,
}

impl<V> WatchHandler for KindWatch<V>
where
    V: WatchedView,
    ListedItem<V>: From<V::Object>,
{
    type Object = V::Object;
    type View = ListedItem<V>;

    fn page_items() -> Option<u32> {
        Some(WATCH_PAGE_ITEMS)
    }

    fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    fn object(&self) -> String {
        self.object.to_owned()
    }

    fn selector(&self) -> String {
        self.selector.clone()
    }

    async fn kind(&mut self) -> Result<<V::Object as Resource>::DynamicType, ClusterError> {
        Ok(self.kind.clone())
    }

    async fn listed(&mut self, objects: Vec<ListedItem<V>>) -> Result<(), ClusterError> {
        let views = objects.into_iter().map(|item| item.0).collect();
        V::mailbox(&self.inbox).put_list(views);
        self.inbox.arrived.notify_one();
        Ok(())
    }

    fn opened(&mut self) {}

    fn changed(&mut self, change: WatchChange<V::Object>) {
        let mailbox = V::mailbox(&self.inbox);
        match change {
            WatchChange::Applied(object) => mailbox.put(V::key(&object), Some(V::of(object))),
            WatchChange::Deleted(object) => mailbox.put(V::key(&object), None),
            WatchChange::Bookmark => return,
        }
        self.inbox.arrived.notify_one();
    }

    fn failed(&mut self, error: &ClusterError, first: bool, wait: Duration) -> Duration {
        if self.may_be_absent && error.is_not_found() {
            V::mailbox(&self.inbox).put_list(Vec::new());
            self.inbox.arrived.notify_one();
            return ABSENT_KIND_RECHECK;
        }
        log_failure(error, first);
        wait
    }
}

/// Starts all watches. They end when the returned set is dropped.
pub(crate) fn start(cluster: &Cluster, inbox: &Arc<Inbox>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let untyped = |kind, plural| -> ApiResource { resource(kind, plural) };
    let pools = untyped("MachineConfigPool", "machineconfigpools");
    let configs = untyped("MachineConfig", "machineconfigs");
    let grantors = untyped("ControllerConfig", "controllerconfigs");
    tasks.spawn(watch::<NodeView>(cluster, inbox, (), "the Nodes", None));
    tasks.spawn(watch::<PoolView>(
        cluster,
        inbox,
        pools,
        "the MachineConfigPools",
        None,
    ));
    tasks.spawn(watch::<ConfigObject>(
        cluster,
        inbox,
        configs,
        "the MachineConfigs",
        None,
    ));
    tasks.spawn(watch::<WatchedBudget>(
        cluster,
        inbox,
        (),
        "the PodDisruptionBudgets",
        None,
    ));
    tasks.spawn(watch::<String>(
        cluster,
        inbox,
        grantors,
        "the ControllerConfig",
        Some(keys::CONTROLLER_CONFIG),
    ));
    tasks
}

/// Watches one kind; with a `name`, only that object, whose kind may be absent.
fn watch<V>(
    cluster: &Cluster,
    inbox: &Arc<Inbox>,
    kind: <V::Object as Resource>::DynamicType,
    object: &'static str,
    name: Option<&str>,
) -> impl Future<Output = ()> + Send + use<V>
where
    V: WatchedView,
    ListedItem<V>: From<V::Object>,
{
    let handler = KindWatch::<V> {
        cluster: cluster.clone(),
        kind,
        object,
        selector: name.map_or_else(String::new, |name| format!("metadata.name={name}")),
        may_be_absent: name.is_some(),
        inbox: Arc::clone(inbox),
        view: PhantomData,
    };
    watch_loop::run(handler, CancellationToken::new())
}
