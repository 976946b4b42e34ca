//! The operating system: the detection of the kind of host, and the contract of a provider.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a test may panic and say why, and makes the trees that it looks at"
)]

mod argument_lists;
pub(crate) mod bootc_program;
mod bootc_with_rpm_ostree;
mod contract;
mod fake_host;
mod fedora_host;
mod fedora_machine;
mod full_disk;
mod grub_host;
pub(crate) mod grub_machine;
mod interruptions;
mod kinds;
mod leave_host;
mod mutants;
pub(crate) mod ostree_files;
pub(crate) mod ostree_foreign_changes;
mod ostree_host;
pub(crate) mod ostree_machine;
mod ostree_obstacles;
mod ostree_power_cuts;
pub(crate) mod ostree_registry;
mod power_cuts;
mod read_only_scripts;
mod registry_outages;
pub(crate) mod rpm_ostree_daemon;
mod rpm_ostree_host;
mod systemd_boot_default;
mod systemd_boot_host;
pub(crate) mod systemd_boot_machine;
mod unshare_program;
