//! Users and groups as entries of the machine's databases: what a config asks of them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{MachineConfig, Origin, User};
use crate::path::AbsPath;

/// What a config asks of a user beyond the keys. What is not said is left as it is, and chosen as
/// useradd(8) does for a user who is new.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct UserAccount {
    /// The number; only for a user who is new.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The comment: full name and the like.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gecos: Option<String>,
    /// The home directory; only for a user who is new.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub home_dir: Option<AbsPath>,
    /// Whether the home directory of a new user is left to somebody else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_create_home: Option<bool>,
    /// The primary group, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary_group: Option<String>,
    /// Groups that the user is a member of, besides those that others put it into.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Whether a new user gets no group of its own name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_user_group: Option<bool>,
    /// The login shell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<AbsPath>,
    /// Whether a new user is one of the system: a low number and no home directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<bool>,
    /// The hashed password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_hash: Option<PasswordHash>,
    /// False: the user is not to be there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub should_exist: Option<bool>,
}

/// What a config asks of a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Group {
    /// The number; only for a group that is new.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// The hashed password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_hash: Option<PasswordHash>,
    /// Whether a new group is one of the system: a low number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<bool>,
    /// False: the group is not to be there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub should_exist: Option<bool>,
    /// Where it was written.
    #[serde(skip)]
    pub origin: Origin,
}

/// A hashed password as crypt(5) writes it. A secret: whoever has it can try passwords against it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PasswordHash(String);

impl PasswordHash {
    /// What a hash looks like, for messages.
    pub const EXPECTED: &'static str =
        "a hash that begins with $ (mkpasswd makes one), or ! or * for none that matches";

    /// Takes what crypt(5) may have made, and the marks for "no password fits". A password that
    /// somebody forgot to hash is none of these.
    pub fn new(text: &str) -> Option<Self> {
        let graphic = |c: char| c.is_ascii_graphic() && c != ':';
        let known = text.starts_with(['$', '!', '*', '_']) && text != "$";
        (known && text.chars().all(graphic)).then(|| Self(text.to_owned()))
    }

    /// The hash itself, for the database and nothing else.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

/// Never the hash.
impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash(…)")
    }
}

/// Keeps what `above` does not say.
fn keep<T>(below: &mut Option<T>, above: Option<T>) {
    if above.is_some() {
        *below = above;
    }
}

/// Appends what is not there yet.
fn append(below: &mut Vec<String>, above: Vec<String>) {
    for item in above {
        if !below.contains(&item) {
            below.push(item);
        }
    }
}

/// Lays one document's word on a user over what the documents before it said.
pub(super) fn lay_over_user(below: &mut User, above: User) {
    append(&mut below.ssh_authorized_keys, above.ssh_authorized_keys);
    if let Some(above) = above.account {
        below
            .account
            .get_or_insert_with(UserAccount::default)
            .lay_over(above);
    }
    below.origin = above.origin;
}

impl UserAccount {
    pub(super) fn lay_over(&mut self, above: Self) {
        keep(&mut self.uid, above.uid);
        keep(&mut self.gecos, above.gecos);
        keep(&mut self.home_dir, above.home_dir);
        keep(&mut self.no_create_home, above.no_create_home);
        keep(&mut self.primary_group, above.primary_group);
        append(&mut self.groups, above.groups);
        keep(&mut self.no_user_group, above.no_user_group);
        keep(&mut self.shell, above.shell);
        keep(&mut self.system, above.system);
        keep(&mut self.password_hash, above.password_hash);
        keep(&mut self.should_exist, above.should_exist);
    }

    /// One spelling for one request: what is the default anyway was not said.
    fn settled(mut self) -> Self {
        for flag in [
            &mut self.no_create_home,
            &mut self.no_user_group,
            &mut self.system,
        ] {
            *flag = flag.filter(|flag| *flag);
        }
        self.should_exist = Some(self.should_exist.unwrap_or(true));
        self.groups.sort();
        self
    }

    /// Whether the user is to be there.
    pub fn exists(&self) -> bool {
        self.should_exist != Some(false)
    }
}

impl Group {
    pub(super) fn lay_over(&mut self, above: Self) {
        keep(&mut self.gid, above.gid);
        keep(&mut self.password_hash, above.password_hash);
        keep(&mut self.system, above.system);
        keep(&mut self.should_exist, above.should_exist);
        self.origin = above.origin;
    }

    pub(super) fn settled(mut self) -> Self {
        self.system = self.system.filter(|flag| *flag);
        self.should_exist = self.should_exist.filter(|flag| !*flag);
        self
    }

    /// Whether the group is to be there.
    pub fn exists(&self) -> bool {
        self.should_exist != Some(false)
    }
}

impl User {
    pub(super) fn settled(mut self) -> Self {
        self.account = self.account.map(UserAccount::settled);
        self
    }
}

impl MachineConfig {
    /// Whether it asks for anything in the databases of users and groups.
    pub fn speaks_of_accounts(&self) -> bool {
        !self.groups.is_empty() || self.users.values().any(|user| user.account.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_that_nobody_hashed_is_no_hash() {
        for good in [
            "$6$salt$x",
            "$y$j9T$a$b",
            "!",
            "*",
            "!$6$salt$x",
            "_J9..abc",
        ] {
            assert!(PasswordHash::new(good).is_some(), "{good}");
        }
        for bad in ["", "$", "secret", "$6$a:b", "$6$a\n", "$6$ä", "$6$ a"] {
            assert!(PasswordHash::new(bad).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn a_hash_is_not_shown() {
        let hash = PasswordHash::new("$6$salt$hidden").unwrap();
        let account = UserAccount {
            password_hash: Some(hash),
            ..UserAccount::default()
        };
        assert!(!format!("{account:?}").contains("hidden"));
    }
}
