//! Reads the configuration files of boot loaders as the loaders do, and writes kernel arguments in their formats.
//!
//! This crate is pure: the caller hands in the texts of the files, and writes what is returned.

pub mod grub;
