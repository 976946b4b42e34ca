//! Errors of reading and decoding, each with the place of the key or value.

use std::fmt;

use serde::de::{self, Unexpected};

use crate::Location;

/// The maximum number of characters of an invalid value to quote.
const MAX_QUOTED_CHARS: usize = 60;

pub(crate) const MAP: &str = "a map of fields";
pub(crate) const LIST: &str = "a list of entries";
pub(crate) const TEXT: &str = "a text";
pub(crate) const NUMBER: &str = "a number";
pub(crate) const BOOLEAN: &str = "true or false";

/// The kinds of [`YamlError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YamlFault {
    /// The text is not YAML, or not of the dialect.
    Syntax,
    /// A map has a key twice.
    KeyDuplicate,
    /// A map has no such field in its type.
    FieldUnknown,
    /// A map lacks a field.
    FieldMissing,
    /// A value is not one of its type.
    ValueInvalid,
}

/// An error that makes a value or the rest of a text unusable.
#[derive(Debug, PartialEq, Eq)]
pub struct YamlError {
    /// The kind of fault.
    pub fault: YamlFault,
    /// The path of the field, such as `spec.match[0].path`; empty if there is none.
    pub field: String,
    /// Where the wrong key or value begins.
    pub place: Location,
    /// A description of the error.
    pub message: String,
    /// The expected value; may be empty.
    pub expected: String,
}

impl YamlError {
    pub(crate) fn new(fault: YamlFault, message: impl Into<String>) -> Self {
        Self {
            fault,
            field: String::new(),
            place: Location::UNKNOWN,
            message: message.into(),
            expected: String::new(),
        }
    }

    /// A text that is not of the dialect.
    pub fn syntax(place: Location, message: impl Into<String>) -> Self {
        Self::new(YamlFault::Syntax, message).at(place)
    }

    /// A key that a map has already.
    pub fn key_duplicate(place: Location, message: impl Into<String>) -> Self {
        Self::new(YamlFault::KeyDuplicate, message).at(place)
    }

    /// A value that is not one of its type.
    pub(crate) fn value(message: impl Into<String>, expected: impl Into<String>) -> Self {
        Self {
            expected: expected.into(),
            ..Self::new(YamlFault::ValueInvalid, message)
        }
    }

    /// Adds the place, unless it is known.
    pub(crate) fn at(mut self, place: Location) -> Self {
        if self.place == Location::UNKNOWN {
            self.place = place;
        }
        self
    }

    /// Adds the key or the index of the value that encloses the field.
    pub(crate) fn below(mut self, part: &str) -> Self {
        if !self.field.is_empty() && !self.field.starts_with('[') {
            self.field.insert(0, '.');
        }
        self.field.insert_str(0, part);
        self
    }
}

impl fmt::Display for YamlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)?;
        match self.expected.as_str() {
            "" => Ok(()),
            expected => write!(f, "; expected {expected}"),
        }
    }
}

impl std::error::Error for YamlError {}

impl de::Error for YamlError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::value(message.to_string(), "")
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        let found = match found {
            Unexpected::Bool(_) => BOOLEAN,
            Unexpected::Unsigned(_) | Unexpected::Signed(_) | Unexpected::Float(_) => NUMBER,
            Unexpected::Str(_) => TEXT,
            Unexpected::Seq => LIST,
            Unexpected::Map => MAP,
            Unexpected::UnitVariant => "a keyword without a value",
            _ => "nothing",
        };
        Self::value(format!("this is {found}"), expected.to_string())
    }

    fn unknown_variant(word: &str, known: &'static [&'static str]) -> Self {
        Self::value(format!("{} is not known", quoted(word)), one_of(known))
    }

    fn unknown_field(_: &str, known: &'static [&'static str]) -> Self {
        Self {
            expected: one_of(known),
            ..Self::new(YamlFault::FieldUnknown, "unknown field")
        }
    }

    fn missing_field(name: &'static str) -> Self {
        Self::new(YamlFault::FieldMissing, format!("{name} is missing")).below(name)
    }
}

fn one_of(names: &[&str]) -> String {
    format!("one of {}", names.join(", "))
}

pub(crate) fn quoted(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTED_CHARS) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}
