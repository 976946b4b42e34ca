//! Plans users and groups: which entries of the machine's databases change, and which accounts
//! exist afterwards.
//!
//! The edits are computed one after the other on a copy of the databases, so that a group which the
//! config creates can have members and own files in the same update. Numbers are chosen here, from
//! the observed machine, and do not change when the transaction runs.

mod created_entries;
mod groups;
mod id_allocation;
mod removal;
mod removed_users;
mod users;

use std::collections::{BTreeMap, BTreeSet};

use super::{
    ChangeKind, MachineFacts, UserFacts,
    desired_tree::DesiredEntry,
    passwd::{Database, DatabaseEntries, Edit, EditTarget, field},
};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::{EntryKind, EntryOrigin, MachineConfig, Refusal, User};

use self::id_allocation::UsedIds;

/// The changes that a config makes to the machine's users and groups.
#[derive(Clone, Debug, Default)]
pub(super) struct Accounts {
    /// The users to create.
    pub(super) users: BTreeMap<String, UserFacts>,
    /// The groups to create.
    pub(super) groups: BTreeMap<String, u32>,
    /// The users to remove.
    pub(super) gone: BTreeSet<String>,
    /// The edits, in the order in which the plan found them.
    pub(super) edits: Vec<Edit>,
    /// The changes for display.
    pub(super) changes: Vec<AccountChange>,
    /// The home directories to create for new users, if nothing exists at their path.
    pub(super) homes: Vec<HomeDir>,
    /// The recorded earlier values of entries that the desired config no longer mentions.
    pub(super) let_go: Vec<EditTarget>,
    pub(super) refusals: Vec<Refusal>,
    pub(super) warnings: Vec<String>,
}

/// The change of one user or group.
#[derive(Clone, Debug)]
pub(super) struct AccountChange {
    pub(super) entry: DesiredEntry,
    pub(super) change: ChangeKind,
    pub(super) fields: Vec<&'static str>,
    pub(super) what: String,
}

/// A home directory to create.
#[derive(Clone, Debug)]
pub(super) struct HomeDir {
    pub(super) path: AbsPath,
    pub(super) account: UserFacts,
    pub(super) entry: DesiredEntry,
}

/// Plans the entries that `to` sets, and restores those that it no longer sets.
pub(super) fn accounts(to: &MachineConfig, observed: &MachineFacts) -> Accounts {
    let facts = &observed.accounts;
    let created = |(name, user): (&String, &User)| is_created_for_keys(to, name, user, observed);
    let entries = !to.groups.is_empty()
        || to.users.values().any(|user| user.account.is_some())
        || to.users.iter().any(created);
    if !entries && facts.kept.is_empty() {
        return Accounts::default();
    }
    let mut draft = AccountDraft {
        to,
        observed,
        now: facts.databases.clone(),
        numbers: UsedIds::taken(to, observed),
        done: Accounts::default(),
        retained: BTreeSet::new(),
    };
    if draft.has_databases() {
        draft.make_groups();
        draft.users();
        draft.remove_groups();
        draft.remove_entries();
    }
    draft.done
}

/// Whether a user of whom the config gives only keys is created: not where the user exists, where
/// there are no databases, or where the config has them as files.
fn is_created_for_keys(
    to: &MachineConfig,
    name: &str,
    user: &User,
    observed: &MachineFacts,
) -> bool {
    let there = |database| observed.accounts.databases.contains_key(&database);
    user.is_created_for_keys(name)
        && !observed.users.contains_key(name)
        && there(Database::Passwd)
        && there(Database::Group)
        && !to.files.keys().any(|path| Database::at(path).is_some())
}

/// The databases in their planned state, and the edits that lead to it.
struct AccountDraft<'a> {
    to: &'a MachineConfig,
    observed: &'a MachineFacts,
    now: BTreeMap<Database, DatabaseEntries>,
    numbers: UsedIds,
    done: Accounts,
    /// Users and groups that left the config and whose original values are remembered, because other entries of the
    /// config prevent their removal or return.
    retained: BTreeSet<String>,
}

impl AccountDraft<'_> {
    /// Whether /etc/passwd and /etc/group exist, which users and groups need; the other databases
    /// may be missing.
    fn has_databases(&mut self) -> bool {
        let origin = first_origin(self.to);
        for database in [Database::Passwd, Database::Group] {
            if !self.now.contains_key(&database) {
                let file = database.as_str();
                let message = format!(
                    "cannot manage users and groups: {file} is missing or not a \
                     regular file"
                );
                self.refuse(Reason::FeatureUnsupported, message, &origin);
            }
        }
        self.done.refusals.is_empty()
    }

    fn refuse(&mut self, reason: Reason, message: String, origin: &EntryOrigin) {
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

    /// One field of an entry in the draft.
    fn field(&self, database: Database, name: &str, index: usize) -> Option<String> {
        let fields = self.now.get(&database)?.fields(database, name)?;
        fields.get(index).map(|field| (*field).to_owned())
    }

    fn id(&self, database: Database, name: &str) -> Option<u32> {
        self.field(database, name, field::ID_FIELD)?.parse().ok()
    }

    /// Adds an edit. Edits of an entry that this plan creates are merged into its line.
    fn put(&mut self, edit: Edit) {
        let Some(there) = self.now.get_mut(&edit.database()) else {
            return;
        };
        edit.apply(there);
        let whole = there.line(edit.name()).map(str::to_owned);
        let made = self.done.edits.iter_mut().find(|one| {
            one.database() == edit.database()
                && one.name() == edit.name()
                && !one.is_removal()
                && matches!(one, Edit::Line { .. })
        });
        match (made, &edit) {
            (Some(Edit::Line { after, .. }), Edit::Field { .. } | Edit::Member { .. }) => {
                *after = whole;
            }
            _ => self.done.edits.push(edit),
        }
    }

    /// Sets a field. Returns whether that is a change, or none if there is no readable entry of
    /// this name.
    fn set(&mut self, database: Database, name: &str, index: usize, value: &str) -> Option<bool> {
        let before = self.field(database, name, index)?;
        let value = DatabaseEntries::text_of(value);
        let differs = before != value;
        if differs {
            self.put(Edit::Field {
                database,
                name: name.to_owned(),
                index,
                before,
                after: value,
            });
        }
        Some(differs)
    }

    /// Adds a user to a group or removes it from the group. Returns whether that is a change.
    fn set_member(&mut self, group: &str, user: &str, is: bool) -> bool {
        let mut changed = false;
        for database in [Database::Group, Database::Gshadow] {
            let members = self.now.get(&database).and_then(|now| now.members(group));
            let Some(members) = members.filter(|members| members.contains(&user) != is) else {
                continue;
            };
            let at = members.iter().position(|member| *member == user);
            let follows = at.map(|at| match at.checked_sub(1) {
                Some(before) => members[before].to_owned(),
                None => String::new(),
            });
            changed |= database == Database::Group;
            self.put(Edit::Member {
                database,
                name: group.to_owned(),
                user: user.to_owned(),
                before: !is,
                after: is,
                follows,
            });
        }
        changed
    }

    /// Removes all entries of a name from a database.
    fn remove_lines(&mut self, database: Database, name: &str) {
        let facts = &self.observed.accounts;
        let Some(found) = facts.databases.get(&database) else {
            return;
        };
        let own = |one: &Edit| one.database() == database && one.name() == name;
        self.done.edits.retain(|one| !own(one));
        let all = found.lines_of(name);
        // If a name occurs twice, only the first entry is effective, except for ranges of
        // subordinate ids.
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

    /// Whether a group is the primary group of a user in the draft.
    fn is_primary(&self, gid: u32) -> bool {
        let passwd = self.now.get(&Database::Passwd);
        let mut rows = passwd
            .into_iter()
            .flat_map(|now| now.rows(Database::Passwd));
        rows.any(|row| row[field::GROUP_FIELD].parse() == Ok(gid))
    }

    fn tell(
        &mut self,
        entry: DesiredEntry,
        change: ChangeKind,
        fields: Vec<&'static str>,
        what: String,
    ) {
        self.done.changes.push(AccountChange {
            entry,
            change,
            fields,
            what,
        });
    }
}

fn first_origin(to: &MachineConfig) -> EntryOrigin {
    let users = to.users.values().filter(|user| user.account.is_some());
    let users = users.map(|user| &user.origin);
    let mut all = users.chain(to.groups.values().map(|group| &group.origin));
    all.next().cloned().unwrap_or_default()
}

fn user_entry(name: &str, origin: &EntryOrigin) -> DesiredEntry {
    DesiredEntry::new(EntryKind::User, name, origin)
}

fn group_entry(name: &str, origin: &EntryOrigin) -> DesiredEntry {
    DesiredEntry::new(EntryKind::Group, name, origin)
}

#[cfg(test)]
mod tests;
