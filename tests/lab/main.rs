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
mod boot_guard;
mod chaos;
mod claims;
mod clusters;
mod crash;
mod devices;
mod disks;
mod drain;
mod drain_oracle;
mod fleet;
mod gateway;
mod grants;
mod harness_self_test;
mod installed;
mod kubelet;
mod kubelet_restart;
mod nodes;
mod numa;
mod openshift;
mod pinned_images;
mod policies;
mod policy_table;
mod pools;
mod rollback;
mod service;
mod single_machine;
mod soft_reboot;
mod support;
mod user_directories;
mod vendors;

// Updates of every kind, shared with the power-cut tests.
#[path = "../power_cut/cases.rs"]
mod cases;
