//! Compares an object with its desired state, for planning and for drift detection.

use super::{
    Attributes, FileFacts, ObjectSummary,
    desired_tree::{DesiredObject, ObjectSpec},
    object::ObjectKind,
};
use machinist_base::digest::Digest;
use machinist_ignition::EntryKind;

/// The differing fields, by the names of [`super::Change::fields`]; empty if the object is as
/// desired.
///
/// Owners are compared only if they can be set.
pub(super) fn differences(
    wanted: &DesiredObject,
    facts: &FileFacts,
    owners: bool,
) -> Vec<&'static str> {
    let mut fields = Vec::new();
    let mut unless = |same: bool, field| {
        if !same {
            fields.push(field);
        }
    };
    match (&wanted.object, facts.kind) {
        (ObjectSpec::File { content, mode, .. }, ObjectKind::File) => {
            unless(
                facts.digest == Some(content.digest()),
                content_field(wanted.entry.kind),
            );
            unless(*mode == facts.mode, "mode");
        }
        (ObjectSpec::Directory { mode, .. }, ObjectKind::Directory) => {
            unless(*mode == facts.mode, "mode")
        }
        (ObjectSpec::Partial { mode, uid, gid, .. }, kind) if kind == wanted.object.kind() => {
            unless(mode.is_none_or(|mode| mode == facts.mode), "mode");
            let (uid, gid) = (uid.unwrap_or(facts.uid), gid.unwrap_or(facts.gid));
            unless(!owners || (uid, gid) == (facts.uid, facts.gid), "owner");
            return fields;
        }
        (ObjectSpec::Link { target, .. }, ObjectKind::Link) => {
            let there = facts.target.as_deref().unwrap_or_default();
            unless(
                same_target(wanted.entry.kind, target, there),
                link_field(wanted.entry.kind),
            );
        }
        // Mode and owner belong to the file that the hard link leads to, and are compared there.
        (ObjectSpec::Hard { inode, .. }, ObjectKind::File) => {
            unless(*inode == Some(facts.inode), "target");
            return fields;
        }
        _ => return vec!["kind"],
    }
    let (uid, gid) = wanted.object.owner();
    unless(!owners || (uid, gid) == (facts.uid, facts.gid), "owner");
    unless(!facts.relabelled, "label");
    fields
}

/// systemd uses only the file name of an enablement link's target: `../x.service`,
/// `/lib/systemd/system/x.service` and `/usr/lib/systemd/system/x.service` are equivalent.
fn same_target(kind: EntryKind, wanted: &str, there: &str) -> bool {
    let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    wanted == there || (kind == EntryKind::Enablement && name(wanted) == name(there))
}

fn content_field(kind: EntryKind) -> &'static str {
    if kind == EntryKind::SSHKey {
        "keys"
    } else {
        "content"
    }
}

fn link_field(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::Mask => "masked",
        EntryKind::Enablement => "enabled",
        _ => "target",
    }
}

impl ObjectSpec {
    /// Numeric user and group; 0:0 for a hard link, which has no owner of its own, and if none is
    /// set.
    pub(super) fn owner(&self) -> (u32, u32) {
        match self {
            Self::File { uid, gid, .. }
            | Self::Directory { uid, gid, .. }
            | Self::Link { uid, gid, .. } => (*uid, *gid),
            Self::Partial { uid, gid, .. } => (uid.unwrap_or(0), gid.unwrap_or(0)),
            Self::Hard { .. } => (0, 0),
        }
    }

    /// The publishable facts of the object.
    pub(super) fn summary(&self) -> ObjectSummary {
        let (uid, gid) = self.owner();
        let (size, digest, mode, target) = match self {
            Self::File { content, mode, .. } => (
                Some(content.size()),
                Some(content.digest()),
                Some(*mode),
                None,
            ),
            Self::Directory { mode, .. } => (None, None, Some(*mode), None),
            Self::Partial { mode, .. } => (None, None, *mode, None),
            Self::Link { target, .. } => (None, None, None, Some(target.clone())),
            Self::Hard { target, .. } => {
                let target = Some(target.to_string());
                let all = summary(None, None, None, (uid, gid), target);
                return ObjectSummary { owner: None, ..all };
            }
        };
        summary(size, digest, mode, (uid, gid), target)
    }
}

impl FileFacts {
    /// Its mode and owner.
    pub(super) const fn attributes(&self) -> Attributes {
        Attributes {
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
        }
    }

    /// The same object with another mode and owner.
    pub(super) fn with(&self, attributes: Attributes) -> Self {
        let Attributes { mode, uid, gid } = attributes;
        Self {
            mode,
            uid,
            gid,
            ..self.clone()
        }
    }

    /// The publishable facts of the object.
    pub(super) fn summary(&self) -> ObjectSummary {
        let size = (self.kind == ObjectKind::File).then_some(self.size);
        let mode = (self.kind != ObjectKind::Link).then_some(self.mode);
        summary(
            size,
            self.digest,
            mode,
            (self.uid, self.gid),
            self.target.clone(),
        )
    }

    /// Whether two objects look identical to every reader. Files without a digest, which are too
    /// large to be read for this, and links whose target is not UTF-8 are considered different.
    pub(super) fn looks_like(&self, other: &Self) -> bool {
        self.kind == other.kind
            && (self.kind == ObjectKind::Link || self.mode == other.mode)
            && (self.uid, self.gid) == (other.uid, other.gid)
            && self.size == other.size
            && self.digest == other.digest
            && (self.kind != ObjectKind::File || self.digest.is_some())
            && (self.kind != ObjectKind::Link || self.target.is_some())
            && self.target == other.target
    }
}

fn summary(
    size: Option<u64>,
    digest: Option<Digest>,
    mode: Option<u32>,
    owner: (u32, u32),
    target: Option<String>,
) -> ObjectSummary {
    ObjectSummary {
        size,
        digest,
        mode: mode.map(|mode| format!("{mode:04o}")),
        owner: Some(format!("{}:{}", owner.0, owner.1)),
        target,
    }
}
