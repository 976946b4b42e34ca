//! Determines from sshd's configuration (sshd_config(5)) from which files sshd reads the keys of a user.

mod condition;
mod line;
mod reading;
mod token;

use std::collections::BTreeMap;

use machinist_base::abs_path::AbsPath;

pub(super) use self::reading::{KeyOwner, KeyReading};
pub use self::{condition::Condition, line::lines};
pub use crate::wildcards::Wildcards;

/// sshd refuses more levels of included files (`SERVCONF_MAX_DEPTH`).
pub const MAX_INCLUDE_DEPTH: usize = 16;

/// Whether something holds, as far as the configuration alone shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Certainty {
    /// It never holds.
    No,
    /// It depends on something that is not known, such as the address of the client.
    Maybe,
    /// It always holds.
    Yes,
}

impl Certainty {
    /// Whether it holds in every one of several possible cases.
    fn over(cases: impl IntoIterator<Item = Self>) -> Self {
        let mut cases = cases.into_iter();
        let first = cases.next().unwrap_or(Self::No);
        cases.fold(first, |all, one| if all == one { all } else { Self::Maybe })
    }
}

/// A line that decides where the keys of users are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Directive {
    /// The lines after it apply only where the condition holds.
    Match(Condition),
    /// The patterns of the files that are read in its place.
    Include(Vec<String>),
    /// Sets where the keys are.
    Set(SshdValue),
}

/// The value of a keyword that decides where the keys of users are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SshdValue {
    /// `AuthorizedKeysFile`.
    Files(Vec<String>),
    /// `AuthorizedKeysCommand`: the text, which has no comments, and its words.
    Command(String, Vec<String>),
    /// `AuthorizedKeysCommandUser`.
    CommandUser(String),
}

impl SshdValue {
    /// The keyword and the value, for a message.
    fn describe(&self) -> String {
        match self {
            Self::Files(files) => format!("AuthorizedKeysFile to {}", files.join(" ")),
            Self::Command(text, _) => format!("AuthorizedKeysCommand to {text}"),
            Self::CommandUser(user) => format!("AuthorizedKeysCommandUser to {user}"),
        }
    }
}

/// A value, its file and line, and the `Match` lines that must all apply; none for the global section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SshdSetting {
    /// The file and the number of the line, separated by a colon.
    pub place: String,
    /// The conditions of the `Match` blocks around the line, those of including files first.
    pub conditions: Vec<Condition>,
    /// The value.
    pub value: SshdValue,
}

impl SshdSetting {
    /// Whether sshd uses the line for this user.
    fn applies(&self, user: &str) -> Certainty {
        let all = self.conditions.iter().map(|one| one.applies(user));
        all.min().unwrap_or(Certainty::Yes)
    }

    /// The setting and its condition, for a message.
    fn describe(&self) -> String {
        let Self { place, .. } = self;
        let conditions: Vec<&str> = self.conditions.iter().map(Condition::text).collect();
        let what = self.value.describe();
        match conditions.as_slice() {
            [] => format!("{place} sets {what}"),
            all => format!(
                "{place} sets {what} where \"Match {}\" applies",
                all.join("\" and \"Match ")
            ),
        }
    }
}

/// The lines of sshd's configuration that decide where the keys of users are, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SshdConfig {
    /// The settings of all files.
    pub settings: Vec<SshdSetting>,
    /// The programs of `AuthorizedKeysCommand` that exist and may be executed.
    pub programs: Vec<String>,
    /// The real directory of each directory that is a link, or behind one: of the homes of users and of the directories
    /// that `AuthorizedKeysFile` names.
    pub links: BTreeMap<AbsPath, AbsPath>,
}

impl SshdConfig {
    /// The possible values of `AuthorizedKeysFile` for a user; none is sshd's default.
    pub fn key_files(&self, user: &str) -> Vec<Option<Vec<String>>> {
        let files = self.files(user).into_iter();
        files.map(|case| case.value.map(<[_]>::to_vec)).collect()
    }

    /// The possible values of `AuthorizedKeysCommand` for a user; none is sshd's default.
    pub fn key_commands(&self, user: &str) -> Vec<Option<String>> {
        let commands = self.commands(user).into_iter();
        commands
            .map(|case| case.value.map(|(text, _)| text.to_owned()))
            .collect()
    }
}
