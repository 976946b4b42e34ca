//! Entries that the config does not speak of any more: what machinist made goes, what it changed
//! becomes what it was, unless somebody else has changed it since.

use super::{Draft, field, group_entry, user_entry};
use crate::{
    machine_config::{MachineConfig, Origin, UserAccount},
    plan::{
        ChangeKind,
        databases::{Database, Edit, Standing},
        desired::Entry,
    },
};

impl Draft<'_> {
    pub(super) fn leave(&mut self) {
        let left: Vec<&Edit> = self
            .observed
            .accounts
            .kept
            .iter()
            .filter(|kept| !speaks_of(self.to, kept))
            .collect();
        for kept in &left {
            if is_line(kept, Database::Passwd) {
                self.user_leaves(kept);
            }
        }
        for kept in &left {
            if !matches!(kept, Edit::Line { .. }) {
                self.part_returns(kept);
            }
        }
        for kept in &left {
            if is_line(kept, Database::Group) {
                self.group_leaves(kept);
            }
        }
        for kept in &left {
            self.companion_returns(kept);
        }
        self.done.let_go = left.iter().map(|kept| kept.place()).collect();
    }

    /// A user whom machinist made goes; one whom it removed comes back.
    fn user_leaves(&mut self, kept: &Edit) {
        let name = kept.name();
        let origin = Origin::default();
        let Some(line) = made_by_us(kept) else {
            return self.line_returns(kept, user_entry(name, &origin));
        };
        if !self.has(Database::Passwd, name) {
            return;
        }
        if self.field(Database::Passwd, name, field::ID).as_deref() != part(line, field::ID) {
            return self.warn(format!(
                "user {name} leaves the config, but has another number than machinist gave: left \
                 as it is"
            ));
        }
        if self.remove_user(name, &origin) {
            let what = "leaves the config".to_owned();
            let entry = user_entry(name, &origin);
            self.tell(entry, ChangeKind::Remove, vec!["uid"], what);
        }
    }

    fn group_leaves(&mut self, kept: &Edit) {
        let name = kept.name();
        let entry = group_entry(name, &Origin::default());
        let Some(line) = made_by_us(kept) else {
            return self.line_returns(kept, entry);
        };
        let Some(gid) = self.id(Database::Group, name) else {
            return;
        };
        let now = self.now.get(&Database::Group);
        let members = now.and_then(|now| now.members(name)).unwrap_or_default();
        let why = if part(line, field::ID) != Some(gid.to_string().as_str()) {
            "has another number than machinist gave"
        } else if self.is_primary(gid) || !members.is_empty() {
            "users are in it"
        } else {
            self.remove_group(name);
            let what = "leaves the config".to_owned();
            return self.tell(entry, ChangeKind::Remove, vec!["gid"], what);
        };
        self.warn(format!(
            "group {name} leaves the config, but {why}: it stays"
        ));
    }

    /// An entry that machinist removed comes back, unless its name or number is somebody's by now.
    fn line_returns(&mut self, kept: &Edit, entry: Entry) {
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
        let same = |row: &Vec<&str>| Some(row[field::ID]) == part(line, field::ID);
        let now = self.now.get(&database);
        if now.is_some_and(|now| now.rows(database).any(|row| same(&row))) {
            return self.warn(format!(
                "{entry} is not unwanted any more, but its number is somebody else's: it does not \
                 come back"
            ));
        }
        self.put(back);
        let what = "is not unwanted any more and comes back".to_owned();
        self.tell(entry, ChangeKind::Create, vec!["uid"], what);
    }

    /// What belonged to an entry that came back; and what was made for one that stays.
    fn companion_returns(&mut self, kept: &Edit) {
        let (database, name) = (kept.database(), kept.name());
        let Some(owner) = database.owner().filter(|_| is_line(kept, database)) else {
            return;
        };
        let made = made_by_us(kept).is_some();
        let came_back =
            |edit: &Edit| edit.database() == owner && edit.name() == name && !edit.takes_away();
        let back = kept.reversed();
        let there = self.now.get(&database);
        let free = there.is_some_and(|there| back.standing(there) == Standing::Before);
        // One whose owner is ours as well stays or goes with that.
        let of_ours =
            |one: &Edit| is_line(one, owner) && one.name() == name && made_by_us(one).is_some();
        let ours = self.observed.accounts.kept.iter().any(of_ours);
        let stays = made && !ours && self.has(owner, name);
        if free && (stays || !made && self.done.edits.iter().any(came_back)) {
            self.put(back);
        }
    }

    /// A field or membership becomes what it was.
    fn part_returns(&mut self, kept: &Edit) {
        let (database, name) = (kept.database(), kept.name());
        let Some(there) = self.now.get(&database).filter(|now| now.has(name)) else {
            return;
        };
        let back = kept.reversed();
        let (entry, told) = whose(kept);
        match (back.standing(there), kept) {
            (Standing::Before, Edit::Member { user, after, .. }) => {
                // Whoever has gone does not come back into a group.
                if *after || self.has(Database::Passwd, user) {
                    self.put(back);
                    self.tell_return(entry, told);
                }
            }
            (Standing::Before, _) => {
                self.put(back);
                self.tell_return(entry, told);
            }
            (Standing::After, _) => {}
            (Standing::Foreign, _) => self.warn(format!(
                "{told} of {entry} leaves the config, but was changed by somebody else: left as \
                 it is"
            )),
        }
    }

    /// One change for a user, however many of its parts go back.
    fn tell_return(&mut self, entry: Entry, told: &'static str) {
        let same = self.done.changes.iter_mut();
        let mut same = same
            .filter(|change| change.entry.kind == entry.kind && change.entry.name == entry.name);
        match same.next() {
            Some(change) if change.fields.contains(&told) => {}
            Some(change) => change.fields.push(told),
            None => {
                let what = "leaves the config; what was there before comes back".to_owned();
                self.tell(entry, ChangeKind::Modify, vec![told], what);
            }
        }
    }
}

fn is_line(edit: &Edit, database: Database) -> bool {
    matches!(edit, Edit::Line { .. }) && edit.database() == database
}

/// The line of an entry that was not there before machinist.
fn made_by_us(kept: &Edit) -> Option<&str> {
    match kept {
        Edit::Line {
            before: None,
            after,
            ..
        } => Some(after.as_deref().unwrap_or_default()),
        _ => None,
    }
}

fn part(line: &str, index: usize) -> Option<&str> {
    line.split(':').nth(index)
}

/// Whose part it is, and what people call it.
fn whose(kept: &Edit) -> (Entry, &'static str) {
    let origin = Origin::default();
    match kept {
        Edit::Member { user, .. } => (user_entry(user, &origin), "groups"),
        Edit::Field {
            database: Database::Passwd | Database::Shadow,
            name,
            index,
            ..
        } => {
            let told = match *index {
                field::PASSWORD => "password",
                field::GROUP => "primaryGroup",
                field::GECOS => "gecos",
                _ => "shell",
            };
            (user_entry(name, &origin), told)
        }
        other => (group_entry(other.name(), &origin), "password"),
    }
}

/// Whether the config says what this entry, field or membership should be.
fn speaks_of(to: &MachineConfig, kept: &Edit) -> bool {
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
            field::PASSWORD => account.password_hash.is_some(),
            field::GROUP => account.primary_group.is_some(),
            field::GECOS => account.gecos.is_some(),
            field::SHELL => account.shell.is_some(),
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
