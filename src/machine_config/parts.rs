//! What one document says, field by field: a later document changes only what it says.

use std::collections::BTreeMap;

use super::{Content, DiskLayout, EntryKind, Group, Origin, Owner, Release, UnitName, User};
use crate::path::AbsPath;

/// What a document says.
#[derive(Clone, Debug, Default)]
pub(super) struct Parts {
    pub(super) files: BTreeMap<AbsPath, FilePart>,
    pub(super) directories: BTreeMap<AbsPath, NodePart>,
    pub(super) links: BTreeMap<AbsPath, LinkPart>,
    pub(super) units: BTreeMap<UnitName, UnitPart>,
    pub(super) users: BTreeMap<String, User>,
    pub(super) groups: BTreeMap<String, Group>,
    pub(super) kernel_arguments: Vec<String>,
    pub(super) os_image_url: Option<String>,
    pub(super) extensions_image: Option<String>,
    pub(super) disk_layout: DiskLayout,
    pub(super) extensions: Vec<String>,
    /// With the place where it is said.
    pub(super) kernel_type: Option<(String, Origin)>,
    pub(super) fips: bool,
    /// Where what concerns the operating system is said.
    pub(super) os_origins: BTreeMap<(EntryKind, String), Origin>,
    /// The release it was made for.
    pub(super) release: Option<Release>,
}

impl Parts {
    /// Takes down where a part of the operating system is asked for, by the name a plan gives it.
    pub(super) fn note_os(&mut self, kind: EntryKind, name: &str, origin: Origin) {
        self.os_origins.insert((kind, name.to_owned()), origin);
    }
}

/// What files, directories and links have in common.
#[derive(Clone, Debug, Default)]
pub(super) struct NodePart {
    pub(super) mode: Option<u32>,
    pub(super) user: Option<Owner>,
    pub(super) group: Option<Owner>,
    pub(super) overwrite: Option<bool>,
    pub(super) origin: Origin,
}

#[derive(Clone, Debug, Default)]
pub(super) struct FilePart {
    pub(super) node: NodePart,
    pub(super) content: Option<Content>,
    /// What comes after the content, in this order.
    pub(super) append: Vec<Content>,
    /// Where the last appending was asked for.
    pub(super) append_origin: Option<Origin>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct LinkPart {
    pub(super) node: NodePart,
    pub(super) target: String,
    pub(super) hard: Option<bool>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct UnitPart {
    pub(super) contents: Option<String>,
    /// By file name; none where only the name is said.
    pub(super) drop_ins: BTreeMap<String, Option<String>>,
    pub(super) enabled: Option<bool>,
    pub(super) mask: Option<bool>,
    pub(super) origin: Origin,
}
