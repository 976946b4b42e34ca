//! Clients of the host's service manager: units and jobs of PID 1, logind's reboot and locks, the
//! clock's state, rpm-ostree's transactions, and notifications to machinist's own service manager.
//!
//! The only module that uses D-Bus. Sockets are provided from outside through [`SocketDialer`], so the same
//! code reaches `/run/dbus` of the machine, of a machine mounted at `/host`, and of a simulated
//! one.

mod connection;
mod dbus_proxies;
mod error;
mod host_command;
mod inhibitor;
mod jobs;
mod logind;
mod manager;
mod notifier;
mod private_socket;
mod reboot;
mod rpm_ostree;
mod shutdown_inhibit;
mod stability;
mod timedated;
mod transient_unit;
mod unit_signals;
mod unit_state;
mod update_port;
mod user_units;

pub use connection::{BusAddresses, SocketDialer};
pub use error::{SystemdError, SystemdErrorKind};
pub use inhibitor::{INHIBITOR_NAME, Inhibitor};
pub use jobs::{JobResult, JobVerb};
pub use logind::{InhibitLock, InhibitMode, Logind, RebootFlags, ShutdownSignals};
pub use manager::{ListedUnit, SystemState, Systemd};
pub use notifier::Notifier;
pub use reboot::RebootProof;
pub use shutdown_inhibit::{ShutdownHooks, around_shutdowns};
pub use timedated::Timedated;
pub use unit_state::{ActiveState, LoadState, UnitState};
