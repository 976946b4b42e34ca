//! Disks that fill up, return errors or become read-only during an update: the agent keeps running,
//! the tree is the old config or the new one, and once the fault is fixed the update completes.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test may panic, count aloud, and play everybody else who writes into the tree"
)]

mod disk_full;
mod io_errors;
mod lost_state;

use crate::update::harness;
