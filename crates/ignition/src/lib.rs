//! Parses, validates and merges MachineConfig, Ignition and Butane documents into the desired state
//! of a machine.
//!
//! Texts become [`ConfigDocument`]s ([`parse`]), documents become one [`MachineConfig`] ([`merge`]), and
//! equal machines have equal digests ([`digest`]), independent of the spelling. This module does no
//! I/O and uses no clock.

mod account;
mod butane;
mod butane_local;
mod canonical;
mod config_rules;
mod content_source;
mod defaults;
mod diagnostics;
mod disk_layout;
mod entry_origin;
mod field_path;
mod field_reader;
mod ignition;
mod ignition_dialect;
mod kernel_arguments;
mod kernel_fields;
mod load;
mod manifest_writer;
mod merge;
mod model;
mod os_config;
mod parse_context;
mod parser;
mod partial;
mod path_conflicts;
mod refusal;
mod rejected_texts;
mod role_selection;
mod scalar;
mod unit_check;
mod unit_file;
mod unknown_keys;
mod versioned_field;
mod warning;
mod yaml_merge_keys;
mod yaml_tree;

pub use account::{Group, PasswordHash, User, UserAccount};
pub use butane_local::{LocalEntry, LocalError, LocalFileSource, LocalKind, NoLocalFiles};
pub use canonical::{
    CanonicalError, digest, from_canonical_json, from_portable_json, rendered_name,
    to_canonical_json, to_portable_json,
};
pub use config_rules::{ConfigRules, TextSource};
pub use content_source::decode_base64;
pub use defaults::{DIRECTORY_MODE, FILE_MODE};
pub use disk_layout::DiskLayout;
pub use entry_origin::{EntryKind, EntryOrigin, EntryOrigins};
pub use ignition::place_fault;
pub use kernel_arguments::{KernelArgument, KernelCommandLine, kernel_argument_fault};
pub use load::{
    CONFIG_EXTENSIONS, ConfigLoader, RejectedConfig, documents_from_files, is_config_name,
};
pub use manifest_writer::{MissingContent, to_machine_config, to_machine_config_yaml};
pub use merge::{MergeOrder, merge};
pub use model::{
    ClusterBaseline, Content, CreationNotes, Directory, File, Link, MachineConfig, OsConfig,
    Overwrite, Owner, Release, Unit, UnitName,
};
pub use os_config::declared;
pub use parser::{ConfigDocument, parse};
pub use refusal::Refusal;
pub use unit_check::service_fault;
pub use unit_file::{UnitFault, UnitFile, split_words};
