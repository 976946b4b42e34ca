//! The lab's tests: real machines, a real kubelet, a real API server. `tests/lab/run` starts them.
#![allow(clippy::too_many_lines, reason = "a test of a machine is one story")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::print_stdout,
    clippy::print_stderr,
    unreachable_pub,
    reason = "a test panics at the first failure; the crate's layering rules do not apply to the lab"
)]

mod accounts;
mod claims;
mod clusters;
mod crash;
mod devices;
mod disks;
mod drain;
mod drain_oracle;
mod fifty;
mod gateway;
mod guard;
mod installed;
mod kubelet;
mod machines;
mod nodes;
mod numa;
mod openshift;
mod path;
mod policies;
mod rounds;
mod service;
mod soft;
mod support;
mod table;
mod tended;
mod undo;
mod vendors;

// Updates of every kind, shared with the power-cut tests.
#[allow(dead_code, reason = "shared with other tests")]
#[path = "../support/by_hand.rs"]
mod by_hand;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "../support/case.rs"]
mod case;
#[path = "../power_cut/cases.rs"]
mod cases;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "../support/first_config.rs"]
mod first_config;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "../support/sandbox.rs"]
mod sandbox;
