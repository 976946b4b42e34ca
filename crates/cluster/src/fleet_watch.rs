//! Watches pools, nodes and the status of their updates for the command line.

use std::{
    collections::BTreeMap,
    marker::PhantomData,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kube::{Resource, api::DynamicObject};
use tokio::{sync::Notify, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{
    Cluster, ClusterError, WatchChange,
    fleet_queries::pool_view,
    machine_config_node::status_of,
    node::NodeObject,
    resource,
    watch_loop::{self, WatchHandler},
};
use machinist_base::error_chain::chain;
use machinist_kube_api::{MachineConfigNodeStatus, NodeView, PoolView};

/// How many objects a list reads at once, as kubectl does.
const FLEET_PAGE_ITEMS: u32 = 500;

/// How long until MachineConfigNodes that do not exist or must not be read are listed again.
const UNREADABLE_KIND_RECHECK: Duration = Duration::from_secs(60);

/// Pools, nodes and the status of their updates, as the last events of the watches show them.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    /// The MachineConfigPools by name.
    pub pools: BTreeMap<String, PoolView>,
    /// The Nodes by name.
    pub nodes: BTreeMap<String, NodeView>,
    /// The status of MachineConfigNodes by the name of the Node.
    pub progress: BTreeMap<String, MachineConfigNodeStatus>,
}

/// A watch was refused, for example by RBAC, and will not be accepted later.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct WatchRefused(String);

#[derive(Debug)]
struct WatchedFleet {
    state: Mutex<Result<Fleet, WatchRefused>>,
    changed: Notify,
}

impl WatchedFleet {
    /// Changes the objects, unless a watch was refused.
    fn change(&self, change: impl FnOnce(&mut Fleet)) {
        if let Ok(fleet) = &mut *self.state() {
            change(fleet);
        }
        self.changed.notify_one();
    }

    fn refuse(&self, error: &ClusterError) {
        *self.state() = Err(WatchRefused(chain(error)));
        self.changed.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, Result<Fleet, WatchRefused>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The running watches. They end when this is dropped.
#[derive(Debug)]
pub struct FleetWatch {
    watched: Arc<WatchedFleet>,
    _tasks: JoinSet<()>,
}

impl FleetWatch {
    /// Starts the watches with what has been read before.
    pub fn start(cluster: &Cluster, fleet: Fleet) -> Self {
        let watched = Arc::new(WatchedFleet {
            state: Mutex::new(Ok(fleet)),
            changed: Notify::new(),
        });
        let mut tasks = JoinSet::new();
        let pools = resource("MachineConfigPool", "machineconfigpools");
        let progress = resource("MachineConfigNode", "machineconfignodes");
        let shown = "the MachineConfigPools";
        tasks.spawn(watch::<PoolView>(cluster, &watched, pools, shown));
        tasks.spawn(watch::<NodeView>(cluster, &watched, (), "the Nodes"));
        let shown = "the MachineConfigNodes";
        tasks.spawn(watch::<MachineConfigNodeStatus>(
            cluster, &watched, progress, shown,
        ));
        Self {
            watched,
            _tasks: tasks,
        }
    }

    /// Waits for a change after those of the last call. Cancel-safe.
    pub async fn changed(&self) {
        self.watched.changed.notified().await;
    }

    /// The present objects.
    ///
    /// # Errors
    /// A watch was refused. An API server that cannot be reached is no error: its watches are opened again.
    pub fn fleet(&self) -> Result<Fleet, WatchRefused> {
        self.watched.state().clone()
    }
}

/// One of the watched kinds, reduced to what is shown of it.
trait FleetObject: Sized + Send + Sync + 'static {
    type Object: Resource<DynamicType: Send + Sync + Clone>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + 'static;

    /// A kind that does not exist or must not be read is the same as one without objects.
    const IS_OPTIONAL: bool = false;

    fn objects(fleet: &mut Fleet) -> &mut BTreeMap<String, Self>;
}

impl FleetObject for PoolView {
    type Object = DynamicObject;

    fn objects(fleet: &mut Fleet) -> &mut BTreeMap<String, Self> {
        &mut fleet.pools
    }
}

impl FleetObject for NodeView {
    type Object = NodeObject;

    fn objects(fleet: &mut Fleet) -> &mut BTreeMap<String, Self> {
        &mut fleet.nodes
    }
}

impl FleetObject for MachineConfigNodeStatus {
    type Object = DynamicObject;
    const IS_OPTIONAL: bool = true;

    fn objects(fleet: &mut Fleet) -> &mut BTreeMap<String, Self> {
        &mut fleet.progress
    }
}

/// An object by its name; none if it cannot be parsed.
struct ListedObject<V>(String, Option<V>);

impl From<DynamicObject> for ListedObject<PoolView> {
    fn from(object: DynamicObject) -> Self {
        Self(name(&object), Some(pool_view(object)))
    }
}

impl From<NodeObject> for ListedObject<NodeView> {
    fn from(object: NodeObject) -> Self {
        Self(name(&object), Some(object.into()))
    }
}

impl From<DynamicObject> for ListedObject<MachineConfigNodeStatus> {
    fn from(object: DynamicObject) -> Self {
        Self(name(&object), status_of(&object))
    }
}

fn name(object: &impl Resource) -> String {
    object.meta().name.clone().unwrap_or_default()
}

/// The watch on one kind.
struct KindWatch<V: FleetObject> {
    cluster: Cluster,
    /// The objects in messages.
    shown: &'static str,
    kind: <V::Object as Resource>::DynamicType,
    watched: Arc<WatchedFleet>,
    view: PhantomData<V>,
}

impl<V: FleetObject> WatchHandler for KindWatch<V>
where
    ListedObject<V>: From<V::Object>,
{
    type Object = V::Object;
    type View = ListedObject<V>;

    fn page_items() -> Option<u32> {
        Some(FLEET_PAGE_ITEMS)
    }

    fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    fn object(&self) -> String {
        self.shown.to_owned()
    }

    fn selector(&self) -> String {
        String::new()
    }

    async fn kind(&mut self) -> Result<<V::Object as Resource>::DynamicType, ClusterError> {
        Ok(self.kind.clone())
    }

    async fn listed(&mut self, objects: Vec<ListedObject<V>>) -> Result<(), ClusterError> {
        let objects = objects.into_iter();
        let objects = objects.filter_map(|ListedObject(name, view)| Some((name, view?)));
        self.watched
            .change(|fleet| *V::objects(fleet) = objects.collect());
        Ok(())
    }

    fn opened(&mut self) {}

    fn changed(&mut self, change: WatchChange<V::Object>) {
        let (object, is_deleted) = match change {
            WatchChange::Applied(object) => (object, false),
            WatchChange::Deleted(object) => (object, true),
            WatchChange::Bookmark => return,
        };
        let ListedObject(name, view) = ListedObject::<V>::from(object);
        self.watched.change(|fleet| {
            match view.filter(|_| !is_deleted) {
                Some(view) => V::objects(fleet).insert(name, view),
                None => V::objects(fleet).remove(&name),
            };
        });
    }

    fn failed(&mut self, error: &ClusterError, first: bool, wait: Duration) -> Duration {
        let is_refused = error.is_forbidden() || error.is_not_found();
        if is_refused && V::IS_OPTIONAL {
            return UNREADABLE_KIND_RECHECK;
        }
        if is_refused || !error.is_retryable() {
            self.watched.refuse(error);
        } else if first {
            tracing::warn!("{}", chain(error));
        }
        wait
    }
}

fn watch<V: FleetObject>(
    cluster: &Cluster,
    watched: &Arc<WatchedFleet>,
    kind: <V::Object as Resource>::DynamicType,
    shown: &'static str,
) -> impl Future<Output = ()> + Send + use<V>
where
    ListedObject<V>: From<V::Object>,
{
    let handler = KindWatch::<V> {
        cluster: cluster.clone(),
        shown,
        kind,
        watched: Arc::clone(watched),
        view: PhantomData,
    };
    // The task is aborted with its set.
    watch_loop::run(handler, CancellationToken::new())
}
