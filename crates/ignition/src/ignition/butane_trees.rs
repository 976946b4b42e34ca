//! Parses Butane's trees: a local directory whose content is copied to a path on the machine.
//!
//! The rules are Butane's: files have mode 0755 if they are executable, else 0644; owners are not
//! preserved; links stay links; directories are created if they contain something. An entry for the
//! same path in `files` or `links` without contents or target sets mode and owner.

use std::collections::btree_map::Entry;

use super::{
    super::{
        Content, EntryOrigin, LocalEntry, LocalKind,
        field_reader::{FieldValue, ObjectReader},
        parse_context::ParseContext,
        partial::{FilePart, LinkPart, NodePart, PartialConfig},
    },
    butane_local, target_path,
};
use machinist_base::{abs_path::AbsPath, reason::Reason};

/// Adds the content of the trees to the existing parts.
pub(super) fn read(
    storage: &mut ObjectReader<'_>,
    parts: &mut PartialConfig,
    reading: &mut ParseContext<'_>,
) {
    for field in storage.items("trees", &mut reading.problems) {
        read_tree(&field, parts, reading);
    }
}

fn read_tree(field: &FieldValue<'_>, parts: &mut PartialConfig, reading: &mut ParseContext<'_>) {
    let Some(mut object) = field.object(&mut reading.problems) else {
        return;
    };
    let from = object.need("local", &mut reading.problems);
    let to = match object.get("path") {
        Some(path) => path.text(&mut reading.problems).map(|text| (path, text)),
        None => Some((field.clone(), "/")),
    }
    // An empty path is the top, as in Butane.
    .map(|(field, text)| (field, if text.is_empty() { "/" } else { text }));
    object.finish(&mut reading.problems);
    let (Some(from), Some((to_field, to))) = (from, to) else {
        return;
    };
    // Above the root directory is the root directory.
    let plain = to.starts_with('/').then(|| target_path::without_dots(to));
    let top = match AbsPath::new(plain.flatten().unwrap_or_else(|| to.to_owned())) {
        Ok(top) => top,
        Err(error) => {
            let reason = Reason::PathInvalid;
            return to_field.refuse(&mut reading.problems, reason, error.to_string(), None);
        }
    };
    let Some(below) = butane_local::directory(&from, reading) else {
        return;
    };
    match reading.local.tree(reading.text, &below) {
        Ok(entries) => {
            for entry in entries {
                add(&from, &below, &top, entry, parts, reading);
            }
        }
        Err(error) => from.refuse(&mut reading.problems, error.reason, error.message, None),
    }
}

fn add(
    field: &FieldValue<'_>,
    below: &AbsPath,
    top: &AbsPath,
    entry: LocalEntry,
    parts: &mut PartialConfig,
    reading: &mut ParseContext<'_>,
) {
    let whole = top.join(&entry.path).map_err(|error| error.to_string());
    let path = match whole.and_then(target_path::allowed) {
        Ok(path) => path,
        Err(message) => {
            return field.refuse(&mut reading.problems, Reason::PathInvalid, message, None);
        }
    };
    let origin = field.origin(&reading.problems);
    let added = match entry.kind {
        LocalKind::File { executable } => {
            let Ok(from) = below.join(&entry.path) else {
                return;
            };
            let Some(bytes) = butane_local::bytes_at(field, &from, reading) else {
                return;
            };
            let node = NodePart {
                origin,
                overwrite: reading.overwrites.then_some(true),
                ..NodePart::default()
            };
            add_file(parts, &path, Content::new(bytes), executable, node)
        }
        LocalKind::Link(target) => add_link(parts, &path, target, origin),
        LocalKind::Other(what) => {
            let message = format!("{} is a {what}", entry.path);
            let expected = Some("regular files, directories and links");
            let reason = Reason::FeatureUnsupported;
            return field.refuse(&mut reading.problems, reason, message, expected);
        }
    };
    if !added {
        let message = format!("{path} is defined twice in one config");
        field.refuse(&mut reading.problems, Reason::EntryDuplicate, message, None);
    }
}

/// Returns false if another entry sets the file's content.
fn add_file(
    parts: &mut PartialConfig,
    path: &AbsPath,
    content: Content,
    executable: bool,
    node: NodePart,
) -> bool {
    let file = match parts.files.entry(path.clone()) {
        Entry::Occupied(place) if place.get().content.is_some() => return false,
        Entry::Occupied(place) => place.into_mut(),
        Entry::Vacant(place) => place.insert(FilePart {
            node,
            ..FilePart::default()
        }),
    };
    file.content = Some(content);
    let mode = if executable { 0o755 } else { 0o644 };
    file.node.mode.get_or_insert(mode);
    true
}

/// Returns false if another entry sets the link's target.
fn add_link(
    parts: &mut PartialConfig,
    path: &AbsPath,
    target: String,
    origin: EntryOrigin,
) -> bool {
    let link = match parts.links.entry(path.clone()) {
        Entry::Occupied(place) if !place.get().target.is_empty() => return false,
        Entry::Occupied(place) => place.into_mut(),
        Entry::Vacant(place) => place.insert(LinkPart {
            node: NodePart {
                origin,
                ..NodePart::default()
            },
            ..LinkPart::default()
        }),
    };
    link.target = target;
    true
}
