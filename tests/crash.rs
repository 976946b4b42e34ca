//! kill -9 at every place of an update, and at random ones: the next start finds one config or the
//! other and finishes properly.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test may panic, count aloud, and play everybody else who writes into the tree"
)]

mod child;
mod kill_matrix;
mod phase_observer;
mod random_kills;
mod service_manager_outage;
mod state_upgrade;

use crate::update::harness;
