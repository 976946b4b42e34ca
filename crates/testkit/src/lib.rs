//! Doubles of the programs around the agent, and machines in temporary directories, for
//! integration tests.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::expect_used,
    clippy::new_without_default,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    missing_debug_implementations,
    missing_docs,
    reason = "a test may panic and print, and plays the programs that make files and devices"
)]

use std::{sync::mpsc, thread, time::Duration};

/// How long tests wait for a condition. Only a failing test reaches it, so it is generous: enough even
/// on two slow cores while a compiler runs.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs `act` on a thread of its own, so that a test fails if it never returns.
pub fn finish_in_time<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    thread::spawn(move || done.send(act()));
    result.recv_timeout(WAIT_TIMEOUT).unwrap()
}

pub mod container_runtime;
pub mod device_host;
pub mod fake_claims;
pub mod fake_kubelet;
pub mod fake_rpm_ostree;
pub mod fake_systemd;
pub mod file_lease;
pub mod first_config;
pub mod node;
mod null_services;
pub mod object_kinds;
pub mod pod_resources;
pub mod sandbox;
pub mod scripted_services;
pub mod settled;
pub mod stepwise_update;
pub mod update_case;
pub mod vendor_program;
