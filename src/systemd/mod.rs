//! Clients of the host's service manager: units and jobs of PID 1, logind's reboot and locks, the
//! clock's state, and notifications to machinist's own service manager.
//!
//! The only module that uses D-Bus. Sockets are provided from outside through [`Dial`], so the same
//! code reaches `/run/dbus` of the machine, of a machine mounted at `/host`, and of a simulated
//! one.

mod changes;
mod error;
mod job;
mod link;
mod login;
mod manager;
mod notify;
mod private;
mod proxies;
mod reboot;
mod services;
mod settle;
mod shutdowns;
mod timedate;
mod unit;

pub use error::{SystemdError, Trouble};
pub use job::{JobResult, Verb};
pub use link::{Dial, Lines};
pub use login::{InhibitLock, InhibitMode, Inhibitor, Login, RebootFlags, ShutdownSignals, WHO};
pub use manager::{ListedUnit, SystemState, Systemd};
pub use notify::Notifier;
pub use reboot::{Method, Receipt};
pub use shutdowns::{Around, around_shutdowns};
pub use timedate::TimeDate;
pub use unit::{Active, Load, UnitState};
