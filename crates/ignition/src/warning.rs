//! Defines warnings: oddities in an input that do not prevent its acceptance.

use std::fmt;

use super::{EntryOrigin, Refusal};
use machinist_base::reason::Reason;

/// One warning about a document, with its place.
#[derive(Clone, Debug)]
pub(super) struct Warning(Refusal);

impl Warning {
    /// A warning about the text at `origin`. Without `positions` line and column are omitted,
    /// because users cannot open the text as a file.
    pub(super) fn new(origin: &EntryOrigin, positions: bool, message: impl Into<String>) -> Self {
        let mut found = Refusal::new(Reason::FieldUnknown, message).at(origin);
        if !positions {
            (found.line, found.column) = (None, None);
        }
        Self(found)
    }
}

/// Formatted like a refusal, without the reason code.
impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt_place(f)?;
        f.write_str(&self.0.message)
    }
}
