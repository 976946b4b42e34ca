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

#[path = "vendor/conformance.rs"]
mod conformance;
#[path = "support/device_host.rs"]
mod device_host;
#[path = "vendor/examples.rs"]
mod examples;
#[path = "support/fake_kubelet.rs"]
mod fake_kubelet;
#[path = "vendor/idle_connections.rs"]
mod idle_connections;
#[path = "vendor/kubelet.rs"]
mod kubelet;
#[path = "vendor/lifecycle.rs"]
mod lifecycle;
#[path = "vendor/path_policy.rs"]
mod path_policy;
#[path = "vendor/program.rs"]
mod program;
#[path = "vendor/requests.rs"]
mod requests;
#[path = "vendor/status_text.rs"]
mod status_text;
