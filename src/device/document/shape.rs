//! What the reader says, in words of those who write such files.

use serde_saphyr::Error;

pub(super) const MAP: &str = "a map of fields";
pub(super) const LIST: &str = "a list of entries";
pub(super) const TEXT: &str = "a text";
pub(super) const NUMBER: &str = "a number";

/// What the reader expected, in words of those who write such files: its own are those of a parser. None
/// where it did not expect a shape.
fn shape(expected: &str) -> Option<&'static str> {
    Some(match expected {
        "mapping start" | "a map" | "map" => MAP,
        "sequence start" | "a sequence" | "seq" => LIST,
        "string scalar" | "scalar" | "a string" | "string" => TEXT,
        written if written.starts_with("struct ") => MAP,
        written if written.starts_with("tuple ") => LIST,
        _ => return None,
    })
}

/// The shape that the reader expected, where it met another one.
pub(super) fn wanted(error: &Error) -> Option<&'static str> {
    match error {
        Error::Unexpected { expected, .. } => shape(expected),
        Error::SerdeInvalidType { expected, .. } => shape(expected),
        _ => None,
    }
}

pub(super) fn list_of(names: &[&str]) -> String {
    format!("one of {}", names.join(", "))
}

/// The reader's own message without the place, which is told apart.
pub(super) fn one_line(error: &Error) -> String {
    let text = error.to_string();
    let text = text.lines().next().unwrap_or_default();
    let text = text.split(" at line ").next().unwrap_or(text);
    let text = text.strip_prefix("error: ").unwrap_or(text);
    match text
        .strip_prefix("line ")
        .and_then(|rest| rest.split_once(": "))
    {
        Some((_, message)) => message.to_owned(),
        None => text.to_owned(),
    }
}
