//! Plans the groups that a config creates, changes or removes.

use super::{AccountDraft, field, group_entry};
use crate::{
    ChangeKind,
    passwd::{Database, Edit},
};
use machinist_base::reason::Reason;
use machinist_ignition::{EntryOrigin, Group};

/// The password field of a group without a password: no password matches it.
pub(super) const NO_GROUP_PASSWORD: &str = "!";

impl AccountDraft<'_> {
    pub(super) fn make_groups(&mut self) {
        let to = self.to;
        for (name, group) in to.groups.iter().filter(|(_, group)| group.exists()) {
            if self.has(Database::Group, name) {
                self.change_group(name, group);
            } else if self.observed.groups.contains_key(name) {
                self.refuse_vendors("group", name, "/usr/lib/group", &group.origin);
            } else {
                self.add_group(name, group);
            }
        }
    }

    /// Refuses to change an entry below /usr: it belongs to the OS image, and every new image
    /// contains it again.
    pub(super) fn refuse_vendors(
        &mut self,
        what: &str,
        name: &str,
        file: &str,
        origin: &EntryOrigin,
    ) {
        let message = format!(
            "{what} {name} is defined in {file}, which belongs to the operating system and \
                 is not changed"
        );
        self.refuse(Reason::ForeignContent, message, origin);
    }

    fn add_group(&mut self, name: &str, group: &Group) {
        let Some(gid) = self.new_gid(name, group) else {
            return;
        };
        let password = group.password_hash.as_ref().map(|hash| hash.reveal());
        if password.is_some() && !self.now.contains_key(&Database::Gshadow) {
            self.refuse_open_password(name, Database::Gshadow, &group.origin);
        }
        self.put_group(name, gid, password);
        let what = format!("new, gid {gid}");
        let mut fields = vec!["gid"];
        fields.extend(password.map(|_| "password"));
        let entry = group_entry(name, &group.origin);
        self.tell(entry, ChangeKind::Create, fields, what);
    }

    fn new_gid(&mut self, name: &str, group: &Group) -> Option<u32> {
        let found = match group.gid {
            Some(gid) => match self.whose_gid(gid) {
                None => return Some(gid),
                Some(other) => format!("gid {gid} of group {name} is already used by {other}"),
            },
            None => match self.numbers.group(None, group.system == Some(true)) {
                Some(gid) => return Some(gid),
                None => format!("no free gid for group {name}"),
            },
        };
        self.refuse(Reason::ValueInvalid, found, &group.origin);
        None
    }

    fn whose_gid(&self, gid: u32) -> Option<String> {
        let all = self.observed.groups.iter().chain(&self.done.groups);
        let mut same = all.filter(|(_, other)| **other == gid);
        same.next().map(|(name, _)| name.clone())
    }

    /// Password hashes may only be stored in files that only root can read.
    pub(super) fn refuse_open_password(
        &mut self,
        name: &str,
        file: Database,
        origin: &EntryOrigin,
    ) {
        let file = file.as_str();
        let message = format!("the password for {name} needs an entry in {file}");
        self.refuse(Reason::FeatureUnsupported, message, origin);
    }

    /// Adds the entries of a new group. Without a hash the password is locked, so that newgrp(1)
    /// never accepts one.
    pub(super) fn put_group(&mut self, name: &str, gid: u32, password: Option<&str>) {
        let line = format!("{name}:x:{gid}:");
        self.put(Edit::made(Database::Group, name, line));
        if !self.has(Database::Gshadow, name) {
            let line = format!("{name}:{}::", password.unwrap_or(NO_GROUP_PASSWORD));
            self.put(Edit::made(Database::Gshadow, name, line));
        }
        self.done.groups.insert(name.to_owned(), gid);
    }

    fn change_group(&mut self, name: &str, group: &Group) {
        let origin = &group.origin;
        let Some(gid) = self.id(Database::Group, name) else {
            let message = format!("the entry of group {name} in /etc/group cannot be read");
            return self.refuse(Reason::ForeignContent, message, origin);
        };
        if let Some(asked) = group.gid.filter(|asked| *asked != gid) {
            let message = format!(
                "the gid of group {name} cannot be changed from {gid} to \
                 {asked}"
            );
            self.refuse(Reason::ValueInvalid, message, origin);
        }
        let Some(hash) = &group.password_hash else {
            return;
        };
        match self.set(
            Database::Gshadow,
            name,
            field::PASSWORD_FIELD,
            hash.reveal(),
        ) {
            None => self.refuse_open_password(name, Database::Gshadow, origin),
            Some(false) => {}
            Some(true) => {
                let entry = group_entry(name, origin);
                let what = "password differs".to_owned();
                self.tell(entry, ChangeKind::Modify, vec!["password"], what);
            }
        }
    }

    pub(super) fn remove_groups(&mut self) {
        let to = self.to;
        for (name, group) in to.groups.iter().filter(|(_, group)| !group.exists()) {
            if !self.has(Database::Group, name) {
                if self.observed.groups.contains_key(name) && !self.was_removed(name) {
                    self.refuse_vendors("group", name, "/usr/lib/group", &group.origin);
                }
                continue;
            }
            let gid = self.id(Database::Group, name);
            if gid.is_none_or(|gid| gid == 0 || self.is_primary(gid)) {
                let message = format!(
                    "group {name} cannot be removed: it is root's group or the primary group of a \
                     remaining user"
                );
                self.refuse(Reason::ForeignContent, message, &group.origin);
                continue;
            }
            self.remove_group(name);
            let entry = group_entry(name, &group.origin);
            let what = "absent in the config".to_owned();
            self.tell(entry, ChangeKind::Remove, vec!["gid"], what);
        }
    }

    /// Whether this plan has removed the group together with the user whose own group it was.
    fn was_removed(&self, name: &str) -> bool {
        let gone = |edit: &Edit| edit.database() == Database::Group && edit.name() == name;
        self.done.edits.iter().any(gone)
    }

    pub(super) fn remove_group(&mut self, name: &str) {
        for database in [Database::Group, Database::Gshadow] {
            self.remove_lines(database, name);
        }
    }
}
