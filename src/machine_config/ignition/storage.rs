//! Files, directories and links.

use super::{
    super::{
        Owner,
        document::Reading,
        parts::{FilePart, LinkPart, NodePart, Parts},
        reader::{Field, Object},
    },
    Dialect, Known, contents, insert, refuse_known,
};
use crate::{path::AbsPath, reason::Reason};

/// Where nothing is written: what the kernel and the running system make there is gone or made anew
/// at every boot, and machinist's own state must not be a target of its own transactions.
const FORBIDDEN: [(&str, &str); 6] = [
    ("/proc", "the kernel makes what is there"),
    ("/sys", "the kernel makes what is there"),
    ("/dev", "udev makes what is there"),
    ("/run", "it is empty after a boot"),
    ("/var/run", "it is /run, which is empty after a boot"),
    ("/var/lib/machinist", "machinist keeps its own state there"),
];

/// The directory that holds what is staged, wherever a mount needs one.
const STAGING: &str = ".machinist";

/// Modes as people write them in octal. None of these digits, read as a decimal number, is a mode
/// that anybody wants (644 would be 1204), so they are a slip; 420 and its like are not among them.
const USUAL_MODES: [&str; 22] = [
    "400", "440", "444", "500", "550", "555", "600", "640", "644", "660", "664", "666", "700",
    "710", "711", "740", "750", "755", "770", "775", "777", "1777",
];

pub(super) fn read(
    mut storage: Object<'_>,
    dialect: Dialect,
    parts: &mut Parts,
    reading: &mut Reading<'_>,
) {
    let known: [Known; 4] = [("disks", 0), ("filesystems", 0), ("raid", 0), ("luks", 2)];
    let why = "disks are laid out when a machine is installed";
    refuse_known(&mut storage, &known, dialect, why, reading);
    if dialect == Dialect::Butane {
        let why = "it reads other files; give each file with contents.inline";
        refuse_known(&mut storage, &[("trees", 0)], dialect, why, reading);
    }
    for field in storage.items("files", &mut reading.problems) {
        if let Some((path, file)) = read_file(&field, dialect, reading) {
            insert(&mut parts.files, path, file, &field, reading);
        }
    }
    for field in storage.items("directories", &mut reading.problems) {
        if let Some((path, directory)) = read_directory(&field, reading) {
            insert(&mut parts.directories, path, directory, &field, reading);
        }
    }
    for field in storage.items("links", &mut reading.problems) {
        if let Some((path, link)) = read_link(&field, reading) {
            insert(&mut parts.links, path, link, &field, reading);
        }
    }
    storage.finish(&mut reading.problems);
}

fn read_file(
    field: &Field<'_>,
    dialect: Dialect,
    reading: &mut Reading<'_>,
) -> Option<(AbsPath, FilePart)> {
    let mut object = field.object(&mut reading.problems)?;
    let path = read_path(&mut object, reading);
    let mut node = read_node(&mut object, reading);
    node.mode = read_mode(&mut object, reading);
    let why = "parts of files have no owner; give the whole file";
    refuse_known(&mut object, &[("append", 0)], dialect, why, reading);
    let content = object
        .object("contents", &mut reading.problems)
        .and_then(|object| contents::read(object, dialect, reading));
    object.finish(&mut reading.problems);
    Some((path?, FilePart { node, content }))
}

fn read_directory(field: &Field<'_>, reading: &mut Reading<'_>) -> Option<(AbsPath, NodePart)> {
    let mut object = field.object(&mut reading.problems)?;
    let path = read_path(&mut object, reading);
    let mut node = read_node(&mut object, reading);
    node.mode = read_mode(&mut object, reading);
    object.finish(&mut reading.problems);
    Some((path?, node))
}

fn read_link(field: &Field<'_>, reading: &mut Reading<'_>) -> Option<(AbsPath, LinkPart)> {
    let mut object = field.object(&mut reading.problems)?;
    let path = read_path(&mut object, reading);
    let node = read_node(&mut object, reading);
    if let Some(hard) = object.get("hard")
        && hard.flag(&mut reading.problems) == Some(true)
    {
        let message = "hard links are not supported: the next change of either would part them";
        let reason = Reason::FeatureUnsupported;
        hard.refuse(&mut reading.problems, reason, message, Some("false"));
    }
    let target = object
        .need("target", &mut reading.problems)
        .and_then(|target| {
            let text = target.text(&mut reading.problems)?;
            if !text.is_empty() && text.len() < 4096 && !text.contains('\0') {
                return Some(text.to_owned());
            }
            let message = "the target is empty, too long or holds a NUL byte";
            target.refuse(&mut reading.problems, Reason::PathInvalid, message, None);
            None
        });
    object.finish(&mut reading.problems);
    let target = target?;
    Some((path?, LinkPart { node, target }))
}

fn read_path(object: &mut Object<'_>, reading: &mut Reading<'_>) -> Option<AbsPath> {
    let field = object.need("path", &mut reading.problems)?;
    let text = field.text(&mut reading.problems)?;
    let mut refuse = |message: String| {
        field.refuse(&mut reading.problems, Reason::PathInvalid, message, None);
        None
    };
    let path = match AbsPath::new(text) {
        Ok(path) => path,
        Err(error) => return refuse(error.to_string()),
    };
    if path == AbsPath::root() {
        return refuse("/ itself cannot be an entry".to_owned());
    }
    if path.components().any(|part| part == STAGING) {
        return refuse(format!(
            "{text}: {STAGING} is where machinist stages changes"
        ));
    }
    let below = |above: &str| AbsPath::new(above).is_ok_and(|above| path.is_under(&above));
    match FORBIDDEN.iter().find(|(above, _)| below(above)) {
        Some((above, why)) => refuse(format!("{text} lies in {above}, and {why}")),
        None => Some(path),
    }
}

/// Owner and origin. `overwrite` is read and means nothing: what the config names, it owns.
fn read_node(object: &mut Object<'_>, reading: &mut Reading<'_>) -> NodePart {
    object.flag("overwrite", &mut reading.problems);
    NodePart {
        mode: None,
        user: read_owner(object, "user", reading),
        group: read_owner(object, "group", reading),
        origin: object.field.origin(&reading.problems),
    }
}

/// An owner; the id counts where both are given. `root` is 0 on every machine, and one spelling of
/// it gives one digest.
fn read_owner(object: &mut Object<'_>, key: &str, reading: &mut Reading<'_>) -> Option<Owner> {
    let problems = &mut reading.problems;
    let mut owner = object.object(key, problems)?;
    let id = owner.get("id").and_then(|field| {
        let number = field.integer(problems)?;
        // The last number means "leave it" to chown.
        let id = u32::try_from(number).ok().filter(|id| *id != u32::MAX);
        if id.is_none() {
            let message = format!("{number} is no user or group id");
            field.refuse(
                problems,
                Reason::ValueInvalid,
                message,
                Some("0 to 4294967294"),
            );
        }
        id
    });
    let name = owner.get("name").and_then(|field| {
        let name = field.text(problems)?;
        if name.contains([':', '/', '\0', '\n']) {
            let message = format!("{name:?} is no name of a user or group");
            field.refuse(problems, Reason::ValueInvalid, message, None);
        }
        match name {
            "" => None,
            "root" => Some(Owner::ROOT),
            name => Some(Owner::Name(name.to_owned())),
        }
    });
    owner.finish(problems);
    id.map(Owner::Id).or(name)
}

fn read_mode(object: &mut Object<'_>, reading: &mut Reading<'_>) -> Option<u32> {
    let field = object.get("mode")?;
    let number = field.integer(&mut reading.problems)?;
    let digits = field.spelling();
    let mut refuse = |message: String, expected: String| {
        let reason = Reason::ValueInvalid;
        field.refuse(&mut reading.problems, reason, message, Some(&expected));
        None
    };
    if USUAL_MODES.contains(&digits) {
        let meant = u32::from_str_radix(digits, 8).unwrap_or_default();
        return refuse(
            format!("{digits} is a decimal number and would be mode {number:04o}"),
            format!("{meant} (or 0{digits} in YAML) for mode {meant:04o}"),
        );
    }
    match u32::try_from(number) {
        Ok(mode) if mode <= 0o7777 => Some(mode),
        _ => refuse(
            format!("{digits} is no mode"),
            "0 to 4095 (07777 in octal)".to_owned(),
        ),
    }
}
