//! The watches: one each on Nodes, MachineConfigPools, MachineConfigs, PodDisruptionBudgets, on the ControllerConfig that
//! only OpenShift's controllers create, on the MachineConfiguration with the disruption policies, and on the UpgradeConfig
//! of OpenShift's managed upgrades.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use kube::{Resource, api::ApiResource};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    config_object::ConfigObject,
    failure_log::log_failure,
    inbox::Inbox,
    policy_object::PolicyObject,
    watched_budget::WatchedBudget,
    watched_upgrade::{WatchedUpgradeConfig, upgrade_config_kind},
    watched_view::{ListedItem, WatchedView},
};
use machinist_cluster::{
    Cluster, ClusterError, WatchChange, cluster_policies, resource,
    watch_loop::{self, WatchHandler},
};
use machinist_kube_api::{NodeView, PoolView, keys};

/// How many objects a list reads at once, as kubectl does.
const WATCH_PAGE_ITEMS: u32 = 500;

/// How long until a kind that does not exist or must not be read is looked for again: its CRD may be installed later.
const ABSENT_KIND_RECHECK: Duration = Duration::from_secs(60);

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
        let views = objects.into_iter().map(|item| item.view).collect();
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
        let is_absent = self.may_be_absent && error.is_not_found();
        let is_ignored = V::FORBIDDEN_IS_ABSENT && error.is_forbidden();
        if !is_absent {
            log_failure(error, first);
        }
        if !is_absent && !is_ignored {
            return wait;
        }
        V::mailbox(&self.inbox).put_list(Vec::new());
        self.inbox.arrived.notify_one();
        ABSENT_KIND_RECHECK
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
    tasks.spawn(watch::<PolicyObject>(
        cluster,
        inbox,
        cluster_policies::machine_configuration(),
        "the MachineConfiguration",
        Some(keys::MACHINE_CONFIGURATION),
    ));
    tasks.spawn(watch::<WatchedUpgradeConfig>(
        cluster,
        inbox,
        upgrade_config_kind(),
        "the UpgradeConfig",
        Some(keys::UPGRADE_CONFIG),
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
