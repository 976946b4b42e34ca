//! Reads and writes the databases of users and groups line by line.
//!
//! All lines that no edit concerns keep every byte: comments, the `+` lines of NIS, malformed
//! lines, and a missing newline at the end of the file.

mod entry_edits;
pub(crate) mod field;
mod original_values;
mod user_fields;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use self::{
    entry_edits::{Edit, EditState, EditTarget},
    original_values::remember,
};
use super::byte_text;
use machinist_base::abs_path::AbsPath;

/// One of the six files that hold users and groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Database {
    /// Users (passwd(5)).
    Passwd,
    /// Passwords of users (shadow(5)).
    Shadow,
    /// Groups (group(5)).
    Group,
    /// Passwords of groups (gshadow(5)).
    Gshadow,
    /// Subordinate user ids (subuid(5)).
    Subuid,
    /// Subordinate group ids (subgid(5)).
    Subgid,
}

impl Database {
    /// All six.
    pub const ALL: [Self; 6] = [
        Self::Passwd,
        Self::Shadow,
        Self::Group,
        Self::Gshadow,
        Self::Subuid,
        Self::Subgid,
    ];

    /// The path of the file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Passwd => "/etc/passwd",
            Self::Shadow => "/etc/shadow",
            Self::Group => "/etc/group",
            Self::Gshadow => "/etc/gshadow",
            Self::Subuid => "/etc/subuid",
            Self::Subgid => "/etc/subgid",
        }
    }

    /// The path of the file.
    pub fn path(self) -> AbsPath {
        AbsPath::new(self.as_str()).unwrap_or_else(|_| AbsPath::root())
    }

    /// The database with this path.
    pub fn at(path: &AbsPath) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|one| one.as_str() == path.as_str())
    }

    /// The number of fields of an entry.
    const fn width(self) -> usize {
        match self {
            Self::Passwd => 7,
            Self::Shadow => 9,
            Self::Group | Self::Gshadow => 4,
            Self::Subuid | Self::Subgid => 3,
        }
    }

    /// Whether one name may have several entries, so that only the whole line identifies an entry.
    const fn by_line(self) -> bool {
        matches!(self, Self::Subuid | Self::Subgid)
    }

    /// The database with the entries that the entries of this one depend on.
    pub const fn owner(self) -> Option<Self> {
        match self {
            Self::Passwd | Self::Group => None,
            Self::Shadow | Self::Subuid | Self::Subgid => Some(Self::Passwd),
            Self::Gshadow => Some(Self::Group),
        }
    }
}

/// The content of one database.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseEntries {
    /// The lines, with bytes that are not UTF-8 as [`crate::byte_text`] represents them.
    lines: Vec<String>,
    /// Whether the last line ends with a newline.
    ended: bool,
}

/// Never prints the content: it may contain password hashes.
impl fmt::Debug for DatabaseEntries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entries({} lines)", self.lines.len())
    }
}

impl DatabaseEntries {
    /// Parses the content of a file.
    pub fn read(bytes: &[u8]) -> Self {
        let ended = bytes.is_empty() || bytes.ends_with(b"\n");
        let body = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let lines = match bytes.is_empty() {
            true => Vec::new(),
            false => body
                .split(|byte| *byte == b'\n')
                .map(byte_text::to_text)
                .collect(),
        };
        Self { lines, ended }
    }

    /// One entry.
    fn of_line(line: &str) -> Self {
        Self {
            lines: vec![line.to_owned()],
            ended: true,
        }
    }

    /// The representation of a text that does not come from a database.
    pub(crate) fn text_of(text: &str) -> String {
        byte_text::to_text(text.as_bytes())
    }

    /// The content of the file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = byte_text::to_bytes(&self.lines.join("\n"));
        if self.ended && !self.lines.is_empty() {
            bytes.push(b'\n');
        }
        bytes
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.lines
            .iter()
            .position(|line| name_of(line) == Some(name))
    }

    fn find_line(&self, line: &str) -> Option<usize> {
        self.lines.iter().position(|one| one == line)
    }

    /// The first entry of that name.
    pub fn line(&self, name: &str) -> Option<&str> {
        self.lines.get(self.find(name)?).map(String::as_str)
    }

    /// Whether an entry of that name exists, readable or not.
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// All entries of that name; subuid(5) may have several.
    pub fn lines_of(&self, name: &str) -> Vec<String> {
        let own = self.lines.iter().filter(|line| name_of(line) == Some(name));
        own.cloned().collect()
    }

    /// The fields of the first entry of that name, if it has the right number of fields.
    pub fn fields(&self, database: Database, name: &str) -> Option<Vec<&str>> {
        let fields: Vec<&str> = self.line(name)?.split(':').collect();
        (fields.len() == database.width()).then_some(fields)
    }

    /// The fields of every entry that has the right number of fields.
    pub fn rows(&self, database: Database) -> impl Iterator<Item = Vec<&str>> {
        let texts = self.lines.iter().filter(|line| name_of(line).is_some());
        texts
            .map(|line| line.split(':').collect())
            .filter(move |fields: &Vec<&str>| fields.len() == database.width())
    }

    /// The members of a group; none if there is no readable entry.
    pub fn members(&self, name: &str) -> Option<Vec<&str>> {
        let fields = self.fields(Database::Group, name)?;
        let members = fields.get(field::MEMBERS_FIELD)?.split(',');
        Some(members.filter(|member| !member.is_empty()).collect())
    }

    /// The entry before the first one of that name, so that this one can be restored to its
    /// position.
    pub fn before(&self, name: &str) -> Option<String> {
        let above = self.find(name)?.checked_sub(1)?;
        name_of(&self.lines[above]).map(str::to_owned)
    }

    /// Inserts an entry after `follows`, else at the end but before the `+` lines of NIS, because
    /// lookups end there.
    fn insert(&mut self, line: &str, follows: Option<&str>) {
        let place = follows.and_then(|name| self.find(name)).map(|at| at + 1);
        let nis = || {
            let nis = |line: &String| line.starts_with(['+', '-']);
            self.lines.iter().position(nis)
        };
        let at = place.or_else(nis).unwrap_or(self.lines.len());
        self.lines.insert(at, line.to_owned());
    }

    fn set(&mut self, database: Database, name: &str, index: usize, value: &str) {
        let Some(mut fields) = self.fields(database, name) else {
            return;
        };
        let Some(field) = fields.get_mut(index) else {
            return;
        };
        *field = value;
        let line = fields.join(":");
        if let Some(at) = self.find(name) {
            self.lines[at] = line;
        }
    }
}

/// The name of the entry on a line; none for comments, blank lines, NIS lines and lines without
/// fields.
fn name_of(line: &str) -> Option<&str> {
    let (name, _) = line.split_once(':')?;
    (!name.is_empty() && !name.starts_with(['#', '+', '-'])).then_some(name)
}

#[cfg(test)]
mod tests;
