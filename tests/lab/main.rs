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
    reason = "a test ends at the first surprise and says so; the crate's walls are not the lab's"
)]

mod accounts;
mod clusters;
mod crash;
mod devices;
mod gateway;
mod guard;
mod machines;
mod path;
mod service;
mod soft;
mod support;
mod undo;
