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

#[path = "support/device_host.rs"]
mod device_host;
#[path = "last_version/devices.rs"]
mod devices;
#[path = "support/fake_claims.rs"]
mod fake_claims;
#[path = "support/fake_kubelet.rs"]
mod fake_kubelet;
#[path = "last_version/fixture.rs"]
mod fixture;
#[path = "last_version/handover.rs"]
mod handover;
#[path = "agent/harness.rs"]
mod harness;
#[path = "last_version/host_units.rs"]
mod host_units;
#[path = "last_version/journal.rs"]
mod journal;
#[path = "last_version/node_objects.rs"]
mod node_objects;
#[path = "cluster/patches.rs"]
mod patches;
#[path = "proxy/plugin.rs"]
mod plugin;
#[path = "vendor/program.rs"]
mod program;
#[path = "cluster/server.rs"]
mod server;
#[path = "last_version/state_directory.rs"]
mod state_directory;
#[path = "last_version/state_writer.rs"]
mod state_writer;
