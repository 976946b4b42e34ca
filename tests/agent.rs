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

#[path = "agent/answers.rs"]
mod answers;
#[path = "agent/beside.rs"]
mod beside;
#[path = "agent/commands.rs"]
mod commands;
#[path = "agent/crash.rs"]
mod crash;
#[path = "agent/drift.rs"]
mod drift;
#[path = "agent/ends.rs"]
mod ends;
#[path = "agent/floods.rs"]
mod floods;
#[path = "agent/follows.rs"]
mod follows;
#[path = "agent/harness.rs"]
mod harness;
#[path = "agent/own.rs"]
mod own;
#[path = "support/pod_resources.rs"]
mod pod_resources;
#[path = "agent/refuses.rs"]
mod refuses;
#[path = "agent/secrets.rs"]
mod secrets;
#[path = "agent/shape.rs"]
mod shape;
#[path = "agent/terminal.rs"]
mod terminal;
#[path = "agent/trouble.rs"]
mod trouble;
#[path = "agent/trusted.rs"]
mod trusted;
#[path = "agent/uninstall.rs"]
mod uninstall;
