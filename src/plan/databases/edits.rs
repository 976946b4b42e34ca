//! Edits of single entries, each with the value before and after, and where they stand in a file.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Database, Entries, MEMBERS};

/// One entry, field or membership, before and after.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "edit",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum Edit {
    /// An entry is made or removed.
    Line {
        /// In which database.
        database: Database,
        /// Whose entry.
        name: String,
        /// The line before; none where there was none.
        before: Option<String>,
        /// The line after; none for a removal.
        after: Option<String>,
        /// The entry that it stood behind.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        follows: Option<String>,
    },
    /// One field of an entry changes.
    Field {
        /// In which database.
        database: Database,
        /// Whose entry.
        name: String,
        /// Which field, from 0, the name.
        index: usize,
        /// Its value before.
        before: String,
        /// Its value after.
        after: String,
    },
    /// A user becomes a member of a group, or is one no longer.
    Member {
        /// Group or gshadow.
        database: Database,
        /// The group.
        name: String,
        /// The user.
        user: String,
        /// Whether the user was a member.
        before: bool,
        /// Whether the user will be one.
        after: bool,
    },
}

/// Never a value: fields may be password hashes.
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

/// What an edit is about, without any value of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EditPlace {
    /// In which database.
    pub database: Database,
    /// Whose entry.
    pub name: String,
    /// Which part: empty for all of it, the number of the field, `member` and the user; the line
    /// itself where one name may have several.
    pub part: String,
}

/// Where an edit stands in a database as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is as before the edit.
    Before,
    /// It is as after the edit.
    After,
    /// Neither: somebody else was here.
    Foreign,
}

impl Edit {
    /// A new entry.
    pub fn made(database: Database, name: &str, line: String) -> Self {
        Self::Line {
            database,
            name: name.to_owned(),
            before: None,
            after: Some(line),
            follows: None,
        }
    }

    /// An entry that goes.
    pub fn removed(database: Database, name: &str, line: String, there: &Entries) -> Self {
        Self::Line {
            database,
            name: name.to_owned(),
            before: Some(line),
            after: None,
            follows: there.before(name),
        }
    }

    /// What it is about.
    pub fn place(&self) -> EditPlace {
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
        EditPlace {
            database: *database,
            name: name.clone(),
            part,
        }
    }

    /// The database it is an edit of.
    pub fn database(&self) -> Database {
        match self {
            Self::Line { database, .. }
            | Self::Field { database, .. }
            | Self::Member { database, .. } => *database,
        }
    }

    /// Whose entry it is about.
    pub fn name(&self) -> &str {
        match self {
            Self::Line { name, .. } | Self::Field { name, .. } | Self::Member { name, .. } => name,
        }
    }

    /// Whether it takes something away.
    pub fn takes_away(&self) -> bool {
        matches!(
            self,
            Self::Line { after: None, .. } | Self::Member { after: false, .. }
        )
    }

    /// The same edit backwards.
    pub fn reversed(&self) -> Self {
        let mut edit = self.clone();
        match &mut edit {
            Self::Line { before, after, .. } => std::mem::swap(before, after),
            Self::Field { before, after, .. } => std::mem::swap(before, after),
            Self::Member { before, after, .. } => std::mem::swap(before, after),
        }
        edit
    }

    /// The same edit without any value, to be shown.
    #[must_use]
    pub fn hidden(mut self) -> Self {
        const HIDDEN: &str = "…";
        match &mut self {
            Self::Line { before, after, .. } => {
                for value in [before, after].into_iter().flatten() {
                    HIDDEN.clone_into(value);
                }
            }
            Self::Field { before, after, .. } => {
                HIDDEN.clone_into(before);
                HIDDEN.clone_into(after);
            }
            Self::Member { .. } => {}
        }
        self
    }

    /// Whether the edit is done in `there`, still to do, or neither.
    pub fn standing(&self, there: &Entries) -> Standing {
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
            (true, _) => Standing::After,
            (false, true) => Standing::Before,
            (false, false) => Standing::Foreign,
        }
    }

    /// Carries the edit out. For one that stands as [`Standing::Before`].
    pub fn apply(&self, to: &mut Entries) {
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
                ..
            } => {
                let members = to.members(name).unwrap_or_default();
                let others = members.into_iter().filter(|member| member != user);
                let all: Vec<&str> = others.chain(after.then_some(user.as_str())).collect();
                let all = all.join(",");
                to.set(*database, name, MEMBERS, &all);
            }
        }
    }
}

/// Takes an edit into the list of what was there before machinist: each place keeps its oldest value
/// before and its newest one after, and one that is as it was in the beginning is forgotten.
pub fn remember(kept: &mut Vec<Edit>, edit: &Edit) {
    let of_one_we_made = |one: &Edit| {
        matches!(one, Edit::Line { database, name, before: None, .. }
            if *database == edit.database() && name == edit.name())
    };
    let part = !matches!(edit, Edit::Line { .. });
    if part && kept.iter().any(of_one_we_made) {
        return;
    }
    let place = edit.place();
    match kept.iter_mut().find(|one| one.place() == place) {
        Some(one) => one.ends_as(edit),
        None => kept.push(as_found(kept, edit)),
    }
    let parts = |one: &Edit| {
        let same = one.database() == edit.database() && one.name() == edit.name();
        same && !matches!(one, Edit::Line { .. })
    };
    kept.retain(|one| !one.changes_nothing() && (part || !parts(one)));
}

/// An entry that goes, as it was before machinist changed parts of it.
fn as_found(kept: &[Edit], edit: &Edit) -> Edit {
    let mut edit = edit.clone();
    if let Edit::Line {
        database,
        name,
        before: Some(line),
        after: None,
        ..
    } = &mut edit
    {
        let mut entry = Entries::read(line.as_bytes());
        for part in kept.iter().rev().map(Edit::reversed) {
            let own = part.database() == *database && part.name() == name;
            if own && part.standing(&entry) == Standing::Before {
                part.apply(&mut entry);
            }
        }
        if let Some(found) = entry.line(name) {
            *line = found.to_owned();
        }
    }
    edit
}

impl Edit {
    fn ends_as(&mut self, later: &Self) {
        match (self, later) {
            (Self::Line { after, .. }, Self::Line { after: last, .. }) => after.clone_from(last),
            (Self::Field { after, .. }, Self::Field { after: last, .. }) => after.clone_from(last),
            (Self::Member { after, .. }, Self::Member { after: last, .. }) => *after = *last,
            _ => {}
        }
    }

    fn changes_nothing(&self) -> bool {
        match self {
            Self::Line { before, after, .. } => before == after,
            Self::Field { before, after, .. } => before == after,
            Self::Member { before, after, .. } => before == after,
        }
    }
}
