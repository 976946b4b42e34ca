//! Parses users and groups; only those that the settings allow are accepted.

use std::collections::BTreeSet;

use super::{
    super::{
        Group, User, UserAccount,
        account::{CORE_USER, overlay_user},
        field_reader::{FieldValue, ObjectReader},
        ignition_dialect::IgnitionDialect,
        parse_context::{ParseContext, insert},
        partial::PartialConfig,
        versioned_field::{VersionedField, is_there, refuse_known},
    },
    accounts::{ACCOUNT_FIELDS, read_account, read_group, read_password},
    butane_local,
};
use machinist_base::reason::Reason;

pub(super) fn read(
    mut passwd: ObjectReader<'_>,
    dialect: IgnitionDialect,
    parts: &mut PartialConfig,
    reading: &mut ParseContext<'_>,
) {
    for field in passwd.items("groups", &mut reading.problems) {
        if let Some((name, group)) = read_one_group(&field, dialect, reading) {
            insert(&mut parts.groups, name, group, &field, reading);
        }
    }
    for field in passwd.items("users", &mut reading.problems) {
        if let Some((name, user)) = read_user(&field, dialect, reading) {
            match parts.users.get_mut(&name) {
                Some(before) if dialect.is_two() => overlay_user(before, user),
                _ => insert(&mut parts.users, name, user, &field, reading),
            }
        }
    }
    passwd.finish(&mut reading.problems);
}

fn read_one_group(
    field: &FieldValue<'_>,
    dialect: IgnitionDialect,
    reading: &mut ParseContext<'_>,
) -> Option<(String, Group)> {
    let mut object = field.object(&mut reading.problems)?;
    let rules = reading.rules;
    let what = "groups that a config may create (setting groups.allowed)";
    let name = read_name(&mut object, &rules.groups, what, "no group", reading);
    let group = read_group(field, &mut object, dialect, reading);
    object.finish(&mut reading.problems);
    Some((name?, group))
}

fn read_user(
    field: &FieldValue<'_>,
    dialect: IgnitionDialect,
    reading: &mut ParseContext<'_>,
) -> Option<(String, User)> {
    let mut object = field.object(&mut reading.problems)?;
    let rules = reading.rules;
    let what = "users that a config may manage (setting users.allowed)";
    let name = read_name(&mut object, &rules.users, what, "no user", reading);
    let account = match name.as_deref() {
        Some(CORE_USER) => of_core(&mut object, dialect, reading),
        _ => of_others(&mut object, dialect, reading),
    };
    if dialect.is_butane() {
        let why = "a password hash must be in the config, not in a local file";
        let known = [VersionedField::new("passwordHashLocal")];
        refuse_known(&mut object, &known, dialect, why, reading);
    }
    let mut user = User {
        account,
        origin: field.origin(&reading.problems),
        ..User::default()
    };
    let key = dialect.key("sshAuthorizedKeys");
    let mut keys = Vec::new();
    for field in object.items(key, &mut reading.problems) {
        if let Some(text) = field.text(&mut reading.problems) {
            keys.extend(read_keys(&field, text, reading));
        }
    }
    if dialect.is_butane() {
        for field in object.items("ssh_authorized_keys_local", &mut reading.problems) {
            if let Some(text) = butane_local::text(&field, reading) {
                let lines = read_keys(&field, &text, reading);
                // Key files may contain comments, which are skipped.
                keys.extend(lines.into_iter().filter(|line| !line.starts_with('#')));
            }
        }
    }
    for key in keys {
        if !user.ssh_authorized_keys.contains(&key) {
            user.ssh_authorized_keys.push(key);
        }
    }
    // An entry with only a name requests the user itself, as in Ignition; an entry with only keys
    // adds keys to an existing user.
    if user.account.is_none()
        && user.ssh_authorized_keys.is_empty()
        && name.as_deref() != Some(CORE_USER)
    {
        user.account = Some(UserAccount::default());
    }
    object.finish(&mut reading.problems);
    Some((name?, user))
}

fn of_core(
    object: &mut ObjectReader<'_>,
    dialect: IgnitionDialect,
    reading: &mut ParseContext<'_>,
) -> Option<UserAccount> {
    let password = read_password(object, dialect, reading);
    let rest: Vec<VersionedField> = ACCOUNT_FIELDS
        .into_iter()
        .filter(|known| known.name != "passwordHash")
        .chain([VersionedField::new("create").three(None)])
        .collect();
    let why = "only SSH keys and the password are managed for user core";
    refuse_known(object, &rest, dialect, why, reading);
    password
}

fn of_others(
    object: &mut ObjectReader<'_>,
    dialect: IgnitionDialect,
    reading: &mut ParseContext<'_>,
) -> Option<UserAccount> {
    let mut account = read_account(object, dialect, reading);
    if let Some(asked) = read_create(object, dialect, reading) {
        account.get_or_insert_default().override_with(asked);
    }
    account
}

/// Ignition 2.0 requested the creation of a user with `create`, which contains the account fields.
fn read_create(
    object: &mut ObjectReader<'_>,
    dialect: IgnitionDialect,
    reading: &mut ParseContext<'_>,
) -> Option<UserAccount> {
    let create = VersionedField::new("create").three(None);
    let create = is_there(object, create, dialect)?;
    let mut inside = create.object(&mut reading.problems)?;
    // Inside `create`, Ignition 2.0 has the fields that 2.1 has in the user itself.
    let mut asked = read_account(&mut inside, IgnitionDialect::Two(1), reading).unwrap_or_default();
    inside.finish(&mut reading.problems);
    asked.should_exist = Some(true);
    Some(asked)
}

fn read_name(
    object: &mut ObjectReader<'_>,
    allowed: &BTreeSet<String>,
    what: &str,
    nobody: &str,
    reading: &mut ParseContext<'_>,
) -> Option<String> {
    let field = object.need("name", &mut reading.problems)?;
    let name = field.text(&mut reading.problems)?;
    if allowed.contains(name) {
        return Some(name.to_owned());
    }
    let allowed: Vec<_> = allowed.iter().map(String::as_str).collect();
    let allowed = match allowed.join(", ") {
        none if none.is_empty() => nobody.to_owned(),
        names => names,
    };
    field.refuse(
        &mut reading.problems,
        Reason::FeatureUnsupported,
        format!("{name:?} is not among the {what}"),
        Some(&allowed),
    );
    None
}

/// The keys of one entry. An entry may contain several pasted lines; each is a key.
fn read_keys(field: &FieldValue<'_>, text: &str, reading: &mut ParseContext<'_>) -> Vec<String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines: Vec<String> = lines.map(str::to_owned).collect();
    if lines.iter().any(|line| line.chars().any(char::is_control)) {
        let message = "the key contains control characters";
        field.refuse(&mut reading.problems, Reason::ValueInvalid, message, None);
        return Vec::new();
    }
    lines
}
