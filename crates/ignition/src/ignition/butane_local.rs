//! Reads Butane's `local` contents, which are files beside the text.

use super::{
    super::{
        content_source::{self, ContentError},
        field_reader::FieldValue,
        parse_context::ParseContext,
    },
    target_path,
};
use machinist_base::{abs_path::AbsPath, reason::Reason};

/// The path of a file in a field, relative to the text's directory.
pub(super) fn path(field: &FieldValue<'_>, reading: &mut ParseContext<'_>) -> Option<AbsPath> {
    let path = directory(field, reading)?;
    if path != AbsPath::root() {
        return Some(path);
    }
    let message = format!("{:?} is not the path of a file", field.spelling());
    refuse(field, message, reading)
}

/// The path in a field, which may be the text's directory itself.
pub(super) fn directory(field: &FieldValue<'_>, reading: &mut ParseContext<'_>) -> Option<AbsPath> {
    let written = field.text(&mut reading.problems)?;
    let message = if written.is_empty() {
        format!("{written:?} is not the path of a file")
    } else if written.starts_with('/') {
        format!("{written:?} is not relative to the directory of this config")
    } else {
        match target_path::without_dots(written).map(AbsPath::new) {
            None => format!("{written:?} points outside the directory of this config"),
            Some(Ok(path)) => return Some(path),
            Some(Err(_)) => format!("{written:?} is not a plain path"),
        }
    };
    refuse(field, message, reading)
}

fn refuse(
    field: &FieldValue<'_>,
    message: String,
    reading: &mut ParseContext<'_>,
) -> Option<AbsPath> {
    const EXPECTED: &str = "a path below the directory of this config, such as files/motd";
    let reason = Reason::PathInvalid;
    field.refuse(&mut reading.problems, reason, message, Some(EXPECTED));
    None
}

/// The bytes of the file that a field names. They are not counted towards the decoded size yet,
/// because they may have to be decompressed.
pub(super) fn bytes(field: &FieldValue<'_>, reading: &mut ParseContext<'_>) -> Option<Vec<u8>> {
    let path = path(field, reading)?;
    read(field, &path, reading)
}

/// The bytes of a file, counted towards the decoded size of the text.
pub(super) fn bytes_at(
    field: &FieldValue<'_>,
    path: &AbsPath,
    reading: &mut ParseContext<'_>,
) -> Option<Vec<u8>> {
    let bytes = read(field, path, reading)?;
    reading.budget -= bytes.len();
    Some(bytes)
}

fn read(field: &FieldValue<'_>, path: &AbsPath, reading: &mut ParseContext<'_>) -> Option<Vec<u8>> {
    let refused = match reading.local.read(reading.text, path) {
        Ok(bytes) if bytes.len() <= reading.budget => return Some(bytes),
        Ok(_) => content_source::too_much(),
        Err(error) => ContentError {
            reason: error.reason,
            message: error.message,
            expected: None,
        },
    };
    let problems = &mut reading.problems;
    field.refuse(problems, refused.reason, refused.message, refused.expected);
    None
}

/// The text of the file that a field names.
pub(super) fn text(field: &FieldValue<'_>, reading: &mut ParseContext<'_>) -> Option<String> {
    let path = path(field, reading)?;
    let bytes = bytes_at(field, &path, reading)?;
    let text = String::from_utf8(bytes).ok();
    if text.is_none() {
        let message = format!("{} is not valid UTF-8", field.spelling());
        field.refuse(&mut reading.problems, Reason::ValueInvalid, message, None);
    }
    text
}
