//! Defines the users and groups of a config as entries of the machine's account databases.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::EntryOrigin;
use machinist_base::abs_path::AbsPath;

/// The one user of OpenShift's nodes: only its keys and password are managed, and it is never
/// created. OpenShift refuses configs with other settings as well.
pub(super) const CORE_USER: &str = "core";

/// OpenShift's user, and the one that every machine has.
const NEVER_CREATED: [&str; 2] = [CORE_USER, "root"];

/// The settings of a user in a config.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct User {
    /// Public keys, one line each, in the order given.
    pub ssh_authorized_keys: Vec<String>,
    /// The account settings; none leaves the entries of an existing user unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<UserAccount>,
    /// The place of the entry in the source text.
    #[serde(skip)]
    pub origin: EntryOrigin,
}

/// The desired account of a user, without the SSH keys. Absent fields leave an existing user
/// unchanged; for a new user they get the defaults of useradd(8).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct UserAccount {
    /// The uid; used only if the user is new.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The comment field (GECOS), such as the full name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gecos: Option<String>,
    /// The home directory; used only if the user is new.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub home_dir: Option<AbsPath>,
    /// Whether the home directory of a new user is not created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_create_home: Option<bool>,
    /// The primary group, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub primary_group: Option<String>,
    /// Groups that the user is a member of; memberships in other groups stay.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Whether a new user gets no group of its own name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_user_group: Option<bool>,
    /// The login shell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<AbsPath>,
    /// Whether a new user is a system account: a low number and no home directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<bool>,
    /// The hashed password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_hash: Option<PasswordHash>,
    /// False: the user must not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub should_exist: Option<bool>,
}

/// A group of a config.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Group {
    /// The gid; used only if the group is new.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// The hashed password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_hash: Option<PasswordHash>,
    /// Whether a new group is a system group: a low number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<bool>,
    /// False: the group must not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub should_exist: Option<bool>,
    /// The place of the entry in the source text.
    #[serde(skip)]
    pub origin: EntryOrigin,
}

/// A password hash in the format of crypt(5). Treat it as a secret: it allows guessing the password
/// offline.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PasswordHash(String);

impl PasswordHash {
    /// The expected form of a hash, for messages.
    pub const EXPECTED: &'static str =
        "a hash that begins with $ (mkpasswd makes one), or ! or * for none that matches";

    /// Accepts output of crypt(5), and the marks for "no password matches". A password that was
    /// left unhashed by mistake is neither.
    pub fn new(text: &str) -> Option<Self> {
        let graphic = |c: char| c.is_ascii_graphic() && c != ':';
        let known = text.starts_with(['$', '!', '*', '_']) && text != "$";
        (known && text.chars().all(graphic)).then(|| Self(text.to_owned()))
    }

    /// The mark that no password matches.
    pub fn locked() -> Self {
        Self("*".to_owned())
    }

    /// The hash itself, to be written to the database only.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

/// Never prints the hash.
impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash(…)")
    }
}

/// Overrides a value with that of a later document, if that one sets it.
fn keep<T>(below: &mut Option<T>, above: Option<T>) {
    if above.is_some() {
        *below = above;
    }
}

/// Appends the values that are not in the list yet.
fn append(below: &mut Vec<String>, above: Vec<String>) {
    for item in above {
        if !below.contains(&item) {
            below.push(item);
        }
    }
}

/// Overlays a later document's fields on a user of the earlier documents.
pub(super) fn overlay_user(below: &mut User, above: User) {
    append(&mut below.ssh_authorized_keys, above.ssh_authorized_keys);
    if let Some(above) = above.account {
        below
            .account
            .get_or_insert_with(UserAccount::default)
            .override_with(above);
    }
    below.origin = above.origin;
}

impl UserAccount {
    pub(super) fn override_with(&mut self, above: Self) {
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

    /// Normalises the account so that equal requests have equal digests: flags with the default
    /// value become absent, `should_exist` becomes explicit, and groups are sorted.
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

    /// Whether the user must exist.
    pub fn exists(&self) -> bool {
        self.should_exist != Some(false)
    }
}

impl Group {
    pub(super) fn override_with(&mut self, above: Self) {
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

    /// Whether the group must exist.
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

impl User {
    /// Whether an entry that gives only keys creates the user where it is missing, as in Ignition.
    pub fn is_created_for_keys(&self, name: &str) -> bool {
        let others = !NEVER_CREATED.contains(&name);
        others && self.account.is_none() && !self.ssh_authorized_keys.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_text_password_is_rejected_as_a_hash() {
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
    fn a_password_hash_is_hidden_in_debug_output() {
        let hash = PasswordHash::new("$6$salt$hidden").unwrap();
        let account = UserAccount {
            password_hash: Some(hash),
            ..UserAccount::default()
        };
        assert!(!format!("{account:?}").contains("hidden"));
    }
}
