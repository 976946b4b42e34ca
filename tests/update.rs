//! The update reconciler on a machine whose service manager follows a script.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test may panic, and plays the machine around the driver"
)]

mod between_boots;
mod blocked;
mod boot_guard;
mod boots;
mod changed_targets;
mod config_rename;
mod devices;
mod drift_repair;
pub(crate) mod harness;
mod newer_config;
mod no_reboot;
mod nodes;
mod obstacles;
mod os_image_paths;
mod os_images;
mod os_packages;
mod os_trial_attempts;
mod os_trial_changes;
mod os_trial_keep;
mod os_trial_soft_reboots;
mod os_trials;
mod os_trials_on_ostree;
mod phases;
mod reboots;
mod recovery;
mod recovery_install;
mod soft_reboot;
mod users;
mod warned;
