//! Defines the content of one document, field by field: a later document overrides only the fields
//! that it sets.

use std::collections::BTreeMap;

use super::{Content, DiskLayout, EntryKind, EntryOrigin, Group, Owner, Release, UnitName, User};
use machinist_base::abs_path::AbsPath;

/// The content of a document.
#[derive(Clone, Debug, Default)]
pub(super) struct PartialConfig {
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
    /// With its origin.
    pub(super) kernel_type: Option<(String, EntryOrigin)>,
    pub(super) fips: bool,
    /// The origins of settings of the operating system.
    pub(super) os_origins: BTreeMap<(EntryKind, String), EntryOrigin>,
    /// The release that it was rendered for.
    pub(super) release: Option<Release>,
}

impl PartialConfig {
    /// Records the origin of a setting of the operating system under its name in plans.
    pub(super) fn note_os(&mut self, kind: EntryKind, name: &str, origin: EntryOrigin) {
        self.os_origins.insert((kind, name.to_owned()), origin);
    }
}

/// The common fields of files, directories and links.
#[derive(Clone, Debug, Default)]
pub(super) struct NodePart {
    pub(super) mode: Option<u32>,
    pub(super) user: Option<Owner>,
    pub(super) group: Option<Owner>,
    pub(super) overwrite: Option<bool>,
    pub(super) origin: EntryOrigin,
}

#[derive(Clone, Debug, Default)]
pub(super) struct FilePart {
    pub(super) node: NodePart,
    pub(super) content: Option<Content>,
    /// Contents appended after the content, in this order.
    pub(super) append: Vec<Content>,
    /// The origin of the last appended content.
    pub(super) append_origin: Option<EntryOrigin>,
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
    /// By file name; none for a drop-in without contents.
    pub(super) drop_ins: BTreeMap<String, Option<String>>,
    pub(super) enabled: Option<bool>,
    pub(super) mask: Option<bool>,
    pub(super) origin: EntryOrigin,
}
