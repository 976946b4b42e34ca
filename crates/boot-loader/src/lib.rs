//! Reads the configuration files of boot loaders as the loaders do, and writes kernel arguments in their formats.
//!
//! This crate is pure: the caller reads the files, and writes the texts that it returns.

pub mod grub;
pub mod systemd_boot;
