//! Connects this machine to its Node: reads the desired config from the cluster and publishes the machine's state.

mod cancel_reply;
mod grant_end;
mod mcd_drain;
mod node_view;
mod status_publisher;
mod update_events;

use std::sync::Arc;

use node_view::NodeViewTask;
use tokio::sync::{Notify, watch};

use super::{
    AgentError, ConfigOrigin,
    desired_config::UpdateBlockers,
    dra,
    mcd_detect::McdDetector,
    node::{AgentDrain, ControllerDrain, DrainBackend, NodeContext},
    pinned_images::{self, PullInputs, PullReports, UpdateWait},
    pool_settings::PoolMembershipTask,
};
use crate::{
    grant_gate::GrantGate, host, reported_updates::ReportedUpdates, reporter::ClusterView,
};
use machinist_base::{clock::Clock, shutdown::Tasks};
use machinist_cluster::{
    Cluster, ClusterAccess, ClusterEnv,
    events::{self, EventSource, Events},
    machine_config_source::{ConfigSource, ConfigSubscribers},
    node::OwnNode,
    pinned_image_sets::{ImageSets, watch_image_sets},
    pods::NodePods,
};
use machinist_device_plugins::device_service::DevicesHandle;
use machinist_plan::Policies;
use machinist_pool::ImageSetSelection;
use machinist_rootfs::Root;
use machinist_status::{
    PinStatus, Status,
    metrics::Metrics,
    readiness,
    settings::{AgentRole, Kubeconfig, Settings, SettingsLocation},
};
use machinist_systemd::Systemd;
use machinist_update::{
    boot_id,
    node_port::NodePort,
    reconciler::{DesiredConfig, Reconciler, ReconcilerHooks, UpdateReport},
    service_port::Services,
    store,
};

/// How to reach the API server: from the settings, or else from the process environment. None if there is no
/// cluster.
pub fn access(root: &Root, settings: &Settings, around: &ClusterEnv) -> Option<ClusterAccess> {
    match &settings.cluster.kubeconfig {
        Kubeconfig::Below(path) => Some(ClusterAccess::Kubeconfig(vec![root.host_path(path)])),
        Kubeconfig::Callers(path) => Some(ClusterAccess::Kubeconfig(vec![path.into()])),
        Kubeconfig::None => ClusterAccess::of_agent(around),
    }
}

/// Cluster state that the rest of the agent uses.
#[derive(Debug)]
pub(super) struct ClusterInputs {
    /// Cluster view for status and gates; never changes without a cluster.
    pub(super) views: watch::Receiver<ClusterView>,
    /// Disruption policies defined in the cluster.
    pub(super) policies: watch::Receiver<Option<Arc<Policies>>>,
    /// The pool of our Node; never changes without a cluster.
    pub(super) pool: watch::Receiver<Option<String>>,
    /// The connection to the cluster; none without a cluster.
    pub(super) joined: Option<ClusterHandle>,
}

/// The agent's connection to a cluster.
#[derive(Debug)]
pub(super) struct ClusterHandle {
    node: OwnNode,
    cluster: Cluster,
    events: Events,
    pod_uid: Option<String>,
    /// The pool of our Node.
    pool: watch::Receiver<Option<String>>,
    /// The sets of images of that pool.
    image_sets: watch::Receiver<Option<ImageSetSelection>>,
    metrics: Metrics,
    /// Notified when another daemon may have started.
    suspect: Arc<Notify>,
    /// Whether a controller has to grant updates of our Node.
    grants: GrantGate,
}

/// Conditions that prevent an update from starting; `seen` receives where another daemon was detected.
pub(super) fn update_blockers(
    root: &Root,
    joined: Option<&ClusterHandle>,
    seen: watch::Sender<Option<String>>,
) -> UpdateBlockers {
    UpdateBlockers {
        lookout: McdDetector {
            root: root.clone(),
            cluster: joined.map(ClusterHandle::named),
        },
        suspect: joined.map_or_else(Arc::default, |joined| Arc::clone(&joined.suspect)),
        node: joined.map(|joined| joined.node.clone()),
        grants: joined.map(|joined| joined.grants.clone()),
        seen,
    }
}

/// Parts of the agent that the Node tasks depend on.
pub(super) struct AgentHandles {
    pub(super) root: Root,
    pub(super) devices: Option<DevicesHandle>,
    pub(super) settings: watch::Receiver<Arc<Settings>>,
    pub(super) update: watch::Receiver<Arc<UpdateReport>>,
    /// The finished updates that an earlier process has reported.
    pub(super) reported: ReportedUpdates,
    pub(super) statuses: watch::Receiver<Arc<Status>>,
    /// Where another daemon was detected that manages this machine's config.
    pub(super) other_daemon: watch::Receiver<Option<String>>,
    /// The config that an operator override holds the machine on.
    pub(super) held: watch::Receiver<Option<PinStatus>>,
    /// The service manager; none if the root is not a running machine.
    pub(super) systemd: Option<Systemd>,
}

impl AgentHandles {
    /// Starts pulling the images of the node's pool, if this agent manages the machine.
    fn start_images(
        &self,
        cluster: &Cluster,
        pool: watch::Receiver<Option<ImageSetSelection>>,
        metrics: Metrics,
        tasks: &Tasks,
    ) -> PullReports {
        let settings = self.settings.borrow().clone();
        if !settings.has_role(AgentRole::Config) {
            pinned_images::forget(&self.root, self.systemd.clone(), &settings, tasks);
            return PullReports::none();
        }
        let (to, sets) = watch::channel(ImageSets::default());
        let watching = watch_image_sets(cluster.clone(), to, tasks.token());
        tasks.spawn("pinned image sets", watching);
        let inputs = PullInputs {
            sets,
            pool,
            settings: self.settings.clone(),
            other_daemon: self.other_daemon.clone(),
        };
        pinned_images::start(&self.root, self.systemd.clone(), inputs, metrics, tasks)
    }
}

impl ClusterHandle {
    /// The cluster and our Node's name.
    fn named(&self) -> (Cluster, String) {
        (self.cluster.clone(), self.node.name().to_owned())
    }

    /// Starts the tasks that publish the machine's state; returns the Node interface of the reconciler.
    fn start_tasks(self, beside: AgentHandles, tasks: &Tasks) -> Arc<dyn NodePort> {
        let lookout = McdDetector {
            root: beside.root.clone(),
            cluster: Some(self.named()),
        };
        let Self {
            node,
            cluster,
            events,
            pod_uid,
            pool,
            image_sets,
            metrics,
            suspect,
            grants,
        } = self;
        let images = beside.start_images(&cluster, image_sets, metrics, tasks);
        let (asks, asked) = watch::channel(None);
        status_publisher::start_publishing(
            &node,
            &cluster,
            &beside,
            (pool, images.sets),
            asked,
            events.clone(),
            tasks,
        );
        let (update, reported) = (beside.update.clone(), beside.reported.clone());
        let (to, stop) = (events.clone(), tasks.token());
        let happened = update_events::emit_update_events(update, reported, to, stop);
        tasks.spawn("update events", happened);
        if beside.settings.borrow().has_role(AgentRole::Config) {
            start_replies(&node, &beside, &events, tasks);
        }
        if let Some(devices) = beside.devices.clone()
            && !beside.settings.borrow().has_role(AgentRole::Config)
        {
            let disabling =
                mcd_drain::disable_devices_during_drain(node.snapshots(), devices, tasks.token());
            tasks.spawn("disabled devices", disabling);
        }
        let by = beside.settings.borrow().drain.by;
        let ours = NodeContext {
            node,
            devices: beside.devices,
            statuses: beside.statuses,
            events,
            lookout,
            suspect,
            settings: beside.settings.clone(),
            held: beside.held,
            grants,
            images: UpdateWait::new(images.first_pull, beside.settings.clone()),
        };
        let pods = NodePods::new(cluster.clone(), None);
        let agent = AgentDrain::new(ours.clone(), pods, beside.settings, pod_uid);
        let controller = ControllerDrain::new(ours, asks);
        Arc::new(DrainBackend::new(by, cluster, agent, controller))
    }
}

/// Starts the tasks that reply to requests on the Node: to operators who cancel updates, and to the controller's grants.
fn start_replies(node: &OwnNode, beside: &AgentHandles, events: &Events, tasks: &Tasks) {
    let (update, stop) = (beside.update.clone(), tasks.token());
    let answer = cancel_reply::reply_to_cancellations(node.clone(), update, events.clone(), stop);
    tasks.spawn("cancelled updates", answer);
    let (update, held) = (beside.update.clone(), beside.held.clone());
    let ending = grant_end::end_grants(node.clone(), update, held, Clock::system(), tasks.token());
    tasks.spawn("ended grants", ending);
}

/// Connects the reconciler to the Node, if there is one.
pub(super) fn on_node<S: Services, A: ReconcilerHooks>(
    driver: Reconciler<S, A>,
    joined: Option<ClusterHandle>,
    beside: AgentHandles,
    tasks: &Tasks,
) -> Reconciler<S, A> {
    if let Some(devices) = &beside.devices {
        dra::start(devices, joined.as_ref().map(|joined| &joined.node), tasks);
    }
    match joined {
        Some(joined) => driver.on_node(joined.start_tasks(beside, tasks)),
        None => driver,
    }
}

/// Starts reading the source of the desired config.
pub(super) async fn follow(
    source: ConfigOrigin,
    root: &Root,
    settings: &Settings,
    place: &SettingsLocation,
    desired: watch::Sender<DesiredConfig>,
    metrics: &Metrics,
    tasks: &Tasks,
) -> Result<ClusterInputs, AgentError> {
    let source = match source {
        ConfigOrigin::Cluster { access, pod_uid } => {
            let mut around = join(access, pod_uid, root, settings, desired, metrics, tasks).await?;
            if let Some(joined) = &mut around.joined {
                let member = PoolMembershipTask::new(
                    root,
                    joined.cluster.clone(),
                    joined.node.clone(),
                    place.pool.clone(),
                );
                (around.pool, joined.pool) = (member.pool_receiver(), member.pool_receiver());
                joined.image_sets = member.image_sets_receiver();
                tasks.spawn("pool", member.follow(tasks.token()));
            }
            return Ok(around);
        }
        ConfigOrigin::Directory(source) => source,
    };
    if settings.has_role(AgentRole::Config) {
        tracing::info!("following dir:{}", source.shown);
        let read = Arc::new(metrics.clone());
        tasks.spawn("source", source.follow(desired, read, tasks.token()));
    }
    Ok(ClusterInputs {
        views: watch::channel(ClusterView::default()).1,
        policies: watch::channel(None).1,
        pool: watch::channel(None).1,
        joined: None,
    })
}

/// Joins the cluster: watches our Node and reads the config that it names.
async fn join(
    access: ClusterAccess,
    pod_uid: Option<String>,
    root: &Root,
    settings: &Settings,
    desired: watch::Sender<DesiredConfig>,
    metrics: &Metrics,
    tasks: &Tasks,
) -> Result<ClusterInputs, AgentError> {
    let name = node_name(settings)?;
    let cluster = Cluster::connect(access).await?;
    let node = OwnNode::new(cluster.clone(), &name);
    tracing::info!("following the desired MachineConfig of Node {name}");
    tasks.spawn("node", node.clone().watch_node(tasks.token()));
    let (policies, told_policies) = watch::channel(None);
    let (trouble, troubles) = watch::channel(None);
    if settings.has_role(AgentRole::Config) {
        let source = ConfigSource {
            cluster: cluster.clone(),
            node: node.clone(),
            rules: super::settings_mapping::rules(settings),
            first: store::peek(root).is_ok_and(|journal| journal.base.is_none()),
        };
        let subscribers = ConfigSubscribers {
            desired: desired.clone(),
            policies,
            trouble,
            metrics: metrics.clone(),
        };
        tasks.spawn("source", source.watch_config(subscribers, tasks.token()));
    }
    let (to, views) = watch::channel(ClusterView {
        node: Some(name),
        node_uid: String::new(),
        kubelet: readiness::KubeletReadiness::Unknown,
        taints: None,
        zeros: Vec::new(),
        trouble: None,
    });
    let seen = NodeViewTask {
        snapshots: node.snapshots(),
        troubles,
        desired,
        boot: boot_id::current(root).ok().flatten().unwrap_or_default(),
    };
    tasks.spawn("node view", seen.publish_view(to, tasks.token()));
    let ((events, queue), source) = (Events::new(), EventSource::Agent(node.clone()));
    let stop = tasks.token();
    let report = events::report(cluster.clone(), source, queue, Clock::system(), stop);
    tasks.spawn("events", report);
    let joined = Some(ClusterHandle {
        grants: GrantGate::new(node.clone()),
        node,
        cluster,
        events,
        pod_uid,
        pool: watch::channel(None).1,
        image_sets: watch::channel(None).1,
        metrics: metrics.clone(),
        suspect: Arc::default(),
    });
    Ok(ClusterInputs {
        views,
        policies: told_policies,
        pool: watch::channel(None).1,
        joined,
    })
}

/// The Node's name from the settings, the DaemonSet or the host name; kubelets use the host name in lower case.
pub fn node_name(settings: &Settings) -> Result<String, AgentError> {
    if let Some(name) = &settings.cluster.node {
        return Ok(name.clone());
    }
    let host = host::host_name();
    let host = host.map_err(|e| AgentError::System("read the host name", e))?;
    Ok(host.to_lowercase())
}
