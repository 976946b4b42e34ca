//! Decodes the YAML of spec files like the CDI library that runtimes use: JSON is parsed as YAML,
//! only the first document counts, and the type of a scalar depends on its field.
//!
//! The library decodes YAML 1.1 as Go's yaml package does: `0666` is octal, `08` is 8.0, `on` is true
//! in a boolean field and text in others, and a null in a list of texts is dropped.

mod dialect;
mod scalar;

use machinist_yaml::{Dialect, Event, ScalarStyle, ScalarTag, Span, Tag, YamlError};
use serde::de::DeserializeOwned;

use self::{dialect::DialectChecker, scalar::YamlScalar};

/// Reads the first document of `text`.
pub(super) fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let error_text = |error: YamlError| format!("line {}: {error}", error.place.line);
    let document =
        machinist_yaml::read_first(text, DialectChecker::new(text)).map_err(error_text)?;
    let document = document.ok_or_else(|| "it is empty".to_owned())?;
    machinist_yaml::decode(&document).map_err(error_text)
}

impl Dialect for DialectChecker<'_> {
    type Scalar = YamlScalar;

    fn check(&mut self, event: &Event<'_>, span: &Span, is_key: bool) -> Result<(), String> {
        self.check_event(event, span, is_key)
    }

    fn scalar(text: String, style: ScalarStyle, tag: Option<&Tag>) -> Result<YamlScalar, String> {
        YamlScalar::new(text, style == ScalarStyle::Plain, ScalarTag::of(tag)?)
    }
}

#[cfg(test)]
mod tests;
