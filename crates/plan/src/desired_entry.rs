//! Names the config entry that an object belongs to.

use std::sync::Arc;

use machinist_ignition::{EntryKind, EntryOrigin};

/// The entry of a config that an object belongs to, by the names of [`super::Change`].
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DesiredEntry {
    pub(super) kind: EntryKind,
    pub(super) name: Arc<str>,
    pub(super) origin: EntryOrigin,
}

impl DesiredEntry {
    pub(super) fn new(kind: EntryKind, name: impl Into<Arc<str>>, origin: &EntryOrigin) -> Self {
        Self {
            kind,
            name: name.into(),
            origin: origin.clone(),
        }
    }
}

/// `unit chronyd.service`, `file /etc/chrony.conf`.
impl std::fmt::Display for DesiredEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", noun(self.kind), self.name)
    }
}

/// The name of this entry kind in messages.
pub(super) fn noun(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::File => "file",
        EntryKind::Directory => "directory",
        EntryKind::Link => "link",
        EntryKind::Unit => "unit",
        EntryKind::DropIn => "drop-in",
        EntryKind::Enablement => "enablement of",
        EntryKind::Mask => "mask of",
        EntryKind::User => "user",
        EntryKind::Group => "group",
        EntryKind::SSHKey => "SSH keys of",
        EntryKind::KernelArgument => "kernel argument",
        EntryKind::OSImage => "OS image",
        EntryKind::Extension => "extension",
    }
}
