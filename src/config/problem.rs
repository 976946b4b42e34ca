//! Where a setting came from, and what is wrong with one.

use std::fmt;

use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use crate::reason::Reason;

/// Where an effective setting was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody said anything; the built-in value holds.
    Default,
    /// A settings file. Line and column count from 1.
    File {
        /// The file as the administrator knows it.
        name: String,
        /// Line of the value.
        line: u64,
        /// Column of the value, in characters.
        column: u64,
    },
    /// An environment variable.
    Environment {
        /// The variable's name.
        name: String,
    },
    /// A command-line flag.
    Flag {
        /// The flag with its dashes.
        name: String,
    },
}

impl Serialize for Origin {
    /// One shape for all: what an origin has not is `null`.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let (kind, name, place) = match self {
            Self::Default => ("default", None, None),
            Self::File { name, line, column } => ("file", Some(name), Some((line, column))),
            Self::Environment { name } => ("environment", Some(name), None),
            Self::Flag { name } => ("flag", Some(name), None),
        };
        let mut fields = to.serialize_struct("Origin", 4)?;
        fields.serialize_field("kind", kind)?;
        fields.serialize_field("name", &name)?;
        fields.serialize_field("line", &place.map(|(line, _)| line))?;
        fields.serialize_field("column", &place.map(|(_, column)| column))?;
        fields.end()
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { name, line: 0, .. } => f.write_str(name),
            Self::File { name, line, column } => write!(f, "{name}:{line}:{column}"),
            Self::Environment { name } | Self::Flag { name } => f.write_str(name),
        }
    }
}

/// One thing that is wrong with the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where it was said.
    pub at: Origin,
    /// The key, dotted (`update.reboot`); empty when the text could not be read at all.
    pub field: String,
    /// The stable code.
    pub reason: Reason,
    /// What was found.
    pub message: String,
    /// What would have been right; empty when the message says it all.
    pub expected: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.at)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)?;
        if !self.expected.is_empty() {
            write!(f, "; expected {}", self.expected)?;
        }
        Ok(())
    }
}

/// The settings cannot be used. Holds every problem of every file, variable and flag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct SettingsError {
    /// By place: files by name and position, then the environment, then flags. Never empty.
    pub problems: Vec<Problem>,
}

impl SettingsError {
    /// Puts the problems into the order in which an administrator reads: files by name and position,
    /// then the environment, then flags.
    pub(super) fn new(mut problems: Vec<Problem>) -> Self {
        problems.sort_by(|a, b| place(&a.at).cmp(&place(&b.at)));
        Self { problems }
    }
}

fn place(at: &Origin) -> (u8, &str, u64, u64) {
    match at {
        Origin::Default => (0, "", 0, 0),
        Origin::File { name, line, column } => (1, name, *line, *column),
        Origin::Environment { name } => (2, name, 0, 0),
        Origin::Flag { name } => (3, name, 0, 0),
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.as_slice() {
            [only] => write!(f, "the settings cannot be used: {only}"),
            many => {
                write!(f, "the settings cannot be used, {} problems:", many.len())?;
                many.iter().try_for_each(|one| write!(f, "\n  {one}"))
            }
        }
    }
}
