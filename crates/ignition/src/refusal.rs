//! Defines refusals: errors in an input, or settings that this machine does not support, reported
//! before anything is changed.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::EntryOrigin;
use machinist_base::reason::Reason;

/// One reason why a config is not accepted. All of them are collected before anything is reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The stable reason code.
    pub reason: Reason,
    /// The document: the MachineConfig's name, or the file's for a document without a name.
    #[serde(default)]
    pub config: Option<Box<str>>,
    /// The file, as the user named it; none if there is no file.
    pub file: Option<String>,
    /// Line, counted from 1.
    pub line: Option<u32>,
    /// Column in characters, counted from 1.
    pub column: Option<u32>,
    /// The path of the field, such as `spec.config.storage.files[0].path`.
    pub field: Option<String>,
    /// The error as one sentence without a final dot.
    pub message: Box<str>,
    /// The expected value, if it can be described.
    pub expected: Option<Box<str>>,
}

impl Refusal {
    /// A refusal without a place; [`Refusal::at`] adds it.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            config: None,
            file: None,
            line: None,
            column: None,
            field: None,
            message: message.into().into(),
            expected: None,
        }
    }

    /// Adds the place in the source text.
    #[must_use]
    pub fn at(mut self, origin: &EntryOrigin) -> Self {
        self.config = origin.config.as_deref().map(Box::from);
        self.file = origin.file.as_deref().map(str::to_owned);
        self.line = origin.line;
        self.column = origin.column;
        self.field = origin.field.as_deref().map(str::to_owned);
        self
    }

    /// Adds only the file.
    #[must_use]
    pub fn file(mut self, path: impl Into<String>) -> Self {
        self.file = Some(path.into());
        self
    }

    /// Adds only the field; a caller with the text finds line and column by it.
    #[must_use]
    pub fn field(mut self, path: impl Into<String>) -> Self {
        self.field = Some(path.into());
        self
    }

    /// Adds what was expected.
    #[must_use]
    pub fn expected(mut self, what: impl Into<String>) -> Self {
        self.expected = Some(what.into().into());
        self
    }
}

impl Refusal {
    /// The document's name, unless the name of the file or of the object (`MachineConfig NAME`) contains it.
    fn shown_config(&self) -> Option<&str> {
        let config = self.config.as_deref()?;
        let file = self.file.as_deref().unwrap_or_default();
        let name = file.rsplit(['/', ' ']).next().unwrap_or_default();
        let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
        (![name, stem].contains(&config)).then_some(config)
    }

    /// The file, line and field, as in front of the message; empty if they are not known.
    pub fn place(&self) -> String {
        std::fmt::from_fn(|f| self.fmt_place(f)).to_string()
    }

    /// Writes the place, followed by a separator.
    pub(super) fn fmt_place(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{file}:")?;
            match (self.line, self.column) {
                (Some(line), Some(column)) => write!(f, "{line}:{column}: ")?,
                (Some(line), None) => write!(f, "{line}: ")?,
                _ => f.write_str(" ")?,
            }
        }
        if let Some(config) = self.shown_config() {
            write!(f, "in {config}: ")?;
        }
        if let Some(field) = &self.field {
            write!(f, "{field}: ")?;
        }
        Ok(())
    }
}

/// `machine.d/10-x.yaml:4:7: spec.config.storage.files[0].path: "etc/x" is … (expected …)
/// [PathInvalid]`, with the document's name before the field if the file has another name.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_place(f)?;
        f.write_str(&self.message)?;
        if let Some(expected) = &self.expected {
            write!(f, "; expected {expected}")?;
        }
        write!(f, " [{}]", self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_named_once() {
        for (file, config, place) in [
            ("machine.d/10-x.yaml", "10-x", "machine.d/10-x.yaml: "),
            ("all.yaml", "10-x", "all.yaml: in 10-x: "),
            (
                "MachineConfig rendered-a",
                "rendered-a",
                "MachineConfig rendered-a: ",
            ),
        ] {
            let mut refusal = Refusal::new(Reason::PathInvalid, "x").file(file);
            refusal.config = Some(config.into());
            assert_eq!(refusal.place(), place);
        }
    }
}
