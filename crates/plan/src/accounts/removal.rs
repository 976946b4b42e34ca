//! Plans the account entries that leave the config: an entry that machinist created is removed, and one that it changed
//! gets its earlier value again, unless another program has changed it since.

use super::{AccountDraft, field, group_entry, user_entry};
use crate::{
    ChangeKind,
    desired_tree::DesiredEntry,
    passwd::{Database, Edit, EditState},
};
use machinist_ignition::{EntryOrigin, MachineConfig, UserAccount};

impl AccountDraft<'_> {
    pub(super) fn remove_entries(&mut self) {
        let left: Vec<&Edit> = self
            .observed
            .accounts
            .kept
            .iter()
            .filter(|kept| !speaks_of(self.to, kept) && !self.has_keys_of_ours(kept))
            .collect();
        // Entries that machinist created leave first: they may have the numbers of those that come back.
        let (created, removed): (Vec<&Edit>, Vec<&Edit>) =
            left.iter().partition(|kept| created_line(kept).is_some());
        for kept in created.iter().chain(&removed) {
            if is_line(kept, Database::Passwd) {
                self.user_leaves(kept);
            }
        }
        for kept in &left {
            if !matches!(kept, Edit::Line { .. }) {
                self.part_returns(kept);
            }
        }
        for kept in &self.observed.accounts.kept {
            if !left.contains(&kept) {
                self.created_fields_return(kept);
            }
        }
        for kept in &self.observed.accounts.kept {
            self.created_members_return(kept);
        }
        for kept in created.iter().chain(&removed) {
            if is_line(kept, Database::Group) {
                self.group_leaves(kept);
            }
        }
        for kept in &left {
            self.companion_returns(kept);
        }
        let stays = |kept: &&&Edit| match kept {
            Edit::Line { name, .. } => self.retained.contains(name),
            Edit::Member { user, .. } => self.retained.contains(user),
            Edit::Field { .. } => false,
        };
        let gone = left.iter().filter(|kept| !stays(kept));
        self.done.let_go = gone.map(|kept| kept.place()).collect();
    }

    /// Whether the entry belongs to a user that machinist created and of whom the config gives only
    /// keys, for which it would create the user again.
    fn has_keys_of_ours(&self, kept: &Edit) -> bool {
        let name = kept.name();
        let ours = |one: &Edit| {
            is_line(one, Database::Passwd) && one.name() == name && created_line(one).is_some()
        };
        let user = self.to.users.get(name);
        matches!(kept, Edit::Line { .. })
            && user.is_some_and(|user| user.is_created_for_keys(name))
            && self.observed.accounts.kept.iter().any(ours)
    }

    /// Removes a user that machinist created, and restores a user that it removed.
    fn user_leaves(&mut self, kept: &Edit) {
        let name = kept.name();
        let origin = EntryOrigin::default();
        let Some(line) = created_line(kept) else {
            return self.line_returns(kept, user_entry(name, &origin));
        };
        if !self.has(Database::Passwd, name) {
            return;
        }
        if self
            .field(Database::Passwd, name, field::ID_FIELD)
            .as_deref()
            != part(line, field::ID_FIELD)
        {
            return self.warn(format!(
                "user {name} is removed from the config, but kept, because its uid is no longer the one that machinist set"
            ));
        }
        if self.remove_user(name, &origin) {
            let what = "removed from the config".to_owned();
            let entry = user_entry(name, &origin);
            self.tell(entry, ChangeKind::Remove, vec!["uid"], what);
        }
    }

    fn group_leaves(&mut self, kept: &Edit) {
        let name = kept.name();
        let entry = group_entry(name, &EntryOrigin::default());
        let Some(line) = created_line(kept) else {
            return self.line_returns(kept, entry);
        };
        let Some(gid) = self.id(Database::Group, name) else {
            return;
        };
        let now = self.now.get(&Database::Group);
        let members = now.and_then(|now| now.members(name)).unwrap_or_default();
        let members: Vec<String> = members.into_iter().map(str::to_owned).collect();
        let why = if part(line, field::ID_FIELD) != Some(gid.to_string().as_str()) {
            "its gid has changed"
        } else if self.is_only_used_by_ours(gid, &members, line) {
            // A later config removes it, once nothing of machinist's own uses it.
            self.retained.insert(name.to_owned());
            "the config still has members of it"
        } else if self.is_primary(gid) || !members.is_empty() {
            "it has members"
        } else {
            self.remove_group(name);
            let what = "removed from the config".to_owned();
            return self.tell(entry, ChangeKind::Remove, vec!["gid"], what);
        };
        self.warn(format!(
            "group {name} is removed from the config, but kept, because {why}"
        ));
    }

    /// Restores an entry that machinist removed, unless its name or number is in use by now.
    pub(super) fn line_returns(&mut self, kept: &Edit, entry: DesiredEntry) {
        let (database, name) = (kept.database(), kept.name());
        if self.has(database, name) {
            return;
        }
        let back = kept.reversed();
        let Edit::Line {
            after: Some(line), ..
        } = &back
        else {
            return;
        };
        if let Some(other) = self.with_id(database, part(line, field::ID_FIELD)) {
            if self.is_of_config(database, &other) {
                // A later config restores it, once that entry leaves, too.
                self.retained.insert(name.to_owned());
            }
            return self.warn(format!(
                "cannot restore {entry}: its ID is used by another entry"
            ));
        }
        self.put(back);
        let what = "no longer absent in the config; restored".to_owned();
        self.tell(entry, ChangeKind::Create, vec!["uid"], what);
    }

    /// Restores the dependent entries (passwords, subordinate ids) of a restored entry, and removes
    /// those that machinist created for an entry that stays.
    pub(super) fn companion_returns(&mut self, kept: &Edit) {
        let (database, name) = (kept.database(), kept.name());
        let Some(owner) = database.owner().filter(|_| is_line(kept, database)) else {
            return;
        };
        let made = created_line(kept).is_some();
        let came_back =
            |edit: &Edit| edit.database() == owner && edit.name() == name && !edit.is_removal();
        let back = kept.reversed();
        let there = self.now.get(&database);
        let free = there.is_some_and(|there| back.edit_state(there) == EditState::Before);
        // If machinist created the owner as well, this entry stays or is removed together with its
        // owner.
        let of_ours =
            |one: &Edit| is_line(one, owner) && one.name() == name && created_line(one).is_some();
        let ours = self.observed.accounts.kept.iter().any(of_ours);
        let stays = made && !ours && self.has(owner, name);
        if free && (stays || !made && self.done.edits.iter().any(came_back)) {
            self.put(back);
        }
    }

    /// Restores the earlier value of a field or membership.
    fn part_returns(&mut self, kept: &Edit) {
        let (database, name) = (kept.database(), kept.name());
        let Some(there) = self.now.get(&database).filter(|now| now.has(name)) else {
            return;
        };
        let back = kept.reversed();
        let (entry, told) = whose(kept);
        match (back.edit_state(there), kept) {
            (EditState::Before, Edit::Member { user, after, .. }) => {
                // A user who no longer exists is not added to a group again.
                if *after || self.has(Database::Passwd, user) {
                    self.put(back);
                    self.record_restored(entry, told);
                }
            }
            (EditState::Before, _) => {
                self.put(back);
                self.record_restored(entry, told);
            }
            (EditState::After, _) => {}
            (EditState::Foreign, _) => self.warn(format!(
                "{told} of {entry} is removed from the config, but kept, because it was modified \
                 outside machinist"
            )),
        }
    }

    /// Records one change per user, even if several parts of its entry are restored.
    pub(super) fn record_restored(&mut self, entry: DesiredEntry, told: &'static str) {
        let same = self.done.changes.iter_mut();
        let mut same = same
            .filter(|change| change.entry.kind == entry.kind && change.entry.name == entry.name);
        match same.next() {
            Some(change) if change.fields.contains(&told) => {}
            Some(change) => change.fields.push(told),
            None => {
                let what = "removed from the config; the original is restored".to_owned();
                self.tell(entry, ChangeKind::Modify, vec![told], what);
            }
        }
    }
}

pub(super) fn is_line(edit: &Edit, database: Database) -> bool {
    matches!(edit, Edit::Line { .. }) && edit.database() == database
}

/// The line of an entry that did not exist before machinist created it.
pub(super) fn created_line(kept: &Edit) -> Option<&str> {
    match kept {
        Edit::Line {
            before: None,
            after,
            ..
        } => Some(after.as_deref().unwrap_or_default()),
        _ => None,
    }
}

pub(super) fn part(line: &str, index: usize) -> Option<&str> {
    line.split(':').nth(index)
}

/// The user or group that the edit belongs to, and the name of the changed part in messages.
pub(super) fn whose(kept: &Edit) -> (DesiredEntry, &'static str) {
    let origin = EntryOrigin::default();
    match kept {
        Edit::Member { user, .. } => (user_entry(user, &origin), "groups"),
        Edit::Field {
            database: Database::Passwd | Database::Shadow,
            name,
            index,
            ..
        } => {
            let told = match *index {
                field::PASSWORD_FIELD => "password",
                field::GROUP_FIELD => "primaryGroup",
                field::GECOS_FIELD => "gecos",
                _ => "shell",
            };
            (user_entry(name, &origin), told)
        }
        other => (group_entry(other.name(), &origin), "password"),
    }
}

/// Whether the config sets this entry, field or membership.
pub(super) fn speaks_of(to: &MachineConfig, kept: &Edit) -> bool {
    let of_user = |name: &str, says: &dyn Fn(&UserAccount) -> bool| {
        let user = to.users.get(name);
        user.and_then(|user| user.account.as_ref())
            .is_some_and(says)
    };
    match kept {
        Edit::Line { database, name, .. } => {
            let group = matches!(database, Database::Group | Database::Gshadow);
            of_user(name, &|_| true) || (group && to.groups.contains_key(name))
        }
        Edit::Field {
            database: Database::Passwd | Database::Shadow,
            name,
            index,
            ..
        } => of_user(name, &|account| match *index {
            field::PASSWORD_FIELD => account.password_hash.is_some(),
            field::GROUP_FIELD => account.primary_group.is_some(),
            field::GECOS_FIELD => account.gecos.is_some(),
            field::SHELL_FIELD => account.shell.is_some(),
            _ => false,
        }),
        Edit::Field { name, .. } => {
            let group = to.groups.get(name);
            group.is_some_and(|group| group.password_hash.is_some())
        }
        Edit::Member { name, user, .. } => of_user(user, &|account| {
            account.groups.contains(name) || !account.exists()
        }),
    }
}
