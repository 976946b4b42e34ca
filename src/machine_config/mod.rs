//! Parses, validates and merges MachineConfig, Ignition and Butane documents into the desired state
//! of a machine.
//!
//! Texts become [`Document`]s ([`parse`]), documents become one [`MachineConfig`] ([`merge`]), and
//! equal machines have equal digests ([`digest`]), independent of the spelling. This module does no
//! I/O and uses no clock.

mod account;
mod butane;
mod canonical;
mod conflict;
mod declared;
mod defaults;
mod disk_layout;
mod document;
mod entry;
mod files;
mod ignition;
mod kernel_arguments;
mod local;
mod manifest;
mod merge;
mod parts;
mod problems;
mod reader;
mod refusal;
mod roles;
mod scalar;
mod source;
mod trail;
mod tree;
mod unit_check;
mod unit_file;
mod unknown;
mod unread;
mod warning;

pub use account::{Group, PasswordHash, UserAccount};
pub use canonical::{
    CanonicalError, digest, from_canonical_json, from_portable_json, rendered_name,
    to_canonical_json, to_portable_json,
};
pub use declared::{Before, Declared, declared};
pub use defaults::{DIRECTORY_MODE, FILE_MODE};
pub use disk_layout::DiskLayout;
pub use document::{Document, Rules, TextSource, parse};
pub use entry::{
    Content, Directory, EntryKind, File, Link, MachineConfig, Notes, Origin, Origins, Overwrite,
    Owner, Release, Unit, UnitName, User,
};
pub use files::{ENDINGS, Gathering, Refused, documents_from_files, is_config_name};
pub use ignition::place_fault;
pub use kernel_arguments::{KernelArgument, KernelCommandLine, kernel_argument_fault};
pub use local::{Local, LocalEntry, LocalError, LocalKind, NoLocal};
pub use manifest::{NoContent, to_machine_config, to_machine_config_yaml};
pub use merge::{Order, merge};
pub use refusal::Refusal;
pub use unit_file::{UnitFault, UnitFile, split_words};
