//! The composition root: settings become adapters, adapters become tasks, and the agent waits for
//! whichever ends first – a signal, or a task that cannot go on.

mod devices;
mod serve;
mod settings;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use tokio::sync::{Notify, watch};

use crate::{
    admin::{self, Served},
    clock::Clock,
    config::{Job, Owners, Place, Reboot, Settings, Source},
    machine_config::{MachineConfig, Refusal},
    metrics::Metrics,
    path::AbsPath,
    plan::{Capabilities, Plan, Policies},
    readiness::report::{self, DevicesView, Outlets, Sources},
    reason::Reason,
    root::{Root, RootError},
    shutdown::{self, Tasks, Unclean},
    source::DirectorySource,
    systemd::{Notifier, Systemd},
    update::{
        look::{self, LookError},
        run::{
            Audience, Conduct, Desired, RebootConduct, TICK, UpdateError, UpdateReport, Updater,
        },
        store,
    },
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
    pub source: DirectorySource,
}

/// Why the agent does not start, or ends by itself.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A live root needs more than this process may do.
    #[error(
        "a live machine needs CAP_CHOWN, which this process lacks; run as root, or on a directory with --root DIR"
    )]
    NotRoot,
    /// The owners of a live root cannot only be recorded.
    #[error("owners: record is for offline roots; on a live machine owners are set")]
    RecordOnLive,
    /// The update driver cannot go on.
    #[error(transparent)]
    Update(#[from] Box<UpdateError>),
    /// Nothing can be served.
    #[error(transparent)]
    Bind(#[from] admin::BindError),
    /// The status socket cannot be made.
    #[error("cannot serve the status socket")]
    Socket(#[source] RootError),
    /// The kernel refused something that a process must be able to do.
    #[error("cannot {0}")]
    System(&'static str, #[source] std::io::Error),
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
            Self::Bind(error) => error.reason(),
            Self::Socket(error) => error.reason(),
            _ => Reason::Io,
        }
    }
}

/// What this process can do to that root; refused where a live machine needs more.
pub fn capabilities(root: &Root, owners: Owners) -> Result<Capabilities, AgentError> {
    let live = root.is_live();
    let chown = match (owners, live, root.can_chown()) {
        (Owners::Record, true, _) => return Err(AgentError::RecordOnLive),
        (_, true, false) => return Err(AgentError::NotRoot),
        (Owners::Record, ..) => false,
        (Owners::Set, ..) => true,
        (Owners::Auto, _, may) => may,
    };
    Ok(Capabilities {
        live,
        chown,
        os: false,
    })
}

/// As [`capabilities`], for those who only look: nothing is refused.
pub fn look_capabilities(root: &Root, owners: Owners) -> Capabilities {
    let fallback = Capabilities {
        live: root.is_live(),
        chown: root.can_chown(),
        os: false,
    };
    capabilities(root, owners).unwrap_or(fallback)
}

/// The plan from where the machine is to `config`, or every reason against it. Nothing is changed.
pub async fn plan(
    root: &Root,
    config: &MachineConfig,
    capabilities: Capabilities,
) -> Result<Result<Plan, Vec<Refusal>>, LookError> {
    let journal = store::peek(root).map_err(LookError::Store)?;
    let policies = Policies::default();
    let units = match capabilities.live {
        true => Some(look::units(&Systemd::of(root), root, &journal, config, &policies).await?),
        false => None,
    };
    Ok(look::look(
        root,
        &journal,
        config,
        &policies,
        capabilities,
        units.as_ref(),
    )?
    .plan)
}

/// The driver's conduct, from the settings.
pub fn conduct(settings: &Settings, capabilities: Capabilities) -> Conduct {
    Conduct {
        reboot: match settings.update.reboot {
            Reboot::Auto => RebootConduct::Auto,
            Reboot::Ask => RebootConduct::Ask,
            Reboot::Never => RebootConduct::Never,
        },
        job_timeout: settings.actions.job_timeout,
        settle: settings.actions.settle,
        full_pass: settings.drift.full_pass,
        capabilities,
        policies: Arc::new(Policies::default()),
    }
}

/// The directory that the settings name.
pub fn source(
    root: &Root,
    settings: &Settings,
    chosen: &Source,
) -> Result<DirectorySource, AgentError> {
    let users = settings.users_allowed.clone();
    let (tree, dir, shown) = match chosen {
        Source::Directory(dir) => (
            root.clone(),
            dir.clone(),
            root.host_path(dir).display().to_string(),
        ),
        Source::CallersDirectory(given) => {
            let given = given.trim_end_matches('/');
            let whole = std::path::absolute(PathBuf::from(given))
                .map_err(|e| AgentError::System("find the source", e))?;
            let slash = Root::open(std::path::Path::new("/")).map_err(AgentError::Socket)?;
            (slash, plain(&whole)?, given.to_owned())
        }
        Source::Auto => (
            root.clone(),
            AbsPath::new(Source::DEFAULT_DIR)?,
            Source::DEFAULT_DIR.to_owned(),
        ),
    };
    Ok(DirectorySource {
        tree,
        dir,
        shown,
        users,
    })
}

/// An absolute path without the `.` and `..` that a shell user may write.
pub fn plain(path: &std::path::Path) -> Result<AbsPath, crate::path::BadPath> {
    let mut parts: Vec<String> = Vec::new();
    for part in path.components() {
        match part {
            std::path::Component::Normal(name) => parts.push(name.to_string_lossy().into_owned()),
            std::path::Component::ParentDir => drop(parts.pop()),
            _ => {}
        }
    }
    AbsPath::new(format!("/{}", parts.join("/")))
}

/// What the driver's loop tells the rest of the agent.
struct Listener {
    pulse: admin::Pulse,
    notifier: Arc<Notifier>,
    devices: watch::Receiver<Arc<DevicesView>>,
    show: fn(&Plan),
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

    fn allocatable(&self) -> BTreeMap<String, usize> {
        report::allocatable(&self.devices.borrow())
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
    let systemd = capabilities.live.then(|| Systemd::of(&root));
    let metrics = Metrics::new(statuses.clone());
    let (desired_out, desired) = watch::channel(Desired::default());
    let (pulse, liveness) = admin::pulse(SILENT);
    let (lend, lent) = watch::channel(Arc::new(DevicesView::default()));
    let listener = Listener {
        pulse,
        notifier: Arc::clone(notifier),
        devices: lent.clone(),
        show,
    };
    let conduct = conduct(&settings, capabilities);
    let (driver, update) = Updater::new(&root, systemd.clone(), listener, conduct, desired.clone())
        .map_err(Box::new)?;
    let served = Served {
        status: statuses,
        liveness,
        metrics: metrics.clone(),
    };
    let address = serve::serve(&root, &settings, tasks, served).await?;
    status.send_modify(|status| Arc::make_mut(status).admin = address);

    // Only now: without the lock and the port this is not the agent of this machine, and whoever is
    // has the kubelet's sockets.
    devices::start(&root, &settings, lend, tasks);
    let signals = serve::measure(&root, &settings, systemd, tasks);
    if settings.does(Job::Config) {
        let read = Arc::new(metrics.clone());
        tasks.spawn("source", source.follow(desired_out, read, tasks.token()));
    }
    let settings = settings::watch(place, settings, Arc::clone(asked), tasks);
    let driver = driver.following(settings::conducts(settings.clone(), capabilities, tasks));
    let from = Sources {
        update,
        desired,
        devices: lent,
        signals,
        settings,
    };
    let clock = Clock::system();
    serve::publish(
        from,
        Outlets {
            status,
            metrics,
            clock,
        },
        Arc::clone(notifier),
        tasks,
    );
    Ok(driver)
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

/// A report of one update that ends by itself, for `apply` and `rollback`.
pub async fn apply_once(
    root: &Root,
    settings: &Settings,
    desired: Desired,
    approve: impl Fn(&Plan) -> bool + Send + Sync + 'static,
) -> Result<Arc<UpdateReport>, AgentError> {
    let capabilities = capabilities(root, settings.owners)?;
    let systemd = capabilities.live.then(|| Systemd::of(root));
    let (_keep, desired) = watch::channel(desired);
    let once = Once(approve);
    let conduct = conduct(settings, capabilities);
    let (driver, _) = Updater::new(root, systemd, once, conduct, desired).map_err(Box::new)?;
    let stop = tokio_util::sync::CancellationToken::new();
    Ok(driver.run_once(stop).await.map_err(Box::new)?)
}

struct Once<F>(F);

impl<F: Fn(&Plan) -> bool + Send + Sync + 'static> Audience for Once<F> {
    fn approve(&self, plan: &Plan) -> bool {
        (self.0)(plan)
    }

    fn beat(&self) {}

    async fn asked(&self) {
        std::future::pending().await
    }

    fn allocatable(&self) -> BTreeMap<String, usize> {
        BTreeMap::new()
    }
}
