//! End-to-end tests of the agent: the real binary on a temporary root, as any user, without systemd
//! or Kubernetes. Results are judged from outside: the files, the exit code, the log, the
//! responses.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::print_stderr,
    dead_code,
    reason = "the tests run programs and look at trees past the code that is tested"
)]

mod caller_paths;
mod cli_with_agent;
mod commands;
mod config_dir_watch;
mod crash;
mod drift;
pub(crate) mod harness;
mod json_shape;
mod large_requests;
mod outputs;
mod port_interference;
mod refusals;
mod roles;
mod secrets;
mod self_config;
mod shutdown;
mod state_errors;
mod terminal;
mod trusted;
mod uninstall;
