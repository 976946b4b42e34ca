//! The update reconciler on a machine whose service manager follows a script.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test may panic, and plays the machine around the driver"
)]

#[path = "update/between_boots.rs"]
mod between_boots;
#[path = "update/blocked.rs"]
mod blocked;
#[path = "update/boot_guard.rs"]
mod boot_guard;
#[path = "update/boots.rs"]
mod boots;
#[path = "update/config_rename.rs"]
mod config_rename;
#[path = "update/devices.rs"]
mod devices;
#[path = "update/harness.rs"]
mod harness;
#[path = "update/no_reboot.rs"]
mod no_reboot;
#[path = "support/node.rs"]
mod node;
#[path = "update/nodes.rs"]
mod nodes;
#[path = "update/obstacles.rs"]
mod obstacles;
#[path = "update/phases.rs"]
mod phases;
#[path = "update/reboots.rs"]
mod reboots;
#[path = "update/recovery.rs"]
mod recovery;
#[path = "update/recovery_install.rs"]
mod recovery_install;
#[path = "support/sandbox.rs"]
mod sandbox;
#[path = "support/scripted_services.rs"]
mod scripted_services;
#[path = "update/soft_reboot.rs"]
mod soft_reboot;
#[path = "support/stepwise_update.rs"]
mod stepwise_update;
#[path = "update/users.rs"]
mod users;
#[path = "update/warned.rs"]
mod warned;
