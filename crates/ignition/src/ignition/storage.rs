//! Parses files, directories and links.

use std::collections::BTreeMap;

use super::{
    super::{
        Content, Owner, Refusal,
        field_reader::{FieldValue, ObjectReader},
        ignition_dialect::IgnitionDialect,
        parse_context::{ParseContext, insert},
        partial::{FilePart, LinkPart, NodePart, PartialConfig},
        versioned_field::{VersionedField, is_there},
    },
    butane_trees, contents, disk_layout, file_mode,
    target_path::allowed,
};
use machinist_base::{abs_path::AbsPath, reason::Reason};

pub(super) fn read(
    mut storage: ObjectReader<'_>,
    dialect: IgnitionDialect,
    parts: &mut PartialConfig,
    reading: &mut ParseContext<'_>,
) {
    disk_layout::read(&mut storage, dialect, parts, reading);
    for field in storage.items("files", &mut reading.problems) {
        if let Some((path, file)) = read_file(&field, dialect, reading) {
            add_file(&mut parts.files, path, file, &field, dialect, reading);
        }
    }
    let late = |name| VersionedField::new(name).two(Some(1));
    for field in items(&mut storage, late("directories"), dialect, reading) {
        if let Some((path, directory)) = read_directory(&field, dialect, reading) {
            insert(&mut parts.directories, path, directory, &field, reading);
        }
    }
    for field in items(&mut storage, late("links"), dialect, reading) {
        if let Some((path, link)) = read_link(&field, dialect, reading) {
            insert(&mut parts.links, path, link, &field, reading);
        }
    }
    if dialect.is_butane() {
        butane_trees::read(&mut storage, parts, reading);
        refuse_targetless(parts, reading);
    }
    storage.finish(&mut reading.problems);
}

/// Refuses Butane links that have a target neither in their entry nor in a tree.
fn refuse_targetless(parts: &PartialConfig, reading: &mut ParseContext<'_>) {
    for link in parts.links.values().filter(|link| link.target.is_empty()) {
        let refusal = Refusal::new(Reason::ValueInvalid, "target is missing");
        reading.problems.push(refusal.at(&link.node.origin));
    }
}

fn items<'n>(
    object: &mut ObjectReader<'n>,
    known: VersionedField,
    dialect: IgnitionDialect,
    reading: &mut ParseContext<'_>,
) -> Vec<FieldValue<'n>> {
    match is_there(object, known, dialect) {
        Some(list) => list.items(&mut reading.problems),
        None => Vec::new(),
    }
}

/// Adds a file. In Ignition 2 one file may occur several times: the last entry wins, and entries with `append` add
/// to the earlier ones.
fn add_file(
    files: &mut BTreeMap<AbsPath, FilePart>,
    path: AbsPath,
    file: FilePart,
    field: &FieldValue<'_>,
    dialect: IgnitionDialect,
    reading: &mut ParseContext<'_>,
) {
    match files.get_mut(&path) {
        Some(before) if dialect.is_two() && file.append_origin.is_some() => {
            before.override_with(file)
        }
        Some(before) if dialect.is_two() => *before = file,
        _ => insert(files, path, file, field, reading),
    }
}

fn read_file(
    field: &FieldValue<'_>,
    dialect: IgnitionDialect,
    reading: &mut ParseContext<'_>,
) -> Option<(AbsPath, FilePart)> {
    let mut object = field.object(&mut reading.problems)?;
    let path = read_path(&mut object, reading);
    let mut file = FilePart {
        node: read_node(&mut object, dialect, reading),
        ..FilePart::default()
    };
    file.node.mode = file_mode::read(&mut object, dialect, reading);
    let overwrites = file.node.overwrite == Some(true);
    if dialect.is_two() || reading.overwrites {
        file.node.overwrite.get_or_insert(true);
    }
    let append = is_there(
        &mut object,
        VersionedField::new("append").two(Some(2)),
        dialect,
    );
    let contents = object.object("contents", &mut reading.problems);
    let given = contents.as_ref().is_some_and(contents::are_given);
    file.content = contents.and_then(|object| contents::read(object, dialect, reading));
    // Ignition 2 does not support files without contents.
    if dialect.is_two() {
        file.content.get_or_insert_with(|| Content::new(Vec::new()));
    } else if !given && overwrites {
        let message = "overwrite is true, but no contents are given";
        let expected = Some("contents, or overwrite: false");
        let reason = Reason::ValueInvalid;
        field.refuse(&mut reading.problems, reason, message, expected);
    }
    match append {
        Some(append) if dialect.is_two() => append_all(&mut file, &append, &mut object, reading),
        Some(append) => {
            let parts = append.items(&mut reading.problems);
            let read = |part: FieldValue<'_>, reading: &mut ParseContext<'_>| {
                contents::read(part.object(&mut reading.problems)?, dialect, reading)
            };
            file.append = parts
                .into_iter()
                .filter_map(|part| read(part, reading))
                .collect();
            file.append_origin =
                (!file.append.is_empty()).then(|| append.origin(&reading.problems));
        }
        None => {}
    }
    object.finish(&mut reading.problems);
    Some((path?, file))
}

/// In Ignition 2 a flag requests that the contents are appended.
fn append_all(
    file: &mut FilePart,
    append: &FieldValue<'_>,
    object: &mut ObjectReader<'_>,
    reading: &mut ParseContext<'_>,
) {
    if append.flag(&mut reading.problems) != Some(true) {
        return;
    }
    // Its type was checked with the other fields of the node.
    if object.get("overwrite").is_some_and(|field| field.is_true()) {
        let message = "append and overwrite exclude each other";
        append.refuse(&mut reading.problems, Reason::ValueInvalid, message, None);
    }
    file.append = file.content.take().into_iter().collect();
    file.append_origin = Some(append.origin(&reading.problems));
}

fn read_directory(
    field: &FieldValue<'_>,
    dialect: IgnitionDialect,
    reading: &mut ParseContext<'_>,
) -> Option<(AbsPath, NodePart)> {
    let mut object = field.object(&mut reading.problems)?;
    let path = read_path(&mut object, reading);
    let mut node = read_node(&mut object, dialect, reading);
    node.mode = file_mode::read(&mut object, dialect, reading);
    object.finish(&mut reading.problems);
    Some((path?, node))
}

fn read_link(
    field: &FieldValue<'_>,
    dialect: IgnitionDialect,
    reading: &mut ParseContext<'_>,
) -> Option<(AbsPath, LinkPart)> {
    let mut object = field.object(&mut reading.problems)?;
    let path = read_path(&mut object, reading);
    let node = read_node(&mut object, dialect, reading);
    let hard = object.get("hard");
    let hard = hard.and_then(|field| field.flag(&mut reading.problems));
    let target = match object.get("target") {
        Some(field) => read_target(&field, reading),
        // A tree may provide it.
        None if dialect.is_butane() => Some(String::new()),
        None => object
            .need("target", &mut reading.problems)
            .map(|_| String::new()),
    };
    object.finish(&mut reading.problems);
    let target = target?;
    Some((path?, LinkPart { node, target, hard }))
}

fn read_target(field: &FieldValue<'_>, reading: &mut ParseContext<'_>) -> Option<String> {
    let text = field.text(&mut reading.problems)?;
    if !text.is_empty() && text.len() < 4096 && !text.contains('\0') {
        return Some(text.to_owned());
    }
    let message = "the target is empty, too long or contains a NUL byte";
    field.refuse(&mut reading.problems, Reason::PathInvalid, message, None);
    None
}

fn read_path(object: &mut ObjectReader<'_>, reading: &mut ParseContext<'_>) -> Option<AbsPath> {
    let field = object.need("path", &mut reading.problems)?;
    let text = field.text(&mut reading.problems)?;
    let path = AbsPath::new(text).map_err(|error| error.to_string());
    match path.and_then(allowed) {
        Ok(path) => Some(path),
        Err(message) => {
            field.refuse(&mut reading.problems, Reason::PathInvalid, message, None);
            None
        }
    }
}

/// Parses owner, origin and whether the entry may replace an object of another kind.
fn read_node(
    object: &mut ObjectReader<'_>,
    dialect: IgnitionDialect,
    reading: &mut ParseContext<'_>,
) -> NodePart {
    if dialect.is_two() {
        read_filesystem(object, reading);
    }
    let overwrite = VersionedField::new("overwrite").two(Some(2));
    let overwrite = is_there(object, overwrite, dialect);
    let overwrite = overwrite.and_then(|field| field.flag(&mut reading.problems));
    NodePart {
        mode: None,
        user: read_owner(object, "user", dialect, reading),
        group: read_owner(object, "group", dialect, reading),
        overwrite,
        origin: object.field.origin(&reading.problems),
    }
}

/// In Ignition 2 a path is relative to a named file system. `root` is the predefined one.
fn read_filesystem(object: &mut ObjectReader<'_>, reading: &mut ParseContext<'_>) {
    let Some(field) = object.need("filesystem", &mut reading.problems) else {
        return;
    };
    if let Some(name) = field.text(&mut reading.problems)
        && name != "root"
    {
        let message = format!("the file system {name:?} is not supported");
        let reason = Reason::FeatureUnsupported;
        field.refuse(&mut reading.problems, reason, message, Some("root"));
    }
}

/// Parses an owner, by id or by name. `root` becomes 0, so that both spellings give the same digest.
fn read_owner(
    object: &mut ObjectReader<'_>,
    key: &'static str,
    dialect: IgnitionDialect,
    reading: &mut ParseContext<'_>,
) -> Option<Owner> {
    let mut owner = object.object(key, &mut reading.problems)?;
    let name = VersionedField::new("name").two(Some(1));
    let name = is_there(&mut owner, name, dialect);
    let problems = &mut reading.problems;
    let id = owner.get("id").and_then(|field| {
        let number = field.integer(problems)?;
        // chown interprets the maximum number as "unchanged".
        let id = u32::try_from(number).ok().filter(|id| *id != u32::MAX);
        if id.is_none() {
            let message = format!("{number} is not a valid uid or gid");
            field.refuse(
                problems,
                Reason::ValueInvalid,
                message,
                Some("0 to 4294967294"),
            );
        }
        id
    });
    let name = name.and_then(|field| {
        let name = field.text(problems)?;
        if name.contains([':', '/', '\0', '\n']) {
            let message = format!("{name:?} is not a valid user or group name");
            field.refuse(problems, Reason::ValueInvalid, message, None);
        }
        match name {
            "" => None,
            "root" => Some(Owner::ROOT),
            name => Some(Owner::Name(name.to_owned())),
        }
    });
    if id.is_some() && name.is_some() {
        let message = format!("{key} has both id and name");
        let expected = Some("one of them");
        let reason = Reason::ValueInvalid;
        owner.field.refuse(problems, reason, message, expected);
    }
    owner.finish(problems);
    id.map(Owner::Id).or(name)
}
