//! Defines the interfaces between the update and the service manager, and for the installation of recovery units.

use std::{collections::BTreeMap, error::Error, fmt, future::Future, time::Duration};

use machinist_base::reason::Reason;
use machinist_plan::{ActionKind, UnitFacts};

/// Describes why the service manager failed to carry out a request.
#[derive(Debug, thiserror::Error)]
#[error("request to the service manager failed")]
pub struct ServiceError {
    /// The stable reason code.
    pub reason: Reason,
    /// Whether a retry may succeed.
    pub retryable: bool,
    /// The service manager's error.
    #[source]
    pub source: Box<dyn Error + Send + Sync>,
}

/// Startup state of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartupState {
    /// Units are still being started.
    Starting,
    /// The boot has finished. Some units may have failed.
    Finished,
    /// The system is in rescue or emergency mode.
    Maintenance,
    /// The system is shutting down.
    Stopping,
}

/// The running userspace as PID 1 reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Userspace {
    /// When it was started, in microseconds since the kernel started.
    pub started: u64,
    /// Soft reboots since the kernel started; `None` if this systemd does not count them.
    pub soft_reboots: Option<u32>,
}

/// Kind of reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebootKind {
    /// Restarts userspace only; the kernel and its arguments stay.
    Soft,
    /// Restarts the machine.
    Full,
}

impl fmt::Display for RebootKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Soft => "soft reboot",
            Self::Full => "reboot",
        })
    }
}

/// Ways to request a reboot, the least forceful first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebootMethod {
    /// Calls logind's `Reboot`, which respects inhibitor locks.
    Logind,
    /// Starts a transient unit that runs `systemctl reboot` or `systemctl soft-reboot` and outlives this process.
    TransientUnit,
    /// Starts `reboot.target` or `soft-reboot.target` irreversibly.
    RebootTarget,
}

impl RebootMethod {
    /// All methods, in the order in which they are tried.
    pub const ALL: [Self; 3] = [Self::Logind, Self::TransientUnit, Self::RebootTarget];

    /// Returns the method of an attempt, counted from 0; `None` after the last method.
    pub fn of_attempt(attempt: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(attempt).ok()?).copied()
    }
}

/// A lock that is released when it is dropped.
pub type InhibitGuard = Box<dyn std::any::Any + Send + Sync>;

/// The service manager and the login manager of a live root.
pub trait Services: Send + Sync + 'static {
    /// Returns the unit's `InvocationID`, which changes with each start; `None` if the unit was never started.
    fn invocation(
        &self,
        unit: &str,
    ) -> impl Future<Output = Result<Option<String>, ServiceError>> + Send;

    /// Reloads the unit files.
    fn daemon_reload(&self) -> impl Future<Output = Result<(), ServiceError>> + Send;

    /// Reloads or restarts a unit, waits at most `limit` for the job, then watches the unit for `settle`. A unit
    /// that stops within that time counts as failed.
    fn act(
        &self,
        kind: ActionKind,
        unit: &str,
        limit: Duration,
        settle: Duration,
    ) -> impl Future<Output = Result<(), ServiceError>> + Send;

    /// Returns the startup state of the system.
    fn startup(&self) -> impl Future<Output = Result<StartupState, ServiceError>> + Send;

    /// Returns the names of the units in state `failed`.
    fn failed_units(&self) -> impl Future<Output = Result<Vec<String>, ServiceError>> + Send;

    /// Returns what a plan needs to know about these units.
    fn unit_facts(
        &self,
        names: &[String],
    ) -> impl Future<Output = Result<BTreeMap<String, UnitFacts>, ServiceError>> + Send;

    /// Returns the running userspace; `None` if the service manager does not report it.
    fn userspace(&self) -> impl Future<Output = Result<Option<Userspace>, ServiceError>> + Send {
        async { Ok(None) }
    }

    /// Inhibits shutdown until the returned lock is dropped, for the time in which the tree contains objects of
    /// both configs. Returns `None` if no inhibitor lock is granted; if the machine goes down regardless, recovery
    /// handles it.
    fn hold_off_shutdown(&self, why: &str) -> impl Future<Output = Option<InhibitGuard>> + Send;

    /// Requests a reboot and returns once it was accepted. If the reboot is cancelled later, `reboot_over` returns;
    /// if it happens, this process ends.
    fn reboot(
        &self,
        kind: RebootKind,
        method: RebootMethod,
        why: &str,
    ) -> impl Future<Output = Result<(), ServiceError>> + Send;

    /// Waits until an accepted reboot is cancelled, or until `limit` has passed in addition to the time for which
    /// inhibitor locks may delay it: then the reboot counts as lost.
    fn reboot_over(&self, limit: Duration) -> impl Future<Output = ServiceError> + Send;
}

/// Installs the units that recover an interrupted update, and the program that they run. In a cluster the agent
/// installs them itself.
pub trait RecoveryInstaller: Send + Sync + 'static {
    /// Installs or updates the units and the program. Returns true if it wrote something, so that systemd needs a
    /// daemon-reload.
    ///
    /// This call blocks. It is idempotent, and is repeated after a crash.
    ///
    /// # Errors
    /// The units or the program are not completely installed; the error states the cause.
    fn install(&self) -> Result<bool, Box<dyn Error + Send + Sync>>;
}

impl fmt::Debug for dyn RecoveryInstaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecoveryInstaller")
    }
}
