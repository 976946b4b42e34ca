//! Disks that fill up, return errors or become read-only during an update: the agent keeps running,
//! the tree is the old config or the new one, and once the fault is fixed the update completes.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test may panic, count aloud, and play everybody else who writes into the tree"
)]

#[path = "faults/disk_full.rs"]
mod disk_full;
#[path = "update/harness.rs"]
mod harness;
#[path = "faults/io_errors.rs"]
mod io_errors;
#[path = "faults/lost_state.rs"]
mod lost_state;
#[path = "support/node.rs"]
mod node;
#[path = "support/sandbox.rs"]
mod sandbox;
#[path = "support/scripted_services.rs"]
mod scripted_services;
#[path = "support/stepwise_update.rs"]
mod stepwise_update;
#[path = "support/update_case.rs"]
mod update_case;
