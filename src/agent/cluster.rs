//! Connects this machine to its Node: reads the desired config from the cluster and publishes the machine's state.

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
    agent::report::ClusterView,
    clock::Clock,
    cluster::{
        Access, Cluster, Surroundings,
        configs::{ConfigSource, Told},
        events::{self, Events},
        node::OwnNode,
        pods::NodePods,
    },
    config::{Job, Kubeconfig, Place, Settings},
    hardware,
    metrics::Metrics,
    plan::Policies,
    readiness,
    root::Root,
    service::DevicesHandle,
    shutdown::Tasks,
    status::{HeldStatus, Status},
    update::{
        node::Node,
        ports::Services,
        run::{Audience, Desired, UpdateReport, Updater},
        store,
    },
};

/// How to reach the API server: from the settings, or else from the process environment. None if there is no
/// cluster.
pub fn access(root: &Root, settings: &Settings, around: &Surroundings) -> Option<Access> {
    match &settings.cluster.kubeconfig {
        Kubeconfig::Below(path) => Some(Access::Kubeconfig(vec![root.host_path(path)])),
        Kubeconfig::Callers(path) => Some(Access::Kubeconfig(vec![path.into()])),
        Kubeconfig::None => Access::of_agent(around),
    }
}

/// Cluster state that the rest of the agent uses.
#[derive(Debug)]
pub(super) struct Around {
    /// Cluster view for status and gates; never changes without a cluster.
    pub(super) views: watch::Receiver<ClusterView>,
    /// Disruption policies defined in the cluster.
    pub(super) policies: watch::Receiver<Option<Arc<Policies>>>,
    /// The pool of our Node; never changes without a cluster.
    pub(super) pool: watch::Receiver<Option<String>>,
    /// The connection to the cluster; none without a cluster.
    pub(super) joined: Option<Joined>,
}

/// The agent's connection to a cluster.
#[derive(Debug)]
pub(super) struct Joined {
    node: OwnNode,
    cluster: Cluster,
    events: Events,
    pod_uid: Option<String>,
    /// The pool of our Node.
    pool: watch::Receiver<Option<String>>,
    /// Notified when another daemon may have started.
    suspect: Arc<Notify>,
}

/// Conditions that prevent an update from starting; `seen` receives where another daemon was detected.
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

/// Parts of the agent that the Node tasks depend on.
pub(super) struct Beside {
    pub(super) root: Root,
    pub(super) devices: Option<DevicesHandle>,
    pub(super) settings: watch::Receiver<Arc<Settings>>,
    pub(super) update: watch::Receiver<Arc<UpdateReport>>,
    pub(super) statuses: watch::Receiver<Arc<Status>>,
    /// Where another daemon was detected that manages this machine's config.
    pub(super) other_daemon: watch::Receiver<Option<String>>,
    /// The config that an operator override holds the machine on.
    pub(super) held: watch::Receiver<Option<HeldStatus>>,
}

impl Joined {
    /// The cluster and our Node's name.
    fn named(&self) -> (Cluster, String) {
        (self.cluster.clone(), self.node.name().to_owned())
    }

    /// Starts the tasks that publish the machine's state; returns the Node interface of the reconciler.
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
            tasks.spawn("disabled devices", withheld);
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

/// Connects the reconciler to the Node, if there is one.
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

/// Starts reading the source of the desired config.
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

/// Joins the cluster: watches our Node and reads the config that it names.
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
    tracing::info!("following the desired MachineConfig of Node {name}");
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

/// The Node's name from the settings, the DaemonSet or the host name; kubelets use the host name in lower case.
pub fn node_name(settings: &Settings) -> Result<String, AgentError> {
    if let Some(name) = &settings.cluster.node {
        return Ok(name.clone());
    }
    let host = hardware::host_name();
    let host = host.map_err(|e| AgentError::System("read the host name", e))?;
    Ok(host.to_lowercase())
}
