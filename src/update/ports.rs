//! What the driver needs of the machine's service manager, and nothing more.

use std::{collections::BTreeMap, error::Error, fmt, future::Future, time::Duration};

use super::userspace::Userspace;
use crate::{
    plan::{ActionKind, UnitFacts},
    reason::Reason,
};

/// Why the service manager did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[error("the service manager did not do what it was asked")]
pub struct ServiceError {
    /// The stable code.
    pub reason: Reason,
    /// Whether the same may succeed later.
    pub again: bool,
    /// What the manager answered.
    #[source]
    pub source: Box<dyn Error + Send + Sync>,
}

/// How far the service manager has come with the boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Startup {
    /// It has still units to start.
    Starting,
    /// All that the boot asks for was started, some units in vain perhaps.
    Finished,
    /// Rescue or emergency mode.
    Maintenance,
    /// The machine goes down.
    Stopping,
}

/// What starts anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebootKind {
    /// Userspace; the kernel and what it was told stay.
    Soft,
    /// The machine.
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

/// How a reboot is asked for, most polite first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RebootMethod {
    /// logind's `Reboot`, which asks the holders of inhibitor locks first.
    Logind,
    /// A transient unit that runs `systemctl reboot`, or `soft-reboot`, and outlives us.
    TransientUnit,
    /// `reboot.target`, or `soft-reboot.target`, irreversibly.
    RebootTarget,
}

impl RebootMethod {
    /// The method of the n-th attempt, counted from 0; none when all were tried.
    pub fn of_attempt(attempt: u32) -> Option<Self> {
        match attempt {
            0 => Some(Self::Logind),
            1 => Some(Self::TransientUnit),
            2 => Some(Self::RebootTarget),
            _ => None,
        }
    }
}

/// A lock that is given up when it is dropped.
pub type Held = Box<dyn std::any::Any + Send + Sync>;

/// The service manager and the login manager of a live root.
pub trait Services: Send + Sync + 'static {
    /// The unit's `InvocationID`, which changes each time it is started; none when it never was.
    fn invocation(
        &self,
        unit: &str,
    ) -> impl Future<Output = Result<Option<String>, ServiceError>> + Send;

    /// Lets the manager read its unit files again.
    fn daemon_reload(&self) -> impl Future<Output = Result<(), ServiceError>> + Send;

    /// Reloads or restarts a unit, waits at most `limit` for the job, then watches the unit for
    /// `settle`: one that dies within it was not restarted.
    fn act(
        &self,
        kind: ActionKind,
        unit: &str,
        limit: Duration,
        settle: Duration,
    ) -> impl Future<Output = Result<(), ServiceError>> + Send;

    /// How far the boot is.
    fn startup(&self) -> impl Future<Output = Result<Startup, ServiceError>> + Send;

    /// Units in state `failed`, by name.
    fn failed_units(&self) -> impl Future<Output = Result<Vec<String>, ServiceError>> + Send;

    /// What a plan needs to know of these units.
    fn unit_facts(
        &self,
        names: &[String],
    ) -> impl Future<Output = Result<BTreeMap<String, UnitFacts>, ServiceError>> + Send;

    /// Which userspace runs; none where nobody tells.
    fn userspace(&self) -> impl Future<Output = Result<Option<Userspace>, ServiceError>> + Send {
        async { Ok(None) }
    }

    /// Holds shutdowns off until the answer is dropped: for the moments in which the tree is a mix.
    /// None where nobody grants that; recovery is there for a machine that goes down all the same.
    fn hold_off_shutdown(&self, why: &str) -> impl Future<Output = Option<Held>> + Send;

    /// Orders a reboot and returns once it was accepted. When it is called off later, `reboot_over`
    /// says so; when it happens, nobody is left to be told.
    fn reboot(
        &self,
        kind: RebootKind,
        method: RebootMethod,
        why: &str,
    ) -> impl Future<Output = Result<(), ServiceError>> + Send;

    /// Waits until an accepted reboot is called off, or until `limit` has passed, beyond what the
    /// holders of locks may delay it: then it is taken not to come any more.
    fn reboot_over(&self, limit: Duration) -> impl Future<Output = ServiceError> + Send;
}
