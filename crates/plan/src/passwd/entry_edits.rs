//! Edits of single entries, each with the value before and after, and the state of an edit in a
//! file.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Database, DatabaseEntries, field::MEMBERS_FIELD};

/// One entry, field or membership, before and after.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "edit",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum Edit {
    /// An entry is created or removed.
    Line {
        /// The database.
        database: Database,
        /// The name of the entry.
        name: String,
        /// The line before; none if the entry did not exist.
        before: Option<String>,
        /// The line after; none for a removal.
        after: Option<String>,
        /// The entry that it followed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        follows: Option<String>,
    },
    /// One field of an entry changes.
    Field {
        /// The database.
        database: Database,
        /// The name of the entry.
        name: String,
        /// The index of the field; 0 is the name.
        index: usize,
        /// Its value before.
        before: String,
        /// Its value after.
        after: String,
    },
    /// A user is added to a group or removed from it.
    Member {
        /// Group or gshadow.
        database: Database,
        /// The group.
        name: String,
        /// The user.
        user: String,
        /// Whether the user was a member.
        before: bool,
        /// Whether the user will be a member.
        after: bool,
        /// The member that the user followed in the list; empty if the user was the first one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        follows: Option<String>,
    },
}

/// Never prints a value: fields may be password hashes.
impl fmt::Debug for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.place();
        let what = match self {
            Self::Line { after: Some(_), .. } => "made",
            Self::Line { after: None, .. } => "removed",
            Self::Field { .. } => "set",
            Self::Member { after: true, .. } => "joins",
            Self::Member { after: false, .. } => "leaves",
        };
        let (database, name, part) = (place.database.as_str(), &place.name, &place.part);
        write!(f, "Edit({database} {name} {part} {what})")
    }
}

/// Identifies what an edit changes, without any value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EditTarget {
    /// The database.
    pub database: Database,
    /// The name of the entry.
    pub name: String,
    /// The part of the entry: empty for the whole entry, the index of the field, or `member` and
    /// the user; the line itself if one name may have several entries.
    pub part: String,
}

/// The state of an edit in a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EditState {
    /// The database has the value before the edit.
    Before,
    /// The database has the value after the edit.
    After,
    /// The database has another value: another program has changed it.
    Foreign,
}

impl Edit {
    /// Creates an entry.
    pub fn made(database: Database, name: &str, line: String) -> Self {
        Self::Line {
            database,
            name: name.to_owned(),
            before: None,
            after: Some(line),
            follows: None,
        }
    }

    /// Removes an entry.
    pub fn removed(database: Database, name: &str, line: String, there: &DatabaseEntries) -> Self {
        Self::Line {
            database,
            name: name.to_owned(),
            before: Some(line),
            after: None,
            follows: there.before(name),
        }
    }

    /// Identifies what the edit changes.
    pub fn place(&self) -> EditTarget {
        let (database, name, part) = match self {
            Self::Line {
                database,
                name,
                before,
                after,
                ..
            } => {
                let line = || before.as_ref().or(after.as_ref()).cloned();
                let line = database.by_line().then(line).flatten();
                (database, name, line.unwrap_or_default())
            }
            Self::Field {
                database,
                name,
                index,
                ..
            } => (database, name, index.to_string()),
            Self::Member {
                database,
                name,
                user,
                ..
            } => (database, name, format!("member {user}")),
        };
        EditTarget {
            database: *database,
            name: name.clone(),
            part,
        }
    }

    /// The database that the edit changes.
    pub fn database(&self) -> Database {
        match self {
            Self::Line { database, .. }
            | Self::Field { database, .. }
            | Self::Member { database, .. } => *database,
        }
    }

    /// The name of the entry that the edit changes.
    pub fn name(&self) -> &str {
        match self {
            Self::Line { name, .. } | Self::Field { name, .. } | Self::Member { name, .. } => name,
        }
    }

    /// Whether the edit removes something.
    pub fn is_removal(&self) -> bool {
        matches!(
            self,
            Self::Line { after: None, .. } | Self::Member { after: false, .. }
        )
    }

    /// The inverse edit.
    pub fn reversed(&self) -> Self {
        let mut edit = self.clone();
        match &mut edit {
            Self::Line { before, after, .. } => std::mem::swap(before, after),
            Self::Field { before, after, .. } => std::mem::swap(before, after),
            Self::Member { before, after, .. } => std::mem::swap(before, after),
        }
        edit
    }

    /// The same edit without values, for display.
    #[must_use]
    pub fn hidden(mut self) -> Self {
        const REDACTED: &str = "…";
        match &mut self {
            Self::Line { before, after, .. } => {
                for value in [before, after].into_iter().flatten() {
                    REDACTED.clone_into(value);
                }
            }
            Self::Field { before, after, .. } => {
                REDACTED.clone_into(before);
                REDACTED.clone_into(after);
            }
            Self::Member { .. } => {}
        }
        self
    }

    /// Whether the edit is done in `there`, still to do, or in conflict with it.
    pub fn edit_state(&self, there: &DatabaseEntries) -> EditState {
        let (is_after, is_before) = match self {
            Self::Line {
                database,
                before,
                after,
                ..
            } if database.by_line() => {
                let line = before.as_ref().or(after.as_ref());
                let is = line.is_some_and(|line| there.find_line(line).is_some());
                (is == after.is_some(), is == before.is_some())
            }
            Self::Line {
                name,
                before,
                after,
                ..
            } => {
                let unreadable = there.has(name) && there.line(name).is_none();
                let is = there.line(name);
                let same = |line: &Option<String>| is == line.as_deref() && !unreadable;
                (same(after), same(before))
            }
            Self::Field {
                database,
                name,
                index,
                before,
                after,
            } => {
                let fields = there.fields(*database, name);
                let is = fields.and_then(|fields| fields.get(*index).copied());
                (is == Some(after), is == Some(before))
            }
            Self::Member {
                name,
                user,
                before,
                after,
                ..
            } => {
                let members = there.members(name);
                let is = members.map(|members| members.contains(&user.as_str()));
                (is == Some(*after), is == Some(*before))
            }
        };
        match (is_after, is_before) {
            (true, _) => EditState::After,
            (false, true) => EditState::Before,
            (false, false) => EditState::Foreign,
        }
    }

    /// Carries out an edit whose state is [`EditState::Before`].
    pub fn apply(&self, to: &mut DatabaseEntries) {
        match self {
            Self::Line {
                database,
                name,
                before,
                after,
                follows,
            } => {
                let line = before.as_deref().filter(|_| database.by_line());
                let at = match line {
                    Some(line) => to.find_line(line),
                    None => to.find(name).filter(|_| !database.by_line()),
                };
                if let Some(at) = at {
                    to.lines.remove(at);
                }
                if let Some(line) = after {
                    to.insert(line, follows.as_deref());
                }
            }
            Self::Field {
                database,
                name,
                index,
                after,
                ..
            } => to.set(*database, name, *index, after),
            Self::Member {
                database,
                name,
                user,
                after,
                follows,
                ..
            } => {
                let mut all = to.members(name).unwrap_or_default();
                all.retain(|member| member != user);
                if *after {
                    let place = |one: &String| match one.is_empty() {
                        true => Some(0),
                        false => all.iter().position(|member| member == one).map(|at| at + 1),
                    };
                    let at = follows.as_ref().and_then(place).unwrap_or(all.len());
                    all.insert(at, user);
                }
                let all = all.join(",");
                to.set(*database, name, MEMBERS_FIELD, &all);
            }
        }
    }
}
