//! Plans fields of users and members of groups that machinist created and that the desired config no longer sets.

use super::{
    AccountDraft, field,
    groups::NO_GROUP_PASSWORD,
    removal::{created_line, is_line, part, speaks_of, whose},
    users::NO_PASSWORD,
};
use crate::passwd::{Database, Edit, EditState, field::MEMBERS_FIELD};

impl AccountDraft<'_> {
    /// Gives fields of an entry that machinist created their defaults again, if the config no longer sets them and no other
    /// program has changed them.
    pub(super) fn created_fields_return(&mut self, kept: &Edit) {
        let (database, name) = (kept.database(), kept.name());
        let Some(line) = created_line(kept) else {
            return;
        };
        let shell = self.observed.accounts.shell.clone();
        let defaults = match database {
            Database::Passwd => vec![
                (field::GECOS_FIELD, String::new()),
                (field::SHELL_FIELD, shell),
            ],
            Database::Shadow => vec![(field::PASSWORD_FIELD, NO_PASSWORD.to_owned())],
            Database::Gshadow => vec![(field::PASSWORD_FIELD, NO_GROUP_PASSWORD.to_owned())],
            _ => return,
        };
        for (index, default) in defaults {
            let ours = part(line, index).unwrap_or_default().to_owned();
            let set = Edit::Field {
                database,
                name: name.to_owned(),
                index,
                before: default,
                after: ours,
            };
            let back = set.reversed();
            let there = self.now.get(&database);
            let is_ours = there.is_some_and(|there| back.edit_state(there) == EditState::Before);
            if is_ours && back != set && !speaks_of(self.to, &set) {
                let (entry, told) = whose(&set);
                self.put(back);
                self.record_restored(entry, told);
            }
        }
    }

    /// Removes the members that machinist added to a group that it created, if the config no longer sets them.
    pub(super) fn created_members_return(&mut self, kept: &Edit) {
        let (database, group) = (kept.database(), kept.name());
        let is_group = matches!(database, Database::Group | Database::Gshadow);
        let Some(line) = created_line(kept).filter(|_| is_group) else {
            return;
        };
        let members = part(line, MEMBERS_FIELD).unwrap_or_default().split(',');
        for user in members.filter(|user| !user.is_empty()) {
            let added = Edit::Member {
                database,
                name: group.to_owned(),
                user: user.to_owned(),
                before: false,
                after: true,
                follows: None,
            };
            let back = added.reversed();
            let there = self.now.get(&database);
            let is_there = there.is_some_and(|there| back.edit_state(there) == EditState::Before);
            if is_there && !speaks_of(self.to, &added) {
                let (entry, told) = whose(&added);
                self.put(back);
                self.record_restored(entry, told);
            }
        }
    }

    /// Whether a group has members or is a primary group, and all these users are members that machinist added, or
    /// users that it created. `line` is the line of the group that it created.
    pub(super) fn is_only_used_by_ours(&self, gid: u32, members: &[String], line: &str) -> bool {
        let added = part(line, MEMBERS_FIELD).unwrap_or_default();
        let group = part(line, 0).unwrap_or_default();
        let is_added_now = |user: &str| {
            let mut edits = self.done.edits.iter();
            edits.any(|edit| {
                matches!(edit, Edit::Member { name, user: member, after: true, .. }
                    if name == group && member == user)
            })
        };
        let is_added =
            |user: &String| added.split(',').any(|one| one == user) || is_added_now(user);
        let is_created = |user: &str| self.is_of_config(Database::Passwd, user);
        let passwd = self.now.get(&Database::Passwd).into_iter();
        let rows = passwd.flat_map(|now| now.rows(Database::Passwd));
        let primary: Vec<&str> = rows
            .filter(|row| row[field::GROUP_FIELD].parse() == Ok(gid))
            .map(|row| row[0])
            .collect();
        let is_used = !members.is_empty() || !primary.is_empty();
        is_used && members.iter().all(is_added) && primary.into_iter().all(is_created)
    }

    /// Whether the config created or creates this entry.
    pub(super) fn is_of_config(&self, database: Database, name: &str) -> bool {
        let of_entry = |edit: &&Edit| edit.name() == name && is_line(edit, database);
        let mut edits = self.observed.accounts.kept.iter().chain(&self.done.edits);
        edits.any(|edit| of_entry(&edit) && created_line(edit).is_some())
    }
}
