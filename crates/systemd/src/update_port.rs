//! The service manager as the update reconciler uses it.

use std::{collections::BTreeMap, os::unix::net::UnixStream, time::Duration};

use super::{
    ActiveState, BusAddresses, InhibitMode, JobVerb, LoadState, RebootFlags, SystemState, Systemd,
    SystemdError, SystemdErrorKind, UnitState,
};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_plan::{ActionKind, UnitFacts};
use machinist_rootfs::Root;
use machinist_update::service_port::{
    InhibitGuard, RebootKind, RebootMethod, ServiceError, Services, StartupState, Userspace,
};

/// How long logind may take to announce a reboot that it has accepted. The announcement is its
/// first action.
const REBOOT_PROOF_TIMEOUT: Duration = Duration::from_secs(10);

/// How long PID 1 may take to report the running userspace. It does not answer while it reloads its
/// units, seconds at most; a recovery that waits for it needs the rest of its 90 s for its own
/// work.
const USERSPACE_QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// How long logind may take to grant a lock; a healthy one answers at once.
const INHIBIT_LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// How often to check an announced shutdown over a new connection.
const SHUTDOWN_RECHECK_INTERVAL: Duration = Duration::from_secs(1);

impl Systemd {
    /// The manager of a live root, through the sockets below it.
    pub fn of(root: &Root) -> Self {
        let lines = BusAddresses::none()
            .bus(dial(root, "/run/dbus/system_bus_socket"))
            .private(dial(root, "/run/systemd/private"));
        let root = root.clone();
        Self::new(lines.paths(move |path| connect(&root, path)))
    }
}

fn dial(
    root: &Root,
    socket: &'static str,
) -> impl Fn() -> std::io::Result<UnixStream> + Send + Sync + 'static {
    let root = root.clone();
    move || connect(&root, socket)
}

fn connect(root: &Root, socket: &str) -> std::io::Result<UnixStream> {
    let path = AbsPath::new(socket).map_err(std::io::Error::other)?;
    root.connect_unix(&path)
        .map_err(|error| match error.kind() {
            kind @ (std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused) => {
                std::io::Error::new(kind, error)
            }
            _ => std::io::Error::other(error),
        })
}

impl From<SystemdError> for ServiceError {
    fn from(error: SystemdError) -> Self {
        let (reason, retryable) = (error.reason(), error.is_retryable());
        Self {
            reason,
            retryable,
            source: Box::new(error),
        }
    }
}

/// A unit that did not stay up after its job.
#[derive(Debug, thiserror::Error)]
#[error("{unit} did not stay up: it is {active:?} ({sub})")]
struct UnitDiedError {
    unit: String,
    active: ActiveState,
    sub: String,
}

/// A job that failed.
#[derive(Debug, thiserror::Error)]
#[error("the job to {verb} {unit} ended as {result:?}")]
struct JobFailedError {
    verb: JobVerb,
    unit: String,
    result: super::JobResult,
}

/// The reboot was announced and did not happen.
#[derive(Debug, thiserror::Error)]
#[error("the reboot was announced but did not happen")]
struct RebootOverdueError;

impl Services for Systemd {
    async fn invocation(&self, unit: &str) -> Result<Option<String>, ServiceError> {
        Ok(self.unit(unit).await?.invocation_id)
    }

    async fn daemon_reload(&self) -> Result<(), ServiceError> {
        Ok(Self::daemon_reload(self).await?)
    }

    async fn act(
        &self,
        kind: ActionKind,
        unit: &str,
        limit: Duration,
        settle: Duration,
    ) -> Result<(), ServiceError> {
        let verb = match kind {
            ActionKind::Reload => JobVerb::Reload,
            ActionKind::Stop => JobVerb::Stop,
            _ => JobVerb::Restart,
        };
        let result = self.run_job(verb, unit, limit).await?;
        if let Some(reason) = result.reason() {
            let retryable = reason == Reason::JobCanceled;
            let source = Box::new(JobFailedError {
                verb,
                unit: unit.to_owned(),
                result,
            });
            return Err(ServiceError {
                reason,
                retryable,
                source,
            });
        }
        if verb == JobVerb::Stop {
            return Ok(());
        }
        let first = self.unit(unit).await?;
        let now = match first.active == ActiveState::Failed {
            true => first.clone(),
            false => self.observe_stability(unit, settle, &first).await?,
        };
        if now.has_died_since(&first) {
            Err(died(unit, now))
        } else {
            Ok(())
        }
    }

    async fn startup(&self) -> Result<StartupState, ServiceError> {
        Ok(match self.system_state().await? {
            SystemState::Initializing | SystemState::Starting => StartupState::Starting,
            SystemState::Running | SystemState::Degraded | SystemState::Other => {
                StartupState::Finished
            }
            SystemState::Maintenance => StartupState::Maintenance,
            SystemState::Stopping => StartupState::Stopping,
        })
    }

    async fn failed_units(&self) -> Result<Vec<String>, ServiceError> {
        Ok(Self::failed_units(self).await?)
    }

    async fn unit_facts(
        &self,
        names: &[String],
    ) -> Result<BTreeMap<String, UnitFacts>, ServiceError> {
        let mut facts = BTreeMap::new();
        for name in names {
            let state = self.unit(name).await?;
            let known = UnitFacts {
                load: Some(load(state.load).to_owned()),
                active: Some(state.active.as_str().to_owned()),
                ..UnitFacts::default()
            };
            facts.insert(name.clone(), known);
        }
        Ok(facts)
    }

    async fn hold_off_shutdown(&self, why: &str) -> Option<InhibitGuard> {
        let login = self.login();
        let lock = login.inhibit("shutdown", why, InhibitMode::Block);
        match tokio::time::timeout(INHIBIT_LOCK_TIMEOUT, lock).await {
            Ok(Ok(lock)) => Some(Box::new(lock)),
            Ok(Err(error)) => {
                tracing::debug!(%error, "no lock against a shutdown");
                None
            }
            Err(_) => None,
        }
    }

    async fn userspace(&self) -> Result<Option<Userspace>, ServiceError> {
        match tokio::time::timeout(USERSPACE_QUERY_TIMEOUT, self.running_userspace()).await {
            Ok(told) => Ok(Some(told?)),
            Err(_) => Ok(None),
        }
    }

    async fn reboot(
        &self,
        kind: RebootKind,
        method: RebootMethod,
        why: &str,
    ) -> Result<(), ServiceError> {
        if let Err(error) = self.login().set_wall_message(why).await {
            // Only informative: a logind that cannot do it still reboots.
            tracing::debug!(%error, "no wall message");
        }
        let flags = match kind {
            RebootKind::Soft => RebootFlags::SOFT,
            RebootKind::Full => RebootFlags::NONE,
        };
        match self.reboot_by(method, flags, REBOOT_PROOF_TIMEOUT).await {
            Ok(_) => Ok(()),
            // It shut down before it answered.
            Err(error)
                if matches!(
                    error.trouble(),
                    SystemdErrorKind::NoReply | SystemdErrorKind::ShuttingDown
                ) =>
            {
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn reboot_over(&self, limit: Duration) -> ServiceError {
        let login = self.login();
        let delay = login.inhibit_delay_max().await.unwrap_or_default();
        let called_off = async {
            loop {
                // Subscribe first, then ask, so that no announcement is missed. A connection that
                // broke, with the bus or with the whole machine, is opened again.
                if let Ok(mut signals) = login.prepare_for_shutdown().await {
                    if matches!(self.is_shutting_down().await, Ok(false)) {
                        return;
                    }
                    while let Some(begins) = signals.next().await {
                        if !begins {
                            return;
                        }
                    }
                }
                tokio::time::sleep(SHUTDOWN_RECHECK_INTERVAL).await;
            }
        };
        let deadline = tokio::time::Instant::now() + delay + limit;
        if tokio::time::timeout_at(deadline, called_off).await.is_ok() {
            return ServiceError {
                reason: Reason::RebootCancelled,
                retryable: true,
                source: Box::new(SystemdError::new("reboot", SystemdErrorKind::Cancelled)),
            };
        }
        ServiceError {
            reason: Reason::RebootTimeout,
            retryable: true,
            source: Box::new(RebootOverdueError),
        }
    }
}

const fn load(load: LoadState) -> &'static str {
    match load {
        LoadState::Loaded => "loaded",
        LoadState::NotFound => "not-found",
        LoadState::Masked => "masked",
        LoadState::BadSetting => "bad-setting",
        LoadState::Error => "error",
        LoadState::Other => "other",
    }
}

fn died(unit: &str, UnitState { active, sub, .. }: UnitState) -> ServiceError {
    let source = Box::new(UnitDiedError {
        unit: unit.to_owned(),
        active,
        sub,
    });
    ServiceError {
        reason: Reason::UnitDied,
        retryable: false,
        source,
    }
}
