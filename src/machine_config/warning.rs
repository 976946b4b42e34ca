//! What is odd in an input and does not keep it from being accepted.

use std::fmt;

use super::{Origin, Refusal};
use crate::reason::Reason;

/// One warning about a document, with its place.
#[derive(Clone, Debug)]
pub(super) struct Warning(Refusal);

impl Warning {
    /// A warning about what is written at `origin`. Without `positions` line and column are left out: the text
    /// is no file that a person could open.
    pub(super) fn new(origin: &Origin, positions: bool, message: impl Into<String>) -> Self {
        let mut found = Refusal::new(Reason::FieldUnknown, message).at(origin);
        if !positions {
            (found.line, found.column) = (None, None);
        }
        Self(found)
    }
}

/// As a refusal, without the code.
impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt_place(f)?;
        f.write_str(&self.0.message)
    }
}
