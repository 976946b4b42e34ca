//! Defines the origin of a setting, and problems in settings.

use std::fmt;

use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use machinist_base::reason::Reason;

/// The origin of an effective setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingOrigin {
    /// It is not set; the built-in default applies.
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

impl Serialize for SettingOrigin {
    /// All origins have the same JSON fields; those that do not apply are `null`.
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

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { name, line: 0, .. } => f.write_str(name),
            Self::File { name, line, column } => write!(f, "{name}:{line}:{column}"),
            Self::Environment { name } | Self::Flag { name } => f.write_str(name),
        }
    }
}

/// One problem in the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsProblem {
    /// The place of the value.
    pub at: SettingOrigin,
    /// The dotted key (`update.reboot`); empty if the text could not be parsed at all.
    pub field: String,
    /// The stable code.
    pub reason: Reason,
    /// A description of the problem.
    pub message: String,
    /// The expected value; empty if the message includes it.
    pub expected: String,
}

impl fmt::Display for SettingsProblem {
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

/// The settings are invalid. Contains every problem of every file, variable and flag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct SettingsError {
    /// Sorted by place: files by name and position, then the environment, then flags. Never empty.
    pub problems: Vec<SettingsProblem>,
}

impl SettingsError {
    /// Sorts the problems by place: files by name and position, then the environment, then flags.
    pub(super) fn new(mut problems: Vec<SettingsProblem>) -> Self {
        problems.sort_by(|a, b| place(&a.at).cmp(&place(&b.at)));
        Self { problems }
    }
}

fn place(at: &SettingOrigin) -> (u8, &str, u64, u64) {
    match at {
        SettingOrigin::Default => (0, "", 0, 0),
        SettingOrigin::File { name, line, column } => (1, name, *line, *column),
        SettingOrigin::Environment { name } => (2, name, 0, 0),
        SettingOrigin::Flag { name } => (3, name, 0, 0),
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.as_slice() {
            [only] => write!(f, "invalid settings: {only}"),
            many => {
                write!(f, "invalid settings, {} problems:", many.len())?;
                many.iter().try_for_each(|one| write!(f, "\n  {one}"))
            }
        }
    }
}
