//! This machine as a node: the cluster says what it should be, and is told what it is.

mod happened;
mod seen;
mod telling;
mod withheld;

use std::sync::Arc;

use seen::Seen;
use tokio::sync::watch;

use super::{
    AgentError, Origin,
    node::{ByAgent, ByController, Chosen, Ours},
};
use crate::{
    clock::Clock,
    cluster::{
        Access, Cluster, Surroundings,
        configs::{ConfigSource, Told},
        events::{self, Events},
        node::OwnNode,
        pods::NodePods,
    },
    config::{Job, Kubeconfig, Settings},
    device::service::DevicesHandle,
    hardware,
    metrics::Metrics,
    plan::Policies,
    readiness::{self, report::ClusterView},
    root::Root,
    shutdown::Tasks,
    status::Status,
    update::{
        node::Node,
        ports::Services,
        run::{Audience, Desired, UpdateReport, Updater},
        store,
    },
};

/// How the API server is reached: as the settings say, else as what surrounds the process does. None:
/// there is no cluster.
pub fn access(root: &Root, settings: &Settings, around: &Surroundings) -> Option<Access> {
    match &settings.cluster.kubeconfig {
        Kubeconfig::Below(path) => Some(Access::Kubeconfig(vec![root.host_path(path)])),
        Kubeconfig::Callers(path) => Some(Access::Kubeconfig(vec![path.into()])),
        Kubeconfig::None => Access::of_agent(around),
    }
}

/// What surrounds this machine, as the rest of the agent sees it.
#[derive(Debug)]
pub(super) struct Around {
    /// For status and gates; says nothing outside a cluster.
    pub(super) views: watch::Receiver<ClusterView>,
    /// The disruption policies that the cluster has.
    pub(super) policies: watch::Receiver<Option<Arc<Policies>>>,
    /// None outside a cluster.
    pub(super) joined: Option<Joined>,
}

/// Our place in a cluster.
#[derive(Debug)]
pub(super) struct Joined {
    node: OwnNode,
    cluster: Cluster,
    events: Events,
    pod_uid: Option<String>,
}

/// What the node's part of the agent needs of the rest.
pub(super) struct Beside {
    pub(super) devices: Option<DevicesHandle>,
    pub(super) settings: watch::Receiver<Arc<Settings>>,
    pub(super) update: watch::Receiver<Arc<UpdateReport>>,
    pub(super) statuses: watch::Receiver<Arc<Status>>,
}

impl Joined {
    /// Starts to tell the cluster how the machine is; what the update loop asks of the cluster.
    fn take_part(self, beside: Beside, tasks: &Tasks) -> Arc<dyn Node> {
        let Self {
            node,
            cluster,
            events,
            pod_uid,
        } = self;
        let (asks, asked) = watch::channel(None);
        telling::tell(&node, &cluster, &beside, asked, tasks);
        let happened = happened::tell(beside.update.clone(), events.clone(), tasks.token());
        tasks.spawn("update events", happened);
        if let Some(devices) = beside.devices.clone()
            && !beside.settings.borrow().does(Job::Config)
        {
            let withheld = withheld::follow(node.sights(), devices, tasks.token());
            tasks.spawn("withheld devices", withheld);
        }
        let by = beside.settings.borrow().drain.by;
        let ours = Ours {
            node,
            devices: beside.devices,
            statuses: beside.statuses,
            events,
        };
        let pods = NodePods::new(cluster.clone(), None);
        let agent = ByAgent::new(ours.clone(), pods, beside.settings, pod_uid);
        let controller = ByController::new(ours, asks);
        Arc::new(Chosen::new(by, cluster, agent, controller))
    }
}

/// The driver with the node that it has to ask, if there is one.
pub(super) fn on_node<S: Services, A: Audience>(
    driver: Updater<S, A>,
    joined: Option<Joined>,
    beside: Beside,
    tasks: &Tasks,
) -> Updater<S, A> {
    match joined {
        Some(joined) => driver.on_node(joined.take_part(beside, tasks)),
        None => driver,
    }
}

/// Follows what says what the machine should be.
pub(super) async fn follow(
    source: Origin,
    root: &Root,
    settings: &Settings,
    desired: watch::Sender<Desired>,
    metrics: &Metrics,
    tasks: &Tasks,
) -> Result<Around, AgentError> {
    let source = match source {
        Origin::Cluster { access, pod_uid } => {
            return join(access, pod_uid, root, settings, desired, metrics, tasks).await;
        }
        Origin::Directory(source) => source,
    };
    if settings.does(Job::Config) {
        tracing::info!("following dir:{}", source.shown);
        let read = Arc::new(metrics.clone());
        tasks.spawn("source", source.follow(desired, read, tasks.token()));
    }
    Ok(Around {
        views: watch::channel(ClusterView::default()).1,
        policies: watch::channel(None).1,
        joined: None,
    })
}

/// Joins the cluster: follows our Node and the config that it names.
async fn join(
    access: Access,
    pod_uid: Option<String>,
    root: &Root,
    settings: &Settings,
    desired: watch::Sender<Desired>,
    metrics: &Metrics,
    tasks: &Tasks,
) -> Result<Around, AgentError> {
    let name = node_name(settings)?;
    let cluster = Cluster::connect(access).await?;
    let node = OwnNode::new(cluster.clone(), &name);
    tracing::info!("following the MachineConfig that Node {name} names");
    tasks.spawn("node", node.clone().follow(tasks.token()));
    let (policies, told_policies) = watch::channel(None);
    let (trouble, troubles) = watch::channel(None);
    if settings.does(Job::Config) {
        let source = ConfigSource {
            cluster: cluster.clone(),
            node: node.clone(),
            rules: super::setup::rules(settings),
        };
        let told = Told {
            desired: desired.clone(),
            policies,
            trouble,
            metrics: metrics.clone(),
        };
        tasks.spawn("source", source.follow(told, tasks.token()));
    }
    let (to, views) = watch::channel(ClusterView {
        node: Some(name),
        kubelet: readiness::Kubelet::Unknown,
        trouble: None,
    });
    let seen = Seen {
        sights: node.sights(),
        troubles,
        desired,
        boot: store::boot_id(root).ok().flatten().unwrap_or_default(),
    };
    tasks.spawn("node view", seen.show(to, tasks.token()));
    let (events, told) = Events::new();
    let report = events::report(
        cluster.clone(),
        node.clone(),
        told,
        Clock::system(),
        tasks.token(),
    );
    tasks.spawn("events", report);
    let joined = Some(Joined {
        node,
        cluster,
        events,
        pod_uid,
    });
    Ok(Around {
        views,
        policies: told_policies,
        joined,
    })
}

/// The name that the settings, the DaemonSet or the host give; a kubelet takes the host's in lower case.
fn node_name(settings: &Settings) -> Result<String, AgentError> {
    if let Some(name) = &settings.cluster.node {
        return Ok(name.clone());
    }
    let host = hardware::host_name();
    let host = host.map_err(|e| AgentError::System("learn the host's name", e))?;
    Ok(host.to_lowercase())
}
