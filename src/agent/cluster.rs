//! This machine as a node: the cluster says what it should be, and is told what it is.

mod cancelling;
mod happened;
mod seen;
mod telling;
mod withheld;

use std::sync::Arc;

use seen::Seen;
use tokio::sync::{Notify, watch};

use super::{
    AgentError, Origin, claims,
    held::Bars,
    node::{ByAgent, ByController, Chosen, Ours},
    other_daemon::Lookout,
    pool::Member,
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
    config::{Job, Kubeconfig, Place, Settings},
    device::service::DevicesHandle,
    hardware,
    metrics::Metrics,
    plan::Policies,
    readiness::{self, report::ClusterView},
    root::Root,
    shutdown::Tasks,
    status::{HeldStatus, Status},
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
    /// The pool that our Node is in; says nothing new outside a cluster.
    pub(super) pool: watch::Receiver<Option<String>>,
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
    /// The pool that our Node is in.
    pool: watch::Receiver<Option<String>>,
    /// Another daemon may have come.
    suspect: Arc<Notify>,
}

/// What keeps the config from being begun here; where another daemon is seen is told to `seen`.
pub(super) fn bars(
    root: &Root,
    joined: Option<&Joined>,
    seen: watch::Sender<Option<String>>,
) -> Bars {
    Bars {
        lookout: Lookout {
            root: root.clone(),
            cluster: joined.map(Joined::named),
        },
        suspect: joined.map_or_else(Arc::default, |joined| Arc::clone(&joined.suspect)),
        node: joined.map(|joined| joined.node.clone()),
        seen,
    }
}

/// What the node's part of the agent needs of the rest.
pub(super) struct Beside {
    pub(super) root: Root,
    pub(super) devices: Option<DevicesHandle>,
    pub(super) settings: watch::Receiver<Arc<Settings>>,
    pub(super) update: watch::Receiver<Arc<UpdateReport>>,
    pub(super) statuses: watch::Receiver<Arc<Status>>,
    /// Where another daemon was seen that changes this machine's config.
    pub(super) other_daemon: watch::Receiver<Option<String>>,
    /// The config that a person holds the machine on.
    pub(super) held: watch::Receiver<Option<HeldStatus>>,
}

impl Joined {
    /// The cluster, and our Node's name in it.
    fn named(&self) -> (Cluster, String) {
        (self.cluster.clone(), self.node.name().to_owned())
    }

    /// Starts to tell the cluster how the machine is; what the update loop asks of the cluster.
    fn take_part(self, beside: Beside, tasks: &Tasks) -> Arc<dyn Node> {
        let lookout = Lookout {
            root: beside.root.clone(),
            cluster: Some(self.named()),
        };
        let Self {
            node,
            cluster,
            events,
            pod_uid,
            pool,
            suspect,
        } = self;
        let (asks, asked) = watch::channel(None);
        telling::tell(&node, &cluster, &beside, pool, asked, events.clone(), tasks);
        let happened = happened::tell(beside.update.clone(), events.clone(), tasks.token());
        tasks.spawn("update events", happened);
        if beside.settings.borrow().does(Job::Config) {
            let update = beside.update.clone();
            let answer = cancelling::answer(node.clone(), update, events.clone(), tasks.token());
            tasks.spawn("cancelled updates", answer);
        }
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
            lookout,
            suspect,
            settings: beside.settings.clone(),
            held: beside.held,
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
    if let Some(devices) = &beside.devices {
        claims::start(devices, joined.as_ref().map(|joined| &joined.node), tasks);
    }
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
    place: &Place,
    desired: watch::Sender<Desired>,
    metrics: &Metrics,
    tasks: &Tasks,
) -> Result<Around, AgentError> {
    let source = match source {
        Origin::Cluster { access, pod_uid } => {
            let mut around = join(access, pod_uid, root, settings, desired, metrics, tasks).await?;
            if let Some(joined) = &mut around.joined {
                let member = Member::new(
                    root,
                    joined.cluster.clone(),
                    joined.node.clone(),
                    place.pool.clone(),
                );
                (around.pool, joined.pool) = (member.told(), member.told());
                tasks.spawn("pool", member.follow(tasks.token()));
            }
            return Ok(around);
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
        pool: watch::channel(None).1,
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
            first: store::peek(root).is_ok_and(|journal| journal.base.is_none()),
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
        taints: None,
        zeros: Vec::new(),
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
    let (clock, stop) = (Clock::system(), tasks.token());
    let report = events::report(cluster.clone(), node.clone(), told, clock, stop);
    tasks.spawn("events", report);
    let joined = Some(Joined {
        node,
        cluster,
        events,
        pod_uid,
        pool: watch::channel(None).1,
        suspect: Arc::default(),
    });
    Ok(Around {
        views,
        policies: told_policies,
        pool: watch::channel(None).1,
        joined,
    })
}

/// The name that the settings, the DaemonSet or the host give; a kubelet takes the host's in lower case.
pub fn node_name(settings: &Settings) -> Result<String, AgentError> {
    if let Some(name) = &settings.cluster.node {
        return Ok(name.clone());
    }
    let host = hardware::host_name();
    let host = host.map_err(|e| AgentError::System("learn the host's name", e))?;
    Ok(host.to_lowercase())
}
