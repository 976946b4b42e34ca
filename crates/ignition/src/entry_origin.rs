//! Defines the kinds of config entries and their places in the source texts.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

/// The place of an entry in its source text. Never part of equality. Plans clone it often.
#[derive(Clone, Debug, Default)]
pub struct EntryOrigin {
    /// The name of the MachineConfig (or the file's stem for bare Ignition).
    pub config: Option<Arc<str>>,
    /// The file, as the user named it.
    pub file: Option<Arc<str>>,
    /// Line, from 1.
    pub line: Option<u32>,
    /// Column in characters, from 1.
    pub column: Option<u32>,
    /// The field path inside the document.
    pub field: Option<Arc<str>>,
    /// Whether the text is an object of the API server: users do not see it, so that no message has its line and column.
    pub is_object: bool,
}

impl PartialEq for EntryOrigin {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// The origins of entries, by kind and name. Never part of equality.
#[derive(Clone, Debug, Default)]
pub struct EntryOrigins(pub BTreeMap<(EntryKind, String), EntryOrigin>);

impl PartialEq for EntryOrigins {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// The kind of a config entry or change, with the names of `plan -o json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A unit file.
    Unit,
    /// A drop-in of a unit.
    DropIn,
    /// The links that enable a unit.
    Enablement,
    /// The mask of a unit.
    Mask,
    /// A user.
    User,
    /// A group.
    Group,
    /// The keys of a user.
    SSHKey,
    /// A kernel argument.
    KernelArgument,
    /// The OS image.
    OSImage,
    /// An OS extension.
    Extension,
}
