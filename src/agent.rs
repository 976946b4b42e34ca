//! The composition root: settings become adapters, adapters become tasks, and the agent waits for
//! whichever ends first – a signal, or a task that cannot go on.

mod brought;
mod claims;
mod cluster;
mod devices;
pub mod guard;
mod handover;
mod held;
pub mod host_part;
mod node;
mod once;
mod other_daemon;
mod policies;
pub mod pool;
mod probed;
pub mod quiesce;
mod serve;
mod settings;
mod setup;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::sync::{Notify, mpsc, watch};

pub use cluster::{access, node_name};
pub use devices::allowances;
pub use handover::{HandedNode, adoption, failed_units, giving, rules};
pub use once::{apply_once, plan};
pub use other_daemon::on_host as other_daemon;
pub use policies::{PoliciesError, policies};
pub use setup::{capabilities, conduct, judge, look_capabilities, plain, source};

use crate::{
    admin::{self, Served},
    cluster::Access,
    config::{Job, Place, Settings},
    hardware::gateway,
    metrics::Metrics,
    plan::Plan,
    readiness::report::{self, DevicesView, Sources},
    reason::Reason,
    root::{Root, RootError},
    shutdown::{self, Tasks, Unclean},
    source::DirectorySource,
    systemd::{Notifier, Systemd},
    update::run::{Audience, Desired, TICK, UpdateError, Updater},
};

/// What the agent is started with.
#[derive(Debug)]
pub struct Setup {
    /// The tree that is looked after.
    pub root: Root,
    /// Where the settings come from, for reading them again.
    pub place: Place,
    /// The settings as read.
    pub settings: Settings,
    /// Where configs come from.
    pub source: Origin,
}

/// Where configs come from.
#[derive(Debug)]
pub enum Origin {
    /// A directory on this machine.
    Directory(DirectorySource),
    /// The cluster.
    Cluster {
        /// How it is reached.
        access: Access,
        /// UID of the pod that this process runs in; none on the host itself.
        pod_uid: Option<String>,
    },
}

impl Origin {
    /// What [`Status::source`](crate::status::Status::source) says where the cluster does.
    pub const CLUSTER: &'static str = "cluster";

    /// As `status` shows it.
    fn shown(&self) -> String {
        match self {
            Self::Directory(source) => format!("dir:{}", source.shown),
            Self::Cluster { .. } => Self::CLUSTER.to_owned(),
        }
    }
}

/// Why the agent does not start, or ends by itself.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A live root needs more than this process may do.
    #[error(
        "a live machine needs CAP_CHOWN, which this process lacks; run as root, or on a directory with --root DIR"
    )]
    NotRoot,
    /// Another daemon changes this machine's config.
    #[error("{0}: two must not change this machine")]
    OtherDaemon(String),
    /// The owners of a live root cannot only be recorded.
    #[error("owners: record is for offline roots; on a live machine owners are set")]
    RecordOnLive,
    /// The update driver cannot go on.
    #[error(transparent)]
    Update(#[from] Box<UpdateError>),
    /// Nothing can be served.
    #[error(transparent)]
    Bind(#[from] admin::BindError),
    /// The status socket or the control socket cannot be made.
    #[error("cannot serve the agent's sockets")]
    Socket(#[source] RootError),
    /// What runs on this machine cannot be looked at.
    #[error("cannot look whether another daemon changes this machine")]
    Look(#[source] RootError),
    /// The kernel refused something that a process must be able to do.
    #[error("cannot {0}")]
    System(&'static str, #[source] std::io::Error),
    /// The user's disruption policies cannot be used.
    #[error(transparent)]
    Policies(#[from] PoliciesError),
    /// The API server cannot be reached as the settings say.
    #[error(transparent)]
    Connect(#[from] crate::cluster::ConnectError),
    /// A path could not be formed.
    #[error(transparent)]
    Path(#[from] crate::path::BadPath),
    /// A task did not end as it should.
    #[error(transparent)]
    Unclean(#[from] Unclean),
}

impl AgentError {
    /// The stable code.
    pub fn reason(&self) -> Reason {
        match self {
            Self::NotRoot | Self::RecordOnLive => Reason::PermissionMissing,
            Self::OtherDaemon(_) => Reason::OtherDaemon,
            Self::Bind(error) => error.reason(),
            Self::Socket(error) | Self::Look(error) => error.reason(),
            _ => Reason::Io,
        }
    }
}

/// What the driver's loop tells the rest of the agent.
struct Listener {
    pulse: admin::Pulse,
    notifier: Arc<Notifier>,
    devices: watch::Receiver<Arc<DevicesView>>,
    show: fn(&Plan),
}

impl Listener {
    fn new(
        pulse: admin::Pulse,
        notifier: &Arc<Notifier>,
        devices: &watch::Receiver<Arc<DevicesView>>,
        show: fn(&Plan),
    ) -> Self {
        Self {
            pulse,
            notifier: Arc::clone(notifier),
            devices: devices.clone(),
            show,
        }
    }
}

impl Audience for Listener {
    fn approve(&self, plan: &Plan) -> bool {
        (self.show)(plan);
        true
    }

    fn beat(&self) {
        self.pulse.beat();
        self.notifier.watchdog();
    }

    fn tick(&self) -> Duration {
        // A shorter watchdog than the unit file's is an administrator's wish.
        let wanted = self.notifier.watchdog_interval();
        wanted.map_or(TICK, |wanted| wanted.min(TICK))
    }

    async fn asked(&self) {
        self.pulse.asked().await;
    }

    async fn gateways(&self) -> BTreeSet<String> {
        gateways().await
    }

    fn allocatable(&self) -> BTreeMap<String, usize> {
        report::allocatable(&self.devices.borrow())
    }
}

/// A gateway that was found so lately is there; another is looked for before it is called silent. The
/// kernel itself takes five seconds before it looks for one that it has an old address of.
const FOUND_LATELY: Duration = Duration::from_secs(300);
const LOOKED_FOR: Duration = Duration::from_secs(7);

/// Default gateways that answer, for the driver; none where the kernel does not tell.
async fn gateways() -> BTreeSet<String> {
    match gateway::answering(FOUND_LATELY, LOOKED_FOR).await {
        Ok(found) => found,
        Err(error) => {
            tracing::debug!("cannot look for the gateways: {error}");
            BTreeSet::new()
        }
    }
}

/// A loop that was silent for this long is asked; one that does not answer then is stuck.
const SILENT: Duration = Duration::from_secs(1);

/// How long a stop waits for a step of an update that cannot be cut short. The other tasks end
/// meanwhile, and all of it stays below [`shutdown::GRACE`]; what the step leaves half done, the next
/// start settles as it does after a crash.
const LAST_STEP: Duration = Duration::from_millis(700);

/// Runs until a signal or a failure. `show` is called with every plan before it begins.
///
/// What cannot be cut short may still run when this returns: leave the process then, or wait.
pub async fn run(setup: Setup, show: fn(&Plan)) -> Result<(), AgentError> {
    // First of all, so that a signal during the start ends the agent in order, too.
    let signals =
        shutdown::Signals::listen().map_err(|e| AgentError::System("listen for signals", e))?;
    let tasks = Tasks::new();
    let notifier = Arc::new(Notifier::from_env());
    // SIGHUP came: the settings are read again.
    let asked = Arc::new(Notify::new());
    let driver = build(setup, show, &notifier, &asked, &tasks).await?;
    let driven = drive(driver, signals, &asked, &tasks).await;
    notifier.stopping();
    if matches!(driven, Ok(Drive::Left)) {
        return Ok(());
    }
    let finished = tasks.finish(shutdown::GRACE).await;
    driven?;
    Ok(finished?)
}

/// Opens and starts everything but the driver, which is returned.
async fn build(
    setup: Setup,
    show: fn(&Plan),
    notifier: &Arc<Notifier>,
    asked: &Arc<Notify>,
    tasks: &Tasks,
) -> Result<Updater<Systemd, Listener>, AgentError> {
    let capabilities = capabilities(&setup.root, setup.settings.owners)?;
    let (status, statuses) = watch::channel(Arc::new(serve::starting(&setup, capabilities)));
    let Setup {
        root,
        place,
        settings,
        source,
    } = setup;
    let (systemd, host) = setup::on_host(&root, &settings, capabilities).await?;
    let metrics = Metrics::new(statuses.clone());
    let (say, said) = watch::channel(Desired::default());
    let (holding, ends) = held::Holding::new(&root, said.clone());
    let (pulse, liveness) = admin::pulse(SILENT);
    let (lend, lent) = watch::channel(Arc::new(DevicesView::default()));
    let listener = Listener::new(pulse, notifier, &lent, show);
    let policies = Arc::new(policies(&root, &settings, place.own_uid)?);
    let conduct = conduct(&settings, capabilities, Arc::clone(&policies));
    let made = Updater::beside_the_guard(&root, systemd.clone(), listener, conduct, ends.desired);
    let (driver, update) = made.await.map_err(Box::new)?;
    let driver = driver.listening(ends.words).bringing(host);
    let doors = serve::bind(&root, &settings)?;
    status.send_modify(|status| Arc::make_mut(status).admin.clone_from(&doors.address));
    let (control, asks) = serve::control(place.own_uid, &settings);

    // Only now: without the lock and the port this is not the agent of this machine, and whoever is
    // has the kubelet's sockets.
    let told = (lend, metrics.clone());
    let lender = devices::start(&root, &settings, told, &update, (systemd.as_ref(), tasks));
    let freshen = devices::freshen(lender.as_ref(), &statuses);
    let served = Served::new(statuses, liveness, metrics.clone()).freshened(freshen);
    let signals = serve::measure(&root, &settings, systemd.clone(), tasks);
    let around = cluster::follow(source, &root, &settings, &place, say, &metrics, tasks).await?;
    let other_daemon = hold(&root, &settings, &around, holding, asks, tasks);
    let read = settings::Read { settings, policies };
    let read = settings::watch(&root, place, read, around.pool, Arc::clone(asked), tasks);
    let settings = read.0.clone();
    let conducts = settings::conducts(read, around.policies, capabilities, tasks);
    let beside = cluster::Beside {
        root: root.clone(),
        held: ends.held.clone(),
        devices: lender,
        settings: settings.clone(),
        update: update.clone(),
        statuses: status.subscribe(),
        other_daemon: other_daemon.clone(),
    };
    let driver = cluster::on_node(driver.following(conducts), around.joined, beside, tasks);
    let from = Sources {
        update,
        desired: said,
        held: ends.held,
        other_daemon,
        devices: lent,
        cluster: around.views,
        signals,
        own: serve::probe(&root, settings.clone(), systemd, tasks),
        settings,
    };
    serve::publish(from, status, metrics, Arc::clone(notifier), tasks);
    doors.open(served, control, tasks);
    Ok(driver)
}

/// Has configs wait for people, and for another daemon to end; where one was seen.
fn hold(
    root: &Root,
    settings: &Settings,
    around: &cluster::Around,
    holding: held::Holding,
    asks: mpsc::Receiver<admin::Question>,
    tasks: &Tasks,
) -> watch::Receiver<Option<String>> {
    let (seen, other_daemon) = watch::channel(None);
    if settings.does(Job::Config) {
        let bars = cluster::bars(root, around.joined.as_ref(), seen);
        tasks.spawn("held config", holding.run(bars, asks, tasks.token()));
    }
    other_daemon
}

/// How the driver's turning ended.
enum Drive {
    /// It stopped, or it was given the time that there is.
    Stopped,
    /// A second signal: nobody is waited for.
    Left,
}

/// Turns the driver until a signal; its failure ends the agent.
async fn drive(
    driver: Updater<Systemd, Listener>,
    signals: shutdown::Signals,
    asked: &Notify,
    tasks: &Tasks,
) -> Result<Drive, AgentError> {
    let obeyed = signals.obey(tasks, || asked.notify_one());
    let overdue = async {
        tasks.stopping().await;
        tokio::time::sleep(LAST_STEP).await;
    };
    let driving = tokio::spawn(driver.run(tasks.token()));
    // Each arm may be dropped: what is in flight is settled at the next start.
    tokio::select! {
        () = obeyed => Ok(Drive::Left),
        () = overdue => {
            tracing::warn!("the update in flight is left for the next start to settle");
            Ok(Drive::Stopped)
        }
        ended = driving => match ended {
            Ok(ended) => ended.map(|()| Drive::Stopped).map_err(|e| Box::new(e).into()),
            Err(lost) => Err(Box::new(UpdateError::Lost(lost)).into()),
        },
    }
}
