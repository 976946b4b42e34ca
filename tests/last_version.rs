//! What the last version left behind is read by this one: every file of the state directory, the marks on a Node, the
//! units on a host, and the state of a handover.
//!
//! The fixtures in `tests/last_version/data` were written by the last version. `UPDATE_STATE_FIXTURES=1` adds missing
//! ones with the version under test; remove a fixture and do that only with the version before a format changes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test may panic, and plays the outside world that makes files and devices"
)]

#[path = "cluster/collections.rs"]
mod collections;
mod devices;
mod fixture;
mod handover;
mod host_units;
mod journal;
mod node_objects;
#[path = "cluster/patches.rs"]
mod patches;
#[path = "proxy/plugin.rs"]
mod plugin;
#[path = "cluster/server.rs"]
mod server;
mod state_directory;
mod state_writer;

use crate::agent::harness;
