//! The client of PID 1: reads unit states and requests operations.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::Mutex;
use zbus::{Connection, OwnedObjectPath, fdo::PropertiesProxy, proxy::CacheProperties};

use super::{
    BusAddresses, Logind, SystemdError, Timedated,
    connection::{LiveConnection, Reconnecting, TransactionConnections, within},
    dbus_proxies::{JobRow, REPLACE_MODE, ServiceProxy, UnitProxy, UnitRow},
    error::SystemdErrorKind,
    unit_state::{ActiveState, LoadState, ServiceState, UnitState},
    user_units::is_controlled_by_user,
};
use machinist_update::service_port::Userspace;

/// How long a reload may take: PID 1 runs all generators, 90 s each at most, and reads all units.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(180);
pub(super) const UNIT_INTERFACE: &str = "org.freedesktop.systemd1.Unit";

/// The service manager of one machine. Cheap to clone; connects on the first request, and again after the
/// connection broke.
#[derive(Clone, Debug)]
pub struct Systemd {
    pub(super) link: Reconnecting,
    reloads: Arc<Reloads>,
    /// Whether [`Systemd::system_state`] has found the boot finished but for jobs of users. Such a boot stays
    /// finished, as one does for systemd, whatever jobs are queued later.
    boot_finished: Arc<AtomicBool>,
    /// The connections of the running transaction of rpm-ostree.
    pub(super) transaction: Arc<Mutex<Option<TransactionConnections>>>,
}

/// One row of the list of units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedUnit {
    /// The unit's first name.
    pub name: String,
    /// The unit's description.
    pub description: String,
    /// Whether it is loaded.
    pub load: LoadState,
    /// The state common to all kinds of units.
    pub active: ActiveState,
    /// The state specific to its kind of unit.
    pub sub: String,
    /// Whether a job is queued or running for it.
    pub has_job: bool,
}

/// `SystemState` of the manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SystemState {
    /// Early boot.
    Initializing,
    /// Boot is not over yet.
    Starting,
    /// All units are up.
    Running,
    /// All units are up, and some have failed.
    Degraded,
    /// Rescue or emergency.
    Maintenance,
    /// Shutting down.
    Stopping,
    /// A state that this version does not know.
    Other,
}

impl Systemd {
    /// Creates the client; connects on the first request.
    pub fn new(lines: BusAddresses) -> Self {
        Self {
            link: Reconnecting::new(lines),
            reloads: Arc::default(),
            boot_finished: Arc::default(),
            transaction: Arc::default(),
        }
    }

    /// logind, over the same bus connection.
    pub fn login(&self) -> Logind {
        Logind::new(self.link.clone())
    }

    /// timedated, over the same bus connection.
    pub fn timedate(&self) -> Timedated {
        Timedated::new(self.link.clone())
    }

    /// The state of a unit. A unit that does not exist, or is masked, is no error.
    pub async fn unit(&self, name: &str) -> Result<UnitState, SystemdError> {
        let state = self.query_unit_state(name).await;
        state.map_err(SystemdError::during(format!("read the state of {name}")))
    }

    /// Makes PID 1 reload all unit files. Requests made during a reload share the next one.
    pub async fn daemon_reload(&self) -> Result<(), SystemdError> {
        let reload = self.reloads.share(async || {
            let manager = self.link.to_manager().await?.manager().await?;
            match tokio::time::timeout(RELOAD_TIMEOUT, manager.reload()).await {
                Ok(done) => done.map_err(SystemdErrorKind::from),
                Err(_) => Err(SystemdErrorKind::NoReply),
            }
        });
        let done = reload.await;
        done.map_err(SystemdError::during("let systemd reload its units"))
    }

    /// Names of the failed units, in order, without those that users control, such as
    /// `user@1000.service`.
    pub async fn failed_units(&self) -> Result<Vec<String>, SystemdError> {
        let list = async {
            let manager = self.link.to_manager().await?.manager().await?;
            within(manager.list_units_filtered(&["failed"])).await
        };
        let rows = list
            .await
            .map_err(SystemdError::during("list the failed units"))?;
        let mut names: Vec<_> = rows.into_iter().map(|row| row.0).collect();
        names.retain(|name| !is_controlled_by_user(name));
        names.sort_unstable();
        Ok(names)
    }

    /// All units that are loaded.
    pub async fn list_units(&self) -> Result<Vec<ListedUnit>, SystemdError> {
        let list = async {
            let manager = self.link.to_manager().await?.manager().await?;
            within(manager.list_units()).await
        };
        let rows = list.await.map_err(SystemdError::during("list the units"))?;
        let listed = rows.into_iter().map(|row| ListedUnit {
            name: row.0,
            description: row.1,
            load: LoadState::parse(&row.2),
            active: ActiveState::parse(&row.3),
            sub: row.4,
            has_job: row.7 != 0,
        });
        Ok(listed.collect())
    }

    /// The state of each of `names`; those that do not exist are inactive.
    pub async fn active_units(
        &self,
        names: &[&str],
    ) -> Result<BTreeMap<String, ActiveState>, SystemdError> {
        let list = async {
            let manager = self.link.to_manager().await?.manager().await?;
            within(manager.list_units_by_names(names)).await
        };
        let rows = list.await.map_err(SystemdError::during(format!(
            "read the states of {}",
            names.join(", ")
        )))?;
        let states = rows
            .into_iter()
            .map(|row| (row.0, ActiveState::parse(&row.3)));
        Ok(states.collect())
    }

    /// The manager's state between boot and shutdown; a boot that waits only for jobs of units that users control
    /// is over.
    ///
    /// systemd calls a boot finished once no job is left. A user whose service manager never gets ready would keep
    /// it unfinished.
    pub async fn system_state(&self) -> Result<SystemState, SystemdError> {
        let state = self.judge_system_state().await;
        state.map_err(SystemdError::during("read the state of the system"))
    }

    /// Identifies the running userspace: when it was started, and after how many soft reboots.
    pub async fn running_userspace(&self) -> Result<Userspace, SystemdError> {
        let ask = async {
            let manager = self.link.to_manager().await?.manager().await?;
            let started = within(manager.userspace_timestamp_monotonic()).await?;
            let soft_reboots = match within(manager.soft_reboots_count()).await {
                // systemd before 256.
                Err(SystemdErrorKind::Unsupported(_)) => None,
                count => Some(count?),
            };
            Ok(Userspace {
                started,
                soft_reboots,
            })
        };
        let failed = SystemdError::during("read which userspace runs");
        ask.await.map_err(failed)
    }

    /// Queues the start of `default.target` again, so that this boot starts units that a repaired file adds; for
    /// use before `sysinit.target`. Does not wait.
    ///
    /// Does nothing and returns false if this boot has another target: rescue or another one was selected on the
    /// kernel's command line.
    pub async fn default_target_again(&self) -> Result<bool, SystemdError> {
        const DEFAULT_TARGET: &str = "default.target";
        let again = async {
            let live = self.link.to_manager().await?;
            if !has_job(&live, DEFAULT_TARGET).await? {
                return Ok(false);
            }
            let manager = live.manager().await?;
            within(manager.start_unit(DEFAULT_TARGET, REPLACE_MODE)).await?;
            Ok(true)
        };
        let queued = again.await;
        queued.map_err(SystemdError::during(format!(
            "start {DEFAULT_TARGET} again"
        )))
    }

    async fn judge_system_state(&self) -> Result<SystemState, SystemdErrorKind> {
        const MAINTENANCE_TARGETS: [&str; 2] = ["emergency.target", "rescue.target"];
        let state = self.query_system_state().await?;
        if state != SystemState::Starting {
            return Ok(state);
        }
        let manager = self.link.to_manager().await?.manager().await?;
        let jobs = within(manager.list_jobs()).await?;
        // systemd reports these states only after the boot.
        let shutdown = |job: &JobRow| job.1 == "shutdown.target" && job.2 == "start";
        if jobs.iter().any(shutdown) {
            return Ok(SystemState::Stopping);
        }
        // Without any job the boot has finished since the state was read: the next query shows it.
        let users_only = !jobs.is_empty() && jobs.iter().all(|job| is_controlled_by_user(&job.1));
        if !users_only && !self.boot_finished.load(Ordering::Relaxed) {
            return Ok(state);
        }
        self.boot_finished.store(true, Ordering::Relaxed);
        let targets = within(manager.list_units_by_names(&MAINTENANCE_TARGETS)).await?;
        let active = |row: &UnitRow| ActiveState::parse(&row.3) == ActiveState::Active;
        Ok(match targets.iter().any(active) {
            true => SystemState::Maintenance,
            false => SystemState::Running,
        })
    }

    pub(super) async fn query_system_state(&self) -> Result<SystemState, SystemdErrorKind> {
        let manager = self.link.to_manager().await?.manager().await?;
        Ok(match within(manager.system_state()).await?.as_str() {
            "initializing" => SystemState::Initializing,
            "starting" => SystemState::Starting,
            "running" => SystemState::Running,
            "degraded" => SystemState::Degraded,
            "maintenance" => SystemState::Maintenance,
            "stopping" => SystemState::Stopping,
            _ => SystemState::Other,
        })
    }

    pub(super) async fn query_unit_state(&self, name: &str) -> Result<UnitState, SystemdErrorKind> {
        let live = self.link.to_manager().await?;
        let path = path_of(&live, name).await?;
        state_at(&live, &path).await
    }
}

/// The unit's object path; systemd loads the unit if necessary.
pub(super) async fn path_of(
    live: &LiveConnection,
    name: &str,
) -> Result<OwnedObjectPath, SystemdErrorKind> {
    within(live.manager().await?.load_unit(name)).await
}

pub(super) async fn has_job(live: &LiveConnection, name: &str) -> Result<bool, SystemdErrorKind> {
    let path = path_of(live, name).await?;
    let unit = UnitProxy::builder(live.connection())
        .path(path)
        .cache_properties(CacheProperties::No)
        .build()
        .await?;
    Ok(within(unit.job()).await?.0 != 0)
}

pub(super) async fn state_at(
    live: &LiveConnection,
    path: &OwnedObjectPath,
) -> Result<UnitState, SystemdErrorKind> {
    let all = properties_at(live.connection(), path).await?;
    let properties = within(all.get_all(UNIT_INTERFACE.try_into()?)).await?;
    let service = if path.ends_with("_2eservice") {
        service_at(live.connection(), path).await?
    } else {
        None
    };
    Ok(UnitState::parse(properties, service))
}

pub(super) async fn properties_at<'a>(
    connection: &Connection,
    path: &'a OwnedObjectPath,
) -> Result<PropertiesProxy<'a>, SystemdErrorKind> {
    let proxy = PropertiesProxy::builder(connection)
        .destination("org.freedesktop.systemd1")
        .path(path)
        .cache_properties(CacheProperties::No)
        .build();
    Ok(proxy.await?)
}

impl Systemd {
    /// Bytes that the processes of a service have received from the network.
    pub(super) async fn ip_ingress_bytes(&self, unit: &str) -> Result<u64, SystemdErrorKind> {
        let live = self.link.to_manager().await?;
        let path = within(live.manager().await?.load_unit(unit)).await?;
        let service = ServiceProxy::builder(live.connection())
            .path(path)
            .cache_properties(CacheProperties::No)
            .build()
            .await?;
        within(service.ip_ingress_bytes()).await
    }
}

/// Reads four single properties: reading all of a service's would make PID 1 read cgroup counters.
async fn service_at(
    connection: &Connection,
    path: &OwnedObjectPath,
) -> Result<Option<ServiceState>, SystemdErrorKind> {
    let service = ServiceProxy::builder(connection)
        .path(path)
        .cache_properties(CacheProperties::No)
        .build()
        .await?;
    let result = match within(service.result()).await {
        // In some versions a unit without a file does not have this interface.
        Err(SystemdErrorKind::Unsupported(_)) => return Ok(None),
        result => result?,
    };
    let pid = within(service.main_pid()).await?;
    Ok(Some(ServiceState {
        service_type: within(service.service_type()).await?,
        result,
        main_pid: (pid != 0).then_some(pid),
        n_restarts: within(service.n_restarts()).await?,
    }))
}

/// Combines concurrent requests into one reload that began after all of them.
#[derive(Debug, Default)]
struct Reloads {
    asked: AtomicU64,
    /// The highest request that a finished reload covers.
    done: Mutex<u64>,
}

impl Reloads {
    async fn share(
        &self,
        reload: impl AsyncFnOnce() -> Result<(), SystemdErrorKind>,
    ) -> Result<(), SystemdErrorKind> {
        let mine = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        let mut done = self.done.lock().await;
        if *done >= mine {
            return Ok(());
        }
        // Requests made by now have written their files before this reload reads them.
        let covered = self.asked.load(Ordering::SeqCst);
        reload().await?;
        *done = covered;
        Ok(())
    }
}
