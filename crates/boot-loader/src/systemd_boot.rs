//! systemd-boot: its menu entries in `loader/entries` (Boot Loader Specification, type 1), `loader.conf`, and the
//! choice of the entry that a boot enters.
//!
//! The rules are those of the Boot Loader Specification of the UAPI group and, where that is silent, of
//! `src/boot/boot.c` of systemd 257.

mod entry;
mod menu;
mod pattern;

pub use self::{
    entry::{BootCounter, MenuEntry},
    menu::{LoaderFiles, LoaderVariables, SimulatedSystemdBoot},
};

#[cfg(test)]
mod tests;
