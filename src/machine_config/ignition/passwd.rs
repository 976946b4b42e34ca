//! Users: the keys of those who are allowed, and nothing else.

use super::{
    super::{
        User,
        document::Reading,
        parts::Parts,
        reader::{Field, Object},
    },
    Dialect, Known, insert, refuse_known,
};
use crate::reason::Reason;

/// Everything else that Ignition can say of a user.
const OTHER_FIELDS: [Known; 13] = [
    ("gecos", 0),
    ("groups", 0),
    ("homeDir", 0),
    ("noCreateHome", 0),
    ("noLogInit", 0),
    ("noUserGroup", 0),
    ("passwordHash", 0),
    ("primaryGroup", 0),
    ("shell", 0),
    ("shouldExist", 2),
    ("system", 0),
    ("uid", 0),
    // Butane only; Ignition has refused it as unknown before this list is asked.
    ("sshAuthorizedKeysLocal", 0),
];

pub(super) fn read(
    mut passwd: Object<'_>,
    dialect: Dialect,
    parts: &mut Parts,
    reading: &mut Reading<'_>,
) {
    let why = "only the keys of users that exist are managed";
    refuse_known(&mut passwd, &[("groups", 0)], dialect, why, reading);
    for field in passwd.items("users", &mut reading.problems) {
        if let Some((name, user)) = read_user(&field, dialect, reading) {
            insert(&mut parts.users, name, user, &field, reading);
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
    let known = match dialect {
        Dialect::Butane => &OTHER_FIELDS[..],
        Dialect::Ignition(_) => &OTHER_FIELDS[..OTHER_FIELDS.len() - 1],
    };
    let why = "of a user only its keys are managed";
    refuse_known(&mut object, known, dialect, why, reading);
    let mut user = User {
        origin: field.origin(&reading.problems),
        ..User::default()
    };
    let key = dialect.key("sshAuthorizedKeys");
    for field in object.items(&key, &mut reading.problems) {
        for line in read_keys(&field, reading) {
            if !user.ssh_authorized_keys.contains(&line) {
                user.ssh_authorized_keys.push(line);
            }
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
fn read_keys(field: &Field<'_>, reading: &mut Reading<'_>) -> Vec<String> {
    let Some(text) = field.text(&mut reading.problems) else {
        return Vec::new();
    };
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines: Vec<String> = lines.map(str::to_owned).collect();
    if lines.iter().any(|line| line.chars().any(char::is_control)) {
        let message = "the key holds control characters";
        field.refuse(&mut reading.problems, Reason::ValueInvalid, message, None);
        return Vec::new();
    }
    lines
}
