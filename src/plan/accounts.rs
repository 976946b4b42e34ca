//! Users and groups: which entries of the machine's databases change, and who is who afterwards.
//!
//! Edits are worked out on a copy of the databases, one after the other, so that a group which the
//! same config makes can have members and own files. Numbers are chosen here, from what is observed,
//! and stay what they are when the transaction is carried out.

mod groups;
mod leaving;
mod numbers;
mod users;

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Account, ChangeKind, Observed,
    databases::{Database, Edit, EditPlace, Entries},
    desired::Entry,
};
use crate::{
    machine_config::{EntryKind, MachineConfig, Origin, Refusal},
    path::AbsPath,
    reason::Reason,
};

use self::numbers::Numbers;

/// Where the parts of an entry stand, from 0.
mod field {
    pub(super) const PASSWORD: usize = 1;
    pub(super) const ID: usize = 2;
    pub(super) const GROUP: usize = 3;
    pub(super) const GECOS: usize = 4;
    pub(super) const HOME: usize = 5;
    pub(super) const SHELL: usize = 6;
}

/// What a config makes of the machine's users and groups.
#[derive(Clone, Debug, Default)]
pub(super) struct Accounts {
    /// Users who are made.
    pub(super) users: BTreeMap<String, Account>,
    /// Groups that are made.
    pub(super) groups: BTreeMap<String, u32>,
    /// Users who go.
    pub(super) gone: BTreeSet<String>,
    /// The edits, in the order in which they were found to be needed.
    pub(super) edits: Vec<Edit>,
    /// The same for people.
    pub(super) changes: Vec<AccountChange>,
    /// Home directories of users who are made, unless there is something already.
    pub(super) homes: Vec<Home>,
    /// What was kept of entries that the config does not speak of any more.
    pub(super) let_go: Vec<EditPlace>,
    pub(super) refusals: Vec<Refusal>,
    pub(super) warnings: Vec<String>,
}

/// What happens to one user or group.
#[derive(Clone, Debug)]
pub(super) struct AccountChange {
    pub(super) entry: Entry,
    pub(super) change: ChangeKind,
    pub(super) fields: Vec<&'static str>,
    pub(super) what: String,
}

/// A home directory to be made.
#[derive(Clone, Debug)]
pub(super) struct Home {
    pub(super) path: AbsPath,
    pub(super) account: Account,
    pub(super) entry: Entry,
}

/// The entries that `to` asks for, and those that go back to what they were because it asks no longer.
pub(super) fn accounts(to: &MachineConfig, observed: &Observed) -> Accounts {
    let facts = &observed.accounts;
    if !to.speaks_of_accounts() && facts.kept.is_empty() {
        return Accounts::default();
    }
    let mut draft = Draft {
        to,
        observed,
        now: facts.databases.clone(),
        numbers: Numbers::taken(to, observed),
        done: Accounts::default(),
    };
    if draft.has_databases() {
        draft.make_groups();
        draft.users();
        draft.remove_groups();
        draft.leave();
    }
    draft.done
}

/// The databases as they will be, and how they come to be so.
struct Draft<'a> {
    to: &'a MachineConfig,
    observed: &'a Observed,
    now: BTreeMap<Database, Entries>,
    numbers: Numbers,
    done: Accounts,
}

impl Draft<'_> {
    /// Users and groups need the two files that make them so; the others may be missing.
    fn has_databases(&mut self) -> bool {
        let origin = first_origin(self.to);
        for database in [Database::Passwd, Database::Group] {
            if !self.now.contains_key(&database) {
                let file = database.as_str();
                let message = format!("users and groups need {file}, which is no file here");
                self.refuse(Reason::FeatureUnsupported, message, &origin);
            }
        }
        self.done.refusals.is_empty()
    }

    fn refuse(&mut self, reason: Reason, message: String, origin: &Origin) {
        self.done
            .refusals
            .push(Refusal::new(reason, message).at(origin));
    }

    fn warn(&mut self, warning: String) {
        self.done.warnings.push(warning);
    }

    fn has(&self, database: Database, name: &str) -> bool {
        self.now.get(&database).is_some_and(|there| there.has(name))
    }

    /// One field of an entry as it stands in the draft.
    fn field(&self, database: Database, name: &str, index: usize) -> Option<String> {
        let fields = self.now.get(&database)?.fields(database, name)?;
        fields.get(index).map(|field| (*field).to_owned())
    }

    fn id(&self, database: Database, name: &str) -> Option<u32> {
        self.field(database, name, field::ID)?.parse().ok()
    }

    /// Takes an edit over. Parts of an entry that is made here become part of its line.
    fn put(&mut self, edit: Edit) {
        let Some(there) = self.now.get_mut(&edit.database()) else {
            return;
        };
        edit.apply(there);
        let whole = there.line(edit.name()).map(str::to_owned);
        let made = self.done.edits.iter_mut().find(|one| {
            one.database() == edit.database()
                && one.name() == edit.name()
                && !one.takes_away()
                && matches!(one, Edit::Line { .. })
        });
        match (made, &edit) {
            (Some(Edit::Line { after, .. }), Edit::Field { .. } | Edit::Member { .. }) => {
                *after = whole;
            }
            _ => self.done.edits.push(edit),
        }
    }

    /// Gives a field another value; says whether that is a change. None where there is no such entry
    /// that could be read.
    fn set(&mut self, database: Database, name: &str, index: usize, value: &str) -> Option<bool> {
        let before = self.field(database, name, index)?;
        let differs = before != value;
        if differs {
            self.put(Edit::Field {
                database,
                name: name.to_owned(),
                index,
                before,
                after: value.to_owned(),
            });
        }
        Some(differs)
    }

    /// Makes a user a member of a group, or one no longer; says whether that is a change.
    fn set_member(&mut self, group: &str, user: &str, is: bool) -> bool {
        let mut changed = false;
        for database in [Database::Group, Database::Gshadow] {
            let members = self.now.get(&database).and_then(|now| now.members(group));
            if members.is_some_and(|members| members.contains(&user) != is) {
                changed |= database == Database::Group;
                self.put(Edit::Member {
                    database,
                    name: group.to_owned(),
                    user: user.to_owned(),
                    before: !is,
                    after: is,
                });
            }
        }
        changed
    }

    /// Removes all entries of a name from a database, as they were found.
    fn remove_lines(&mut self, database: Database, name: &str) {
        let facts = &self.observed.accounts;
        let Some(found) = facts.databases.get(&database) else {
            return;
        };
        let own = |one: &Edit| one.database() == database && one.name() == name;
        self.done.edits.retain(|one| !own(one));
        let all = found.lines_of(name);
        // Of a name that is there twice only the first entry counts, except for ranges.
        let several = matches!(database, Database::Subuid | Database::Subgid);
        let count = if several { all.len() } else { 1 };
        for line in all.into_iter().take(count) {
            let edit = Edit::removed(database, name, line, found);
            if let Some(now) = self.now.get_mut(&database) {
                edit.apply(now);
            }
            self.done.edits.push(edit);
        }
    }

    /// Whether a group is somebody's primary one in the draft.
    fn is_primary(&self, gid: u32) -> bool {
        let passwd = self.now.get(&Database::Passwd);
        let mut rows = passwd
            .into_iter()
            .flat_map(|now| now.rows(Database::Passwd));
        rows.any(|row| row[field::GROUP].parse() == Ok(gid))
    }

    fn tell(&mut self, entry: Entry, change: ChangeKind, fields: Vec<&'static str>, what: String) {
        self.done.changes.push(AccountChange {
            entry,
            change,
            fields,
            what,
        });
    }
}

fn first_origin(to: &MachineConfig) -> Origin {
    let users = to.users.values().filter(|user| user.account.is_some());
    let users = users.map(|user| &user.origin);
    let mut all = users.chain(to.groups.values().map(|group| &group.origin));
    all.next().cloned().unwrap_or_default()
}

fn user_entry(name: &str, origin: &Origin) -> Entry {
    Entry::new(EntryKind::User, name, origin)
}

fn group_entry(name: &str, origin: &Origin) -> Entry {
    Entry::new(EntryKind::Group, name, origin)
}

#[cfg(test)]
mod tests;
