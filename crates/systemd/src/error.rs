//! Errors of the service manager, classified by how to handle them.

use std::time::Duration;
use zbus::DBusError;

use super::inhibitor::Inhibitor;
use machinist_base::reason::Reason;

/// A failed request to the service manager or logind.
#[derive(Debug, thiserror::Error)]
#[error("cannot {act}")]
pub struct SystemdError {
    act: String,
    #[source]
    trouble: SystemdErrorKind,
}

/// The cause of a failure. Names follow systemd's own error names where they exist.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SystemdErrorKind {
    /// No socket leads to the service, or its name has no owner on the bus.
    #[error("the service manager cannot be reached")]
    NoManager(#[source] Cause),
    /// The connection broke before the answer; the request may or may not have been carried out.
    #[error("the connection to the service manager broke before it answered")]
    ConnectionLost(#[source] Cause),
    /// No answer arrived. After a reboot request it means that the machine is shutting down.
    #[error("the service manager did not reply")]
    NoReply,
    /// This process is not authorised for the request.
    #[error("not allowed: {0}")]
    NotAuthorized(String),
    /// A `block` inhibitor lock prevents the shutdown. Empty if logind does not report the holder.
    #[error("blocked by inhibitor {}", names(.holders))]
    BlockedByInhibitor {
        /// The holders of the locks and their reasons.
        holders: Vec<Inhibitor>,
    },
    /// Another shutdown or reboot is already in progress.
    #[error("a shutdown is in progress already")]
    OperationInProgress,
    /// The shutdown was cancelled after it had been announced.
    #[error("the shutdown was cancelled after it had been accepted")]
    Cancelled,
    /// logind did not announce the shutdown in time.
    #[error("logind did not announce the shutdown within {within:?}")]
    NoReceipt {
        /// How long the announcement was awaited.
        within: Duration,
    },
    /// There is no unit of that name.
    #[error("unit not found")]
    NoSuchUnit,
    /// The unit is masked.
    #[error("the unit is masked")]
    UnitMasked,
    /// The text is not a valid unit name.
    #[error("invalid unit name or argument: {0}")]
    Invalid(String),
    /// The unit file cannot be loaded.
    #[error("the unit failed to load: {0}")]
    BadUnit(String),
    /// The unit does not support this job, such as a reload without `ExecReload=`.
    #[error("the unit does not support this kind of job")]
    JobTypeNotApplicable,
    /// The job conflicts with one that must not be replaced: usually, a shutdown is queued.
    #[error("it conflicts with a job that must not be replaced, such as a shutdown")]
    TransactionIsDestructive,
    /// The jobs it needs contradict one another.
    #[error("the jobs it needs contradict one another: {0}")]
    TransactionConflicts(String),
    /// The unit has `RefuseManualStart=` or `RefuseManualStop=`.
    #[error("the unit may only be started or stopped as a dependency of others")]
    OnlyByDependency,
    /// PID 1 accepts no more jobs.
    #[error("the system is shutting down")]
    ShuttingDown,
    /// A transient unit of that name exists already.
    #[error("a unit of that name exists already")]
    UnitExists,
    /// Too many requests in a row; newer systemd limits the rate of reloads.
    #[error("the service manager limits the request rate: {0}")]
    Busy(String),
    /// The service does not have this method or property: it is older than the request.
    #[error("the service manager does not support the request: {0}")]
    Unsupported(String),
    /// The job was accepted and had not ended within our own limit; systemd continues it.
    #[error("the job had not ended after {after:?}")]
    JobUnfinished {
        /// The limit that passed.
        after: Duration,
    },
    /// An error not covered above, by its D-Bus name.
    #[error("{name}: {text}")]
    Other {
        /// The error's name on the bus.
        name: String,
        /// The text that came with it.
        text: String,
    },
    /// The service sent a message that does not match its interface.
    #[error("the reply does not match the interface")]
    Protocol(#[source] Cause),
}

type Cause = Box<dyn std::error::Error + Send + Sync>;

impl SystemdError {
    /// `act` completes "cannot …", with the object: `restart chronyd.service`.
    pub(super) fn new(act: impl Into<String>, trouble: SystemdErrorKind) -> Self {
        Self {
            act: act.into(),
            trouble,
        }
    }

    /// For `map_err`.
    pub(super) fn during(act: impl Into<String>) -> impl FnOnce(SystemdErrorKind) -> Self {
        move |trouble| Self::new(act, trouble)
    }

    /// The cause.
    pub fn trouble(&self) -> &SystemdErrorKind {
        &self.trouble
    }

    /// Whether the same request may succeed later by itself.
    pub fn is_retryable(&self) -> bool {
        self.trouble.is_retryable()
    }

    /// The stable code for status, conditions and metrics.
    pub fn reason(&self) -> Reason {
        self.trouble.reason()
    }
}

impl SystemdErrorKind {
    fn is_retryable(&self) -> bool {
        match self {
            Self::NoManager(_)
            | Self::ConnectionLost(_)
            | Self::NoReply
            | Self::BlockedByInhibitor { .. }
            | Self::OperationInProgress
            | Self::Cancelled
            | Self::NoReceipt { .. }
            | Self::TransactionIsDestructive
            | Self::TransactionConflicts(_)
            | Self::ShuttingDown
            | Self::Busy(_) => true,
            Self::NotAuthorized(_)
            | Self::NoSuchUnit
            | Self::UnitMasked
            | Self::Invalid(_)
            | Self::BadUnit(_)
            | Self::JobTypeNotApplicable
            | Self::OnlyByDependency
            | Self::UnitExists
            | Self::Unsupported(_)
            | Self::JobUnfinished { .. }
            | Self::Other { .. }
            | Self::Protocol(_) => false,
        }
    }

    fn reason(&self) -> Reason {
        match self {
            Self::NoManager(_) | Self::ConnectionLost(_) | Self::NoReply | Self::Protocol(_) => {
                Reason::ManagerUnreachable
            }
            Self::NotAuthorized(_) => Reason::PermissionMissing,
            Self::BlockedByInhibitor { .. } => Reason::RebootInhibited,
            Self::OperationInProgress | Self::TransactionIsDestructive | Self::ShuttingDown => {
                Reason::RebootPending
            }
            Self::Cancelled => Reason::RebootCancelled,
            Self::NoReceipt { .. } => Reason::RebootTimeout,
            Self::NoSuchUnit => Reason::UnitNotFound,
            Self::UnitMasked => Reason::UnitMasked,
            Self::BadUnit(_) => Reason::UnitInvalid,
            Self::JobUnfinished { .. } => Reason::JobTimeout,
            Self::Invalid(_)
            | Self::JobTypeNotApplicable
            | Self::TransactionConflicts(_)
            | Self::OnlyByDependency
            | Self::UnitExists
            | Self::Busy(_)
            | Self::Unsupported(_)
            | Self::Other { .. } => Reason::JobRefused,
        }
    }

    /// Classifies an error by its D-Bus name; the text is used only where versions differ.
    fn named(name: &str, text: String) -> Self {
        let (space, short) = name.rsplit_once('.').unwrap_or(("", name));
        match (space, short) {
            ("org.freedesktop.DBus.Error", _) => Self::of_the_bus(name, short, text),
            ("org.freedesktop.login1", "BlockedByInhibitorLock") => {
                Self::BlockedByInhibitor { holders: vec![] }
            }
            ("org.freedesktop.login1", "OperationInProgress") => Self::OperationInProgress,
            ("org.freedesktop.systemd1", _) => Self::of_the_manager(name, short, text),
            _ => Self::Other {
                name: name.to_owned(),
                text,
            },
        }
    }

    fn of_the_bus(name: &str, short: &str, text: String) -> Self {
        match short {
            "ServiceUnknown" | "NameHasNoOwner" | "NoServer" => Self::NoManager(text.into()),
            "Disconnected" => Self::ConnectionLost(text.into()),
            "NoReply" | "Timeout" | "TimedOut" => Self::NoReply,
            // systemd 257 reports it this way; from 258 on there is a separate error name.
            "AccessDenied" if text.contains("inhibitor") => {
                Self::BlockedByInhibitor { holders: vec![] }
            }
            "AccessDenied" | "InteractiveAuthorizationRequired" | "AuthFailed" => {
                Self::NotAuthorized(text)
            }
            "InvalidArgs" => Self::Invalid(text),
            "LimitsExceeded" => Self::Busy(text),
            "UnknownMethod" | "UnknownProperty" | "UnknownInterface" | "UnknownObject" => {
                Self::Unsupported(text)
            }
            _ if name.starts_with("org.freedesktop.DBus.Error.Spawn") => {
                Self::NoManager(text.into())
            }
            _ => Self::Other {
                name: name.to_owned(),
                text,
            },
        }
    }

    fn of_the_manager(name: &str, short: &str, text: String) -> Self {
        match short {
            "NoSuchUnit" => Self::NoSuchUnit,
            "UnitMasked" => Self::UnitMasked,
            "LoadFailed" | "BadUnitSetting" => Self::BadUnit(text),
            "JobTypeNotApplicable" => Self::JobTypeNotApplicable,
            "TransactionIsDestructive" => Self::TransactionIsDestructive,
            "TransactionJobsConflicting" | "TransactionOrderIsCyclic" => {
                Self::TransactionConflicts(text)
            }
            "OnlyByDependency" => Self::OnlyByDependency,
            "ShuttingDown" => Self::ShuttingDown,
            "UnitExists" => Self::UnitExists,
            _ => Self::Other {
                name: name.to_owned(),
                text,
            },
        }
    }
}

impl From<zbus::Error> for SystemdErrorKind {
    fn from(error: zbus::Error) -> Self {
        match error {
            zbus::Error::MethodError(name, text, _) => {
                Self::named(name.as_str(), text.unwrap_or_default())
            }
            zbus::Error::FDO(error) => (*error).into(),
            zbus::Error::InputOutput(cause) if cause.kind() == std::io::ErrorKind::TimedOut => {
                Self::NoReply
            }
            zbus::Error::InputOutput(cause) => Self::ConnectionLost(Box::new(cause)),
            error @ (zbus::Error::Handshake(_) | zbus::Error::Connection(..)) => {
                Self::NoManager(Box::new(error))
            }
            error => Self::Protocol(Box::new(error)),
        }
    }
}

impl From<zbus::fdo::Error> for SystemdErrorKind {
    fn from(error: zbus::fdo::Error) -> Self {
        match error {
            zbus::fdo::Error::ZBus(error) => error.into(),
            error => Self::named(
                error.name().as_str(),
                error.description().unwrap_or_default().to_owned(),
            ),
        }
    }
}

fn names(holders: &[Inhibitor]) -> String {
    if holders.is_empty() {
        return "a block lock whose holder is not known".to_owned();
    }
    let one = |holder: &Inhibitor| format!("{} ({})", holder.who, holder.why);
    holders.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
