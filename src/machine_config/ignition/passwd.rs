//! Users: the keys of those who are allowed, and nothing else.

use super::{
    super::{
        User,
        document::Reading,
        merge::add_keys,
        parts::Parts,
        reader::{Field, Object},
    },
    Dialect, Known, insert, local, refuse_known,
};
use crate::reason::Reason;

/// Everything else that Ignition can say of a user. Ignition 2.0 said most of it below `create`.
const OTHER_FIELDS: [Known; 13] = [
    Known::new("create").three(None),
    since_two_one("gecos"),
    since_two_one("groups"),
    since_two_one("homeDir"),
    since_two_one("noCreateHome"),
    since_two_one("noLogInit"),
    since_two_one("noUserGroup"),
    Known::new("passwordHash"),
    since_two_one("primaryGroup"),
    since_two_one("shell"),
    Known::new("shouldExist").two(None).three(Some(2)),
    since_two_one("system"),
    since_two_one("uid"),
];

const fn since_two_one(name: &'static str) -> Known {
    Known::new(name).two(Some(1))
}

pub(super) fn read(
    mut passwd: Object<'_>,
    dialect: Dialect,
    parts: &mut Parts,
    reading: &mut Reading<'_>,
) {
    let why = "only the keys of users that exist are managed";
    refuse_known(&mut passwd, &[Known::new("groups")], dialect, why, reading);
    for field in passwd.items("users", &mut reading.problems) {
        if let Some((name, user)) = read_user(&field, dialect, reading) {
            match parts.users.get_mut(&name) {
                Some(before) if dialect.is_two() => add_keys(before, user),
                _ => insert(&mut parts.users, name, user, &field, reading),
            }
        }
    }
    passwd.finish(&mut reading.problems);
}

fn read_user(
    field: &Field<'_>,
    dialect: Dialect,
    reading: &mut Reading<'_>,
) -> Option<(String, User)> {
    let mut object = field.object(&mut reading.problems)?;
    let name = read_name(&mut object, reading);
    let why = "of a user only its keys are managed";
    refuse_known(&mut object, &OTHER_FIELDS, dialect, why, reading);
    let mut user = User {
        origin: field.origin(&reading.problems),
        ..User::default()
    };
    let key = dialect.key("sshAuthorizedKeys");
    let mut keys = Vec::new();
    for field in object.items(&key, &mut reading.problems) {
        if let Some(text) = field.text(&mut reading.problems) {
            keys.extend(read_keys(&field, text, reading));
        }
    }
    if dialect == Dialect::Butane {
        for field in object.items("ssh_authorized_keys_local", &mut reading.problems) {
            if let Some(text) = local::text(&field, reading) {
                let lines = read_keys(&field, &text, reading);
                // Files with keys may hold comments, which are none.
                keys.extend(lines.into_iter().filter(|line| !line.starts_with('#')));
            }
        }
    }
    for key in keys {
        if !user.ssh_authorized_keys.contains(&key) {
            user.ssh_authorized_keys.push(key);
        }
    }
    object.finish(&mut reading.problems);
    Some((name?, user))
}

fn read_name(object: &mut Object<'_>, reading: &mut Reading<'_>) -> Option<String> {
    let field = object.need("name", &mut reading.problems)?;
    let name = field.text(&mut reading.problems)?;
    if reading.rules.users.contains(name) {
        return Some(name.to_owned());
    }
    let allowed: Vec<_> = reading.rules.users.iter().map(String::as_str).collect();
    let allowed = match allowed.join(", ") {
        none if none.is_empty() => "no user".to_owned(),
        names => names,
    };
    field.refuse(
        &mut reading.problems,
        Reason::FeatureUnsupported,
        format!("{name:?} is not among the users whose keys are managed"),
        Some(&allowed),
    );
    None
}

/// The keys of one entry. People paste several lines into one; each is a key.
fn read_keys(field: &Field<'_>, text: &str, reading: &mut Reading<'_>) -> Vec<String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines: Vec<String> = lines.map(str::to_owned).collect();
    if lines.iter().any(|line| line.chars().any(char::is_control)) {
        let message = "the key holds control characters";
        field.refuse(&mut reading.problems, Reason::ValueInvalid, message, None);
        return Vec::new();
    }
    lines
}
