//! Composition root of the agent: builds adapters from the settings, starts the tasks, and waits
//! for the first of a signal or a task that fails.

pub mod admin;
pub mod boot_guard;
mod cluster;
pub mod config_dir;
pub mod custom_gate_probe;
mod desired_config;
mod device_status;
mod disruption_policies;
mod dra;
mod endpoints;
mod grant_gate;
pub mod host;
pub mod host_install;
pub mod host_sampler;
mod managed_settings;
mod mcd_detect;
mod mcd_handover;
mod node;
mod one_shot;
pub mod pinned_images;
pub mod pool_settings;
mod reported_updates;
pub mod reporter;
mod settings_mapping;
mod settings_reload;
pub mod shutdown_quiesce;
mod unit_probes;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::sync::{Notify, mpsc, watch};

pub use cluster::{access, node_name};
pub use device_status::allowances;
pub use disruption_policies::{PoliciesError, policies};
pub use mcd_detect::on_host as other_daemon;
pub use mcd_handover::{HandoverNode, adoption, failed_units, release_plan, rules};
pub use one_shot::{apply_once, plan};
pub use settings_mapping::{
    capabilities, config_validator, discard_deployment, plain, read_only_capabilities,
    reconciler_options, source,
};

use crate::{
    admin::AppState,
    config_dir::DirectorySource,
    host::gateway_probe,
    reported_updates::ReportedUpdates,
    reporter::{DevicesView, ReporterInputs},
};
use machinist_base::{
    reason::Reason,
    shutdown::{self, Tasks, UncleanShutdown},
};
use machinist_cluster::ClusterAccess;
use machinist_plan::{OsCapabilities, Plan};
use machinist_rootfs::{Root, RootError};
use machinist_status::{
    metrics::Metrics,
    settings::{AgentRole, Settings, SettingsLocation},
};
use machinist_systemd::{Notifier, Systemd};
use machinist_update::{
    os,
    reconciler::{DesiredConfig, Reconciler, ReconcilerHooks, TICK_INTERVAL, UpdateError},
};

/// Input of [`run`].
#[derive(Debug)]
pub struct AgentSetup {
    /// The root file system to manage.
    pub root: Root,
    /// Where the settings were read, so that they can be reloaded.
    pub place: SettingsLocation,
    /// The settings as read at startup.
    pub settings: Settings,
    /// Source of the desired config.
    pub source: ConfigOrigin,
}

/// Source of the desired config.
#[derive(Debug)]
pub enum ConfigOrigin {
    /// A directory on this machine.
    Directory(DirectorySource),
    /// The cluster.
    Cluster {
        /// Access method of the API server.
        access: ClusterAccess,
        /// UID of the pod that this process runs in; none if it runs directly on the host.
        pod_uid: Option<String>,
    },
}

impl ConfigOrigin {
    /// Value of [`Status::source`](machinist_status::Status::source) if configs come from the cluster.
    pub const CLUSTER_SOURCE_NAME: &'static str = "cluster";

    /// The source as shown by `status`.
    fn shown(&self) -> String {
        match self {
            Self::Directory(source) => format!("dir:{}", source.shown),
            Self::Cluster { .. } => Self::CLUSTER_SOURCE_NAME.to_owned(),
        }
    }
}

/// Why the agent does not start, or ends by itself.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A live root requires capabilities that this process lacks.
    #[error(
        "a live machine needs CAP_CHOWN, which this process lacks; run as root, or on a directory with --root DIR"
    )]
    NotRoot,
    /// Another daemon manages this machine's config.
    #[error("{0}: only one agent may manage this machine")]
    OtherDaemon(String),
    /// `owners: record` was set for a live root.
    #[error("owners: record is for offline roots; on a live machine owners are set")]
    RecordOnLive,
    /// The reconciler cannot continue.
    #[error(transparent)]
    Update(#[from] Box<UpdateError>),
    /// The admin address cannot be bound.
    #[error(transparent)]
    Bind(#[from] admin::BindError),
    /// The status socket or the control socket cannot be created.
    #[error("cannot serve the agent's sockets")]
    Socket(#[source] RootError),
    /// The check for another daemon on this machine failed.
    #[error("cannot check for another daemon that manages this machine")]
    Look(#[source] RootError),
    /// A basic system call failed.
    #[error("cannot {0}")]
    System(&'static str, #[source] std::io::Error),
    /// The user's disruption policies are invalid.
    #[error(transparent)]
    Policies(#[from] PoliciesError),
    /// The configured access to the API server is invalid.
    #[error(transparent)]
    Connect(#[from] machinist_cluster::ConnectError),
    /// A path could not be built.
    #[error(transparent)]
    Path(#[from] machinist_base::abs_path::BadPath),
    /// A task failed or panicked.
    #[error(transparent)]
    Unclean(#[from] UncleanShutdown),
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

/// Passes events of the reconcile loop to the rest of the agent.
struct AgentHooks {
    pulse: admin::Heartbeat,
    notifier: Arc<Notifier>,
    devices: watch::Receiver<Arc<DevicesView>>,
    show: fn(&Plan),
}

impl AgentHooks {
    fn new(
        pulse: admin::Heartbeat,
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

impl ReconcilerHooks for AgentHooks {
    fn approve(&self, plan: &Plan) -> bool {
        (self.show)(plan);
        true
    }

    fn os_capabilities(&self, root: &Root, known: OsCapabilities) -> OsCapabilities {
        os::current_capabilities(root, known)
    }

    fn record_beat(&self) {
        self.pulse.record_beat();
        self.notifier.watchdog();
    }

    fn tick(&self) -> Duration {
        // An administrator may have set a shorter watchdog interval than the unit file's.
        let wanted = self.notifier.watchdog_interval();
        wanted.map_or(TICK_INTERVAL, |wanted| wanted.min(TICK_INTERVAL))
    }

    async fn probe_requested(&self) {
        self.pulse.wait_for_probe().await;
    }

    async fn gateways(&self) -> BTreeSet<String> {
        gateways().await
    }

    fn allocatable(&self) -> BTreeMap<String, usize> {
        reporter::allocatable(&self.devices.borrow())
    }
}

/// A gateway confirmed within the first time counts as reachable; otherwise it is probed for the
/// second time. The kernel itself waits five seconds before it probes a gateway whose address entry
/// is stale.
const GATEWAY_CONFIRMED_MAX_AGE: Duration = Duration::from_secs(300);
const GATEWAY_PROBE_TIMEOUT: Duration = Duration::from_secs(7);

/// Default gateways that respond, for the reconciler; empty if the kernel does not report any.
async fn gateways() -> BTreeSet<String> {
    match gateway_probe::reachable_gateways(GATEWAY_CONFIRMED_MAX_AGE, GATEWAY_PROBE_TIMEOUT).await
    {
        Ok(found) => found,
        Err(error) => {
            tracing::debug!("cannot look up the default gateways: {error}");
            BTreeSet::new()
        }
    }
}

/// If the loop has not reported for this long, it is asked to; if it does not react, it counts as
/// stuck.
const HEARTBEAT_MAX_AGE: Duration = Duration::from_secs(1);

/// How long a stop waits for an update step that cannot be cancelled. The other tasks end in the
/// meantime, and the total stays below [`shutdown::SHUTDOWN_TIMEOUT`]. A step left unfinished is recovered at
/// the next start, as after a crash.
const UPDATE_STEP_STOP_TIMEOUT: Duration = Duration::from_millis(700);

/// Runs until a signal or a failure. `show` is called with every plan before it is executed.
///
/// A step that cannot be cancelled may still be running when this returns: exit the process, or
/// wait for it.
pub async fn run(setup: AgentSetup, show: fn(&Plan)) -> Result<(), AgentError> {
    // First, so that a signal during startup also ends the agent in order.
    let signals = shutdown::ProcessSignals::listen()
        .map_err(|e| AgentError::System("listen for signals", e))?;
    let tasks = Tasks::new();
    let notifier = Arc::new(Notifier::from_env());
    // SIGHUP: reload the settings.
    let asked = Arc::new(Notify::new());
    let driver = build(setup, show, &notifier, &asked, &tasks).await?;
    let driven = drive(driver, signals, &asked, &tasks).await;
    notifier.stopping();
    if matches!(driven, Ok(ReconcilerExit::Left)) {
        return Ok(());
    }
    let finished = tasks.finish(shutdown::SHUTDOWN_TIMEOUT).await;
    driven?;
    Ok(finished?)
}

/// Opens all resources and starts all tasks except the reconciler, which is returned.
async fn build(
    setup: AgentSetup,
    show: fn(&Plan),
    notifier: &Arc<Notifier>,
    asked: &Arc<Notify>,
    tasks: &Tasks,
) -> Result<Reconciler<Systemd, AgentHooks>, AgentError> {
    let capabilities = capabilities(&setup.root, setup.settings.owners)?;
    let (status, statuses) = endpoints::status_channel(&setup, capabilities);
    let (root, place) = (setup.root, setup.place);
    let (settings, source) = (setup.settings, setup.source);
    let (systemd, host) = settings_mapping::on_host(&root, &settings, capabilities).await?;
    let metrics = Metrics::new(statuses.clone());
    let (say, said) = watch::channel(DesiredConfig::default());
    let (holding, ends) = desired_config::DesiredConfigTask::new(&root, said.clone());
    let (pulse, liveness) = admin::heartbeat(HEARTBEAT_MAX_AGE);
    let (publish_devices, devices) = watch::channel(Arc::new(DevicesView::default()));
    let listener = AgentHooks::new(pulse, notifier, &devices, show);
    let policies = Arc::new(policies(&root, &settings, place.own_uid)?);
    let conduct = reconciler_options(&settings, capabilities, Arc::clone(&policies));
    let made = Reconciler::new_with_guard(&root, systemd.clone(), listener, conduct, ends.desired);
    let (driver, update) = made.await.map_err(Box::new)?;
    let driver = host.add_to(driver.with_operator_requests(ends.requests));
    let doors = endpoints::bind(&root, &settings, &status)?;
    let (control, asks) = endpoints::control(place.own_uid, &settings);

    // Only after the lock and the port were acquired: otherwise another process is this machine's
    // agent and owns the kubelet's sockets.
    let sinks = (publish_devices, metrics.clone());
    let lender = device_status::start(&root, &settings, sinks, &update, (systemd.as_ref(), tasks));
    let freshen = device_status::refresh_holders(lender.as_ref(), &statuses);
    let served = AppState::new(statuses, liveness, metrics.clone()).with_refresh(freshen);
    let signals = endpoints::measure(&root, &settings, systemd.clone(), tasks);
    let around = cluster::follow(source, &root, &settings, &place, say, &metrics, tasks).await?;
    let other_daemon = hold(&root, &settings, &around, holding, asks, tasks);
    let read = settings_reload::InitialSettings { settings, policies };
    let read = settings_reload::watch(&root, place, read, around.pool, Arc::clone(asked), tasks);
    let conducts = settings_reload::watch_options(&read, around.policies, capabilities, tasks);
    let beside = cluster::AgentHandles {
        root: root.clone(),
        held: ends.held.clone(),
        devices: lender,
        settings: read.settings.clone(),
        reported: ReportedUpdates::load(&root, &update.borrow()),
        update: update.clone(),
        statuses: status.subscribe(),
        other_daemon: other_daemon.clone(),
        systemd: systemd.clone(),
    };
    let reported = beside.reported.clone();
    let driver = cluster::on_node(driver.watch_options(conducts), around.joined, beside, tasks);
    let from = ReporterInputs {
        update,
        desired: said,
        held: ends.held,
        other_daemon,
        devices,
        cluster: around.views,
        signals,
        custom_probes: endpoints::probe(&root, read.settings.clone(), systemd, tasks),
        settings: read.settings,
        settings_mistake: read.mistake,
    };
    let notifier = Arc::clone(notifier);
    endpoints::publish(from, status, metrics, reported, notifier, tasks);
    doors.open(served, control, tasks);
    Ok(driver)
}

/// Holds back configs while an operator override is set or another daemon runs; returns where such
/// a daemon was detected.
fn hold(
    root: &Root,
    settings: &Settings,
    around: &cluster::ClusterInputs,
    holding: desired_config::DesiredConfigTask,
    asks: mpsc::Receiver<admin::ControlRequest>,
    tasks: &Tasks,
) -> watch::Receiver<Option<String>> {
    let (seen, other_daemon) = watch::channel(None);
    if settings.has_role(AgentRole::Config) {
        let bars = cluster::update_blockers(root, around.joined.as_ref(), seen);
        tasks.spawn("held config", holding.run(bars, asks, tasks.token()));
    }
    other_daemon
}

/// How the reconciler's run ended.
enum ReconcilerExit {
    /// It stopped, or its stop timed out.
    Stopped,
    /// A second signal: exit without waiting.
    Left,
}

/// Runs the reconciler until a signal; its failure ends the agent.
async fn drive(
    driver: Reconciler<Systemd, AgentHooks>,
    signals: shutdown::ProcessSignals,
    asked: &Notify,
    tasks: &Tasks,
) -> Result<ReconcilerExit, AgentError> {
    let obeyed = signals.handle_requests(tasks, || asked.notify_one());
    let overdue = async {
        tasks.stopping().await;
        tokio::time::sleep(UPDATE_STEP_STOP_TIMEOUT).await;
    };
    let driving = tokio::spawn(driver.run(tasks.token()));
    // All branches are cancel-safe: a running step is recovered at the next start.
    tokio::select! {
        () = obeyed => Ok(ReconcilerExit::Left),
        () = overdue => {
            tracing::warn!("the update in progress is resumed at the next start");
            Ok(ReconcilerExit::Stopped)
        }
        ended = driving => match ended {
            Ok(ended) => ended.map(|()| ReconcilerExit::Stopped).map_err(|e| Box::new(e).into()),
            Err(lost) => Err(Box::new(UpdateError::Lost(lost)).into()),
        },
    }
}
