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

#[path = "vendor/asked.rs"]
mod asked;
#[path = "vendor/checked.rs"]
mod checked;
#[path = "vendor/examples.rs"]
mod examples;
#[path = "vendor/held.rs"]
mod held;
#[path = "vendor/kubelet.rs"]
mod kubelet;
#[path = "support/kubelet_double.rs"]
mod kubelet_double;
#[path = "vendor/lives.rs"]
mod lives;
#[path = "support/machine.rs"]
mod machine;
#[path = "vendor/program.rs"]
mod program;
#[path = "vendor/said.rs"]
mod said;
#[path = "vendor/trust.rs"]
mod trust;
