//! Vendors' programs against the device service, over real sockets below a root in a temporary
//! directory.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::print_stderr,
    dead_code,
    reason = "a test may panic, and plays the outside world that makes files and devices"
)]

mod conformance;
mod examples;
mod frame_floods;
mod idle_connections;
mod kubelet;
mod lifecycle;
mod memory;
mod path_policy;
mod requests;
mod status_text;
