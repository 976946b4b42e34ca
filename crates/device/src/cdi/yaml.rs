//! Decodes the YAML of spec files like the CDI library that runtimes use: JSON is parsed as YAML,
//! only the first document counts, and the type of a scalar depends on its field.
//!
//! The library decodes YAML 1.1 as Go's yaml package does: `0666` is octal, `08` is 8.0, `on` is true
//! in a boolean field and text in others, and a null in a list of texts is dropped. No Rust library
//! has these rules, including `serde_saphyr`, which reads machinist's own documents. Hence a library
//! parses the YAML into events, and this module interprets them.

mod deserializer;
mod dialect;
mod scalar;

use std::rc::Rc;

use granit_parser::{Event, ScalarStyle, Span, Tag};
use machinist_yaml::{Dialect, Entry, Key, Node, Value};
use serde::de::DeserializeOwned;

use self::{deserializer::Decoder, dialect::DialectChecker, scalar::YamlScalar};

type YamlNode = Node<YamlScalar>;
type YamlValue = Value<YamlScalar>;
type YamlKey = Key<YamlScalar>;
type YamlEntry = Entry<YamlScalar>;

/// Reads the first document of `text`.
pub(super) fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let document = first_document(text.strip_prefix('\u{feff}').unwrap_or(text))?;
    T::deserialize(Decoder(&document)).map_err(|error| error.to_string())
}

fn first_document(text: &str) -> Result<Rc<YamlNode>, String> {
    let document = machinist_yaml::read_first(text, DialectChecker::new(text))
        .map_err(|fault| format!("line {}: {}", fault.place.line, fault.message))?;
    document.ok_or_else(|| "it is empty".to_owned())
}

impl Dialect for DialectChecker<'_> {
    type Scalar = YamlScalar;

    fn check(&mut self, event: &Event<'_>, span: &Span, is_key: bool) -> Result<(), String> {
        self.check_event(event, span, is_key)
    }

    fn scalar(text: String, style: ScalarStyle, tag: Option<&Tag>) -> Result<YamlScalar, String> {
        YamlScalar::new(text, style == ScalarStyle::Plain, tag_name(tag))
    }

    fn key_fault(_: &YamlScalar) -> Option<&'static str> {
        None
    }
}

/// The short form of a tag; none for the non-specific tag `!`.
fn tag_name(tag: Option<&Tag>) -> Option<String> {
    const CORE_SCHEMA_TAGS: [&str; 9] = [
        "null",
        "bool",
        "str",
        "int",
        "float",
        "timestamp",
        "binary",
        "seq",
        "map",
    ];
    let tag = tag?;
    let core = CORE_SCHEMA_TAGS
        .iter()
        .find(|name| tag.is_yaml_core_schema_tag(name));
    let name = core.map_or_else(|| tag.original().to_string(), |name| format!("!!{name}"));
    (name != "!").then_some(name)
}

#[cfg(test)]
mod tests;
