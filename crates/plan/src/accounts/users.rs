//! Plans the users that a config creates, changes or removes.

use super::{AccountDraft, HomeDir, field, id_allocation, is_created_for_keys, user_entry};
use crate::{
    ChangeKind, UserFacts,
    passwd::{Database, DatabaseEntries, Edit},
};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::{EntryOrigin, UserAccount};

/// OpenShift's user; machinist never creates it.
const CORE_USER: &str = "core";

/// The password field of a user without a password: no password matches it. It is not `!`, because
/// sshd without PAM treats `!` as a locked account and then refuses keys as well.
pub(super) const NO_PASSWORD: &str = "*";

/// The password field in /etc/passwd if the hash is in /etc/shadow.
const SHADOW_MARKER: &str = "x";

/// The primary group of users who get no group of their own, as in useradd(8).
const DEFAULT_PRIMARY_GROUP: &str = "users";

/// Numbers below are for system accounts: a group with such a number is not used as a new user's
/// own group.
const MIN_HUMAN_ID: u32 = 1000;

impl AccountDraft<'_> {
    pub(super) fn users(&mut self) {
        let (to, plain) = (self.to, UserAccount::default());
        for (name, user) in &to.users {
            let account = match &user.account {
                Some(account) => account,
                None if is_created_for_keys(to, name, user, self.observed) => &plain,
                None => continue,
            };
            let origin = &user.origin;
            self.warn_of_missing_shell(name, account);
            self.restore_removed_user(name, account);
            let there = self.has(Database::Passwd, name);
            if !there && self.observed.users.contains_key(name) {
                self.refuse_vendors("user", name, "/usr/lib/passwd", origin);
                continue;
            }
            match (account.exists(), there) {
                (true, true) => self.change_user(name, account, origin),
                (true, false) if name == CORE_USER => self.warn(format!(
                    "{}: this machine has no user {name}; the password for {name} is skipped",
                    Reason::UserMissing
                )),
                (true, false) => self.add_user(name, account, origin),
                (false, true) => {
                    let entry = user_entry(name, origin);
                    if self.remove_user(name, origin) {
                        let what = "absent in the config".to_owned();
                        self.tell(entry, ChangeKind::Remove, vec!["uid"], what);
                    }
                }
                (false, false) => {}
            }
        }
    }

    /// Warns of a shell with which sshd and login(1) refuse the user.
    fn warn_of_missing_shell(&mut self, name: &str, account: &UserAccount) {
        let shell = account.shell.as_ref().filter(|_| account.exists());
        let missing = &self.observed.accounts.missing_shells;
        if let Some(shell) = shell.filter(|shell| missing.contains(*shell)) {
            let message = format!(
                "shell {shell} of user {name} is no program on this machine: {name} cannot log in"
            );
            self.warn(message);
        }
    }

    fn add_user(&mut self, name: &str, asked: &UserAccount, origin: &EntryOrigin) {
        let system = asked.system == Some(true);
        let Some(uid) = self.new_uid(name, asked, origin) else {
            return;
        };
        let Some((gid, group)) = self.primary_group(name, asked, uid, origin) else {
            return;
        };
        let home = asked
            .home_dir
            .clone()
            .or_else(|| AbsPath::new(format!("/home/{name}")).ok());
        let Some(home) = home else { return };
        self.put_user(name, asked, (uid, gid), &home, origin);
        let account = UserFacts {
            uid,
            gid,
            home: Some(home.clone()),
        };
        let mut fields = vec!["uid", "primaryGroup", "home", "shell"];
        fields.extend(asked.gecos.as_ref().map(|_| "gecos"));
        fields.extend(asked.password_hash.as_ref().map(|_| "password"));
        if self.join(name, asked, origin) {
            fields.push("groups");
        }
        let entry = user_entry(name, origin);
        if !system && asked.no_create_home != Some(true) {
            self.done.homes.push(HomeDir {
                path: home.clone(),
                account: account.clone(),
                entry: entry.clone(),
            });
        }
        self.done.users.insert(name.to_owned(), account);
        let shell = asked.shell.as_ref().map(AbsPath::as_str);
        let shell = shell.unwrap_or(&self.observed.accounts.shell);
        let more = match asked.groups.as_slice() {
            [] => String::new(),
            groups => format!(", also in {}", groups.join(", ")),
        };
        let what =
            format!("new, uid {uid}, group {group} ({gid}){more}, home {home}, shell {shell}");
        self.tell(entry, ChangeKind::Create, fields, what);
    }

    fn new_uid(&mut self, name: &str, asked: &UserAccount, origin: &EntryOrigin) -> Option<u32> {
        let found = match asked.uid {
            Some(uid) => match self.whose_uid(uid) {
                None => return Some(uid),
                Some(other) => format!("uid {uid} of user {name} is already used by {other}"),
            },
            None => match self.numbers.user(asked.system == Some(true)) {
                Some(uid) => return Some(uid),
                None => format!("no free uid for user {name}"),
            },
        };
        self.refuse(Reason::ValueInvalid, found, origin);
        None
    }

    fn whose_uid(&self, uid: u32) -> Option<String> {
        let all = self.observed.users.iter().chain(&self.done.users);
        let mut same = all.filter(|(_, account)| account.uid == uid);
        same.next().map(|(name, _)| name.clone())
    }

    /// The primary group of a new user: the named group, the common group, or a group of its own.
    fn primary_group(
        &mut self,
        name: &str,
        asked: &UserAccount,
        uid: u32,
        origin: &EntryOrigin,
    ) -> Option<(u32, String)> {
        let common = asked.no_user_group == Some(true);
        let common = common.then(|| DEFAULT_PRIMARY_GROUP.to_owned());
        if let Some(group) = asked.primary_group.clone().or(common) {
            return Some((self.gid_of(&group, name, origin)?, group));
        }
        let system = asked.system == Some(true);
        if self.observed.groups.contains_key(name) || self.done.groups.contains_key(name) {
            let gid = self.gid_of(name, name, origin)?;
            let of_people = gid >= MIN_HUMAN_ID || self.to.groups.contains_key(name);
            if system || of_people {
                return Some((gid, name.to_owned()));
            }
            let message = format!(
                "cannot create a group for user {name}: a system group {name} exists; set \
                 primaryGroup"
            );
            self.refuse(Reason::ForeignContent, message, origin);
            return None;
        }
        let Some(gid) = self.numbers.group(Some(uid), system) else {
            let message = format!("no free gid for the group of user {name}");
            self.refuse(Reason::ValueInvalid, message, origin);
            return None;
        };
        self.put_group(name, gid, None);
        Some((gid, name.to_owned()))
    }

    fn gid_of(&mut self, group: &str, user: &str, origin: &EntryOrigin) -> Option<u32> {
        let made = self.done.groups.get(group);
        let gid = made.or_else(|| self.observed.groups.get(group)).copied();
        if gid.is_none() {
            let message = format!("user {user}: this machine has no group {group:?}");
            self.refuse(Reason::FileOwnerUnknown, message, origin);
        }
        gid
    }

    fn put_user(
        &mut self,
        name: &str,
        asked: &UserAccount,
        (uid, gid): (u32, u32),
        home: &AbsPath,
        origin: &EntryOrigin,
    ) {
        let shadowed = self.now.contains_key(&Database::Shadow);
        let hash = asked.password_hash.as_ref().map(|hash| hash.reveal());
        if hash.is_some() && !shadowed {
            self.refuse_open_password(name, Database::Shadow, origin);
        }
        let mark = if shadowed { SHADOW_MARKER } else { NO_PASSWORD };
        let gecos = asked.gecos.as_deref().unwrap_or_default();
        let shell = asked.shell.as_ref().map(AbsPath::as_str);
        let shell = shell.unwrap_or(&self.observed.accounts.shell);
        let line = format!("{name}:{mark}:{uid}:{gid}:{gecos}:{home}:{shell}");
        let line = DatabaseEntries::text_of(&line);
        self.put(Edit::made(Database::Passwd, name, line));
        if !self.has(Database::Shadow, name) {
            let line = shadow_line(name, hash);
            self.put(Edit::made(Database::Shadow, name, line));
        } else if let Some(hash) = hash {
            self.set(Database::Shadow, name, field::PASSWORD_FIELD, hash);
        }
        if asked.system != Some(true) {
            for database in [Database::Subuid, Database::Subgid] {
                self.put_range(database, name);
            }
        }
    }

    fn put_range(&mut self, database: Database, name: &str) {
        let Some(there) = self.now.get(&database).filter(|now| !now.has(name)) else {
            return;
        };
        if let Some((first, count)) = id_allocation::range(database, there) {
            let line = format!("{name}:{first}:{count}");
            self.put(Edit::made(database, name, line));
        } else {
            let file = database.as_str();
            self.warn(format!(
                "{file} has no free range for {name}, which gets no subordinate IDs"
            ));
        }
    }

    /// Adds the user to the requested groups. Returns whether that changes anything.
    fn join(&mut self, name: &str, asked: &UserAccount, origin: &EntryOrigin) -> bool {
        let mut changed = false;
        for group in &asked.groups {
            if self
                .to
                .groups
                .get(group)
                .is_some_and(|group| !group.exists())
            {
                let message = format!(
                    "user {name} cannot be a member of group {group}, which the config removes"
                );
                self.refuse(Reason::ValueInvalid, message, origin);
            } else if self.has(Database::Group, group) {
                changed |= self.set_member(group, name, true);
            } else if self.observed.groups.contains_key(group) {
                self.refuse_vendors("group", group, "/usr/lib/group", origin);
            } else {
                // The entries of several configs are merged, so that the place in the list is not known.
                let field = origin
                    .field
                    .as_ref()
                    .map(|user| format!("{user}.groups").into());
                let origin = EntryOrigin {
                    field,
                    ..origin.clone()
                };
                self.gid_of(group, name, &origin);
            }
        }
        changed
    }

    fn change_user(&mut self, name: &str, asked: &UserAccount, origin: &EntryOrigin) {
        let database = Database::Passwd;
        let Some(uid) = self.id(database, name) else {
            let message = format!("the entry of user {name} in /etc/passwd cannot be read");
            return self.refuse(Reason::ForeignContent, message, origin);
        };
        if uid == 0 {
            let message = format!("user {name} has uid 0; only SSH keys are managed for root");
            return self.refuse(Reason::FeatureUnsupported, message, origin);
        }
        self.refuse_moves(name, asked, uid, origin);
        let mut fields = Vec::new();
        let gid = asked.primary_group.as_ref();
        let gid = gid.and_then(|group| self.gid_of(group, name, origin));
        for (index, value, told) in [
            (
                field::GROUP_FIELD,
                gid.map(|gid| gid.to_string()),
                "primaryGroup",
            ),
            (field::GECOS_FIELD, asked.gecos.clone(), "gecos"),
            (
                field::SHELL_FIELD,
                asked.shell.as_ref().map(ToString::to_string),
                "shell",
            ),
        ] {
            if let Some(value) = value
                && self.set(database, name, index, &value) == Some(true)
            {
                fields.push(told);
            }
        }
        if let Some(hash) = &asked.password_hash {
            match self.set_password(name, hash.reveal()) {
                Some(true) => fields.push("password"),
                Some(false) => {}
                None => self.refuse_open_password(name, Database::Shadow, origin),
            }
        }
        if self.join(name, asked, origin) {
            fields.push("groups");
        }
        if !fields.is_empty() {
            let verb = if fields.len() == 1 {
                "differs"
            } else {
                "differ"
            };
            let what = format!("{} {verb}", fields.join(" and "));
            self.tell(user_entry(name, origin), ChangeKind::Modify, fields, what);
        }
    }

    /// Sets the password of an existing user. Returns whether that is a change, or none if the hash
    /// would be visible to every reader of /etc/passwd.
    fn set_password(&mut self, name: &str, hash: &str) -> Option<bool> {
        let there = self.now.get(&Database::Shadow)?;
        if there.has(name) {
            return self.set(Database::Shadow, name, field::PASSWORD_FIELD, hash);
        }
        let line = shadow_line(name, Some(hash));
        self.put(Edit::made(Database::Shadow, name, line));
        self.set(Database::Passwd, name, field::PASSWORD_FIELD, SHADOW_MARKER)?;
        Some(true)
    }

    /// Refuses to change the number or home of a user, who would lose access to their files.
    fn refuse_moves(&mut self, name: &str, asked: &UserAccount, uid: u32, origin: &EntryOrigin) {
        if let Some(wanted) = asked.uid.filter(|wanted| *wanted != uid) {
            let message = format!(
                "the uid of user {name} cannot be changed from {uid} to \
                 {wanted}"
            );
            self.refuse(Reason::ValueInvalid, message, origin);
        }
        let home = self.field(Database::Passwd, name, field::HOME_FIELD);
        let home = home.unwrap_or_default();
        if let Some(wanted) = asked.home_dir.as_ref().filter(|path| path.as_str() != home) {
            let message =
                format!("the home of user {name} cannot be changed from {home} to {wanted}");
            self.refuse(Reason::ValueInvalid, message, origin);
        }
    }

    /// Removes a user from all databases, together with a group that only this user had. Returns
    /// false if that is refused.
    pub(super) fn remove_user(&mut self, name: &str, origin: &EntryOrigin) -> bool {
        if self.id(Database::Passwd, name).is_none_or(|uid| uid == 0) {
            let message = format!(
                "user {name} cannot be removed: it is root, or its entry cannot \
                 be read"
            );
            self.refuse(Reason::ForeignContent, message, origin);
            return false;
        }
        let gid = self.field(Database::Passwd, name, field::GROUP_FIELD);
        let home = self.field(Database::Passwd, name, field::HOME_FIELD);
        for database in [
            Database::Passwd,
            Database::Shadow,
            Database::Subuid,
            Database::Subgid,
        ] {
            self.remove_lines(database, name);
        }
        for group in self.groups_of(name) {
            self.set_member(&group, name, false);
        }
        let own = self.field(Database::Group, name, field::ID_FIELD);
        let members = self.now.get(&Database::Group);
        let members = members
            .and_then(|now| now.members(name))
            .map(|all| all.len());
        let free = |gid: &String| gid.parse().is_ok_and(|gid| !self.is_primary(gid));
        if own == gid
            && members == Some(0)
            && own.as_ref().is_some_and(free)
            && !self.to.groups.contains_key(name)
        {
            self.remove_group(name);
        }
        self.done.gone.insert(name.to_owned());
        let home = home.and_then(|home| AbsPath::new(home).ok());
        if let Some(home) = home.filter(|home| *home != AbsPath::root()) {
            self.warn(format!(
                "user {name} is removed; its home directory {home} is kept if it exists"
            ));
        }
        true
    }

    fn groups_of(&self, user: &str) -> Vec<String> {
        let mut groups = Vec::new();
        for database in [Database::Group, Database::Gshadow] {
            let rows = self.now.get(&database).into_iter();
            let rows = rows.flat_map(|now| now.rows(database));
            let of = rows.filter(|row| row[3].split(',').any(|member| member == user));
            groups.extend(of.map(|row| row[0].to_owned()));
        }
        groups.sort();
        groups.dedup();
        groups
    }
}

/// A shadow entry without password ageing. Ageing needs the day of the last change, and a plan does
/// not depend on the date.
fn shadow_line(name: &str, hash: Option<&str>) -> String {
    format!("{name}:{}:::::::", hash.unwrap_or(NO_PASSWORD))
}
