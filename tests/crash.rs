//! kill -9 at every place of an update, and at random ones: the next start finds one config or the
//! other and finishes properly.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test may panic, count aloud, and play everybody else who writes into the tree"
)]

#[path = "crash/child.rs"]
mod child;
#[path = "update/harness.rs"]
mod harness;
#[path = "crash/kill_matrix.rs"]
mod kill_matrix;
#[path = "support/node.rs"]
mod node;
#[path = "crash/phase_observer.rs"]
mod phase_observer;
#[path = "crash/random_kills.rs"]
mod random_kills;
#[path = "support/sandbox.rs"]
mod sandbox;
#[path = "support/scripted_services.rs"]
mod scripted_services;
#[path = "crash/service_manager_outage.rs"]
mod service_manager_outage;
#[path = "crash/state_upgrade.rs"]
mod state_upgrade;
#[path = "support/stepwise_update.rs"]
mod stepwise_update;
#[path = "support/update_case.rs"]
mod update_case;
