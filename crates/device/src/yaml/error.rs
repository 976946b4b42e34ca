//! Translates the YAML parser's errors into messages for authors of documents.

use serde_saphyr::Error;

use crate::Refusal;
use machinist_base::reason::Reason;

pub(super) const MAP: &str = "a map of fields";
pub(super) const LIST: &str = "a list of entries";
pub(super) const TEXT: &str = "a text";
pub(super) const NUMBER: &str = "a number";
const BOOLEAN: &str = "true or false";

/// The expected type in the document's terms, from the parser's terms. None if the parser did not
/// expect a type.
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

/// The type that the parser expected, if the value has another one.
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

/// The description of a scalar type.
fn scalar(ty: &str) -> String {
    let most = match ty {
        "u8" => u8::MAX.into(),
        "u16" => u16::MAX.into(),
        "u32" => u32::MAX.into(),
        "u64" => u64::MAX,
        "floating point" => return NUMBER.to_owned(),
        "boolean" => return BOOLEAN.to_owned(),
        other => return other.to_owned(),
    };
    format!("a whole number from 0 to {most}")
}

/// The refusal for an invalid value in any field.
pub(super) fn value(error: &Error) -> Refusal {
    let invalid = |message: String| Refusal::new(Reason::ValueInvalid, message);
    match error {
        Error::MultipleDocuments { .. } => {
            let refusal = invalid("a second YAML document starts here".to_owned());
            refusal.expected("one document in each file")
        }
        Error::NullIntoString { .. } => invalid("value is missing".to_owned()).expected(TEXT),
        Error::InvalidBooleanStrict { .. } => {
            invalid("the value has the wrong type".to_owned()).expected(BOOLEAN)
        }
        Error::UnexpectedValueForUnitEnumVariant { .. } => {
            invalid("the keyword takes no value".to_owned()).expected("the keyword without a value")
        }
        Error::SerdeUnknownVariant {
            variant, expected, ..
        } => invalid(format!("{variant:?} is not known")).expected(list_of(expected)),
        Error::SerdeInvalidType {
            unexpected,
            expected,
            ..
        }
        | Error::SerdeInvalidValue {
            unexpected,
            expected,
            ..
        } => invalid(format!("this is {unexpected}")).expected(expected.clone()),
        Error::InvalidScalar { ty, .. } => {
            invalid("the value has the wrong type or size".to_owned()).expected(scalar(ty))
        }
        Error::DuplicateMappingKey { key, .. } => {
            let name = key.as_deref().unwrap_or("a key");
            Refusal::new(Reason::EntryDuplicate, format!("{name} is defined twice"))
        }
        other => Refusal::new(Reason::SyntaxInvalid, one_line(other)),
    }
}

/// The parser's own message without the position, which is reported separately.
fn one_line(error: &Error) -> String {
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
