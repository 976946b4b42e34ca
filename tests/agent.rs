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

#[path = "agent/cli_with_agent.rs"]
mod cli_with_agent;
#[path = "agent/commands.rs"]
mod commands;
#[path = "agent/config_dir_watch.rs"]
mod config_dir_watch;
#[path = "agent/crash.rs"]
mod crash;
#[path = "agent/drift.rs"]
mod drift;
#[path = "agent/harness.rs"]
mod harness;
#[path = "agent/json_shape.rs"]
mod json_shape;
#[path = "agent/outputs.rs"]
mod outputs;
#[path = "support/pod_resources.rs"]
mod pod_resources;
#[path = "agent/port_interference.rs"]
mod port_interference;
#[path = "agent/refusals.rs"]
mod refusals;
#[path = "agent/secrets.rs"]
mod secrets;
#[path = "agent/self_config.rs"]
mod self_config;
#[path = "agent/shutdown.rs"]
mod shutdown;
#[path = "agent/state_errors.rs"]
mod state_errors;
#[path = "agent/terminal.rs"]
mod terminal;
#[path = "agent/trusted.rs"]
mod trusted;
#[path = "agent/uninstall.rs"]
mod uninstall;
