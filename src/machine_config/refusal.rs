//! What is wrong with an input, or what this machine cannot do: said before anything is touched.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Origin;
use crate::reason::Reason;

/// One reason why a config is not accepted. All of them are collected before anything is reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The stable code.
    pub reason: Reason,
    /// The document it stands in: the MachineConfig's name, or the file's for what has none.
    #[serde(default)]
    pub config: Option<Box<str>>,
    /// The file it stands in, as the user named it; none for what has no file.
    pub file: Option<String>,
    /// Line, counted from 1.
    pub line: Option<u32>,
    /// Column in characters, counted from 1.
    pub column: Option<u32>,
    /// The path of the field, such as `spec.config.storage.files[0].path`.
    pub field: Option<String>,
    /// What is wrong, as one sentence without a final dot.
    pub message: Box<str>,
    /// What was expected instead, where that can be said.
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

    /// Adds the place where it was written.
    #[must_use]
    pub fn at(mut self, origin: &Origin) -> Self {
        self.config = origin.config.as_deref().map(Box::from);
        self.file = origin.file.as_deref().map(str::to_owned);
        self.line = origin.line;
        self.column = origin.column;
        self.field = origin.field.as_deref().map(str::to_owned);
        self
    }

    /// Adds the file alone.
    #[must_use]
    pub fn file(mut self, path: impl Into<String>) -> Self {
        self.file = Some(path.into());
        self
    }

    /// Adds the field alone; a reader that knows the text finds line and column by it.
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
    /// The document's name, unless the file's says as much.
    fn shown_config(&self) -> Option<&str> {
        let config = self.config.as_deref()?;
        let file = self.file.as_deref().unwrap_or_default();
        let name = file.rsplit('/').next().unwrap_or_default();
        let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
        (stem != config).then_some(config)
    }

    /// Writes where it was found, with a separator after it.
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

/// `machine.d/10-x.yaml:4:7: spec.config.storage.files[0].path: "etc/x" is … (expected …) [PathInvalid]`,
/// with the document's name before the field where the file is called otherwise.
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
