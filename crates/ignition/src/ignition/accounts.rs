//! Parses the Ignition fields of users, except their keys, and of groups.

use super::super::{
    Group, PasswordHash, UserAccount,
    field_reader::{FieldValue, ObjectReader},
    ignition_dialect::IgnitionDialect,
    parse_context::ParseContext,
    versioned_field::{VersionedField, is_there},
};
use machinist_base::{abs_path::AbsPath, reason::Reason};

/// The maximum length of a name for useradd(8).
const MAX_ACCOUNT_NAME_BYTES: usize = 32;

/// Every field of a user except its name and keys. In Ignition 2.0 most of them were below
/// `create`.
pub(super) const ACCOUNT_FIELDS: [VersionedField; 12] = [
    since_two_one("gecos"),
    since_two_one("groups"),
    since_two_one("homeDir"),
    since_two_one("noCreateHome"),
    since_two_one("noLogInit"),
    since_two_one("noUserGroup"),
    VersionedField::new("passwordHash"),
    since_two_one("primaryGroup"),
    since_two_one("shell"),
    VersionedField::new("shouldExist").two(None).three(Some(2)),
    since_two_one("system"),
    since_two_one("uid"),
];

const fn since_two_one(name: &'static str) -> VersionedField {
    VersionedField::new(name).two(Some(1))
}

/// The fields of one object under the rules of its dialect.
struct AccountFields<'r, 'o, 'n, 'p> {
    object: &'o mut ObjectReader<'n>,
    dialect: IgnitionDialect,
    reading: &'r mut ParseContext<'p>,
}

impl<'n> AccountFields<'_, '_, 'n, '_> {
    /// The field, unless it is an empty string.
    fn get(&mut self, known: VersionedField) -> Option<FieldValue<'n>> {
        is_there(self.object, known, self.dialect).filter(|field| !field.is_empty_text())
    }

    fn of(&mut self, name: &str) -> Option<FieldValue<'n>> {
        let known = ACCOUNT_FIELDS.iter().find(|known| known.name == name)?;
        self.get(*known)
    }

    fn flag(&mut self, name: &str) -> Option<bool> {
        self.of(name)?.flag(&mut self.reading.problems)
    }

    fn path(&mut self, name: &str) -> Option<AbsPath> {
        let field = self.of(name)?;
        let text = field.text(&mut self.reading.problems)?;
        match AbsPath::new(text) {
            Ok(path) if is_plain(text) => Some(path),
            _ => {
                let message = format!("{text:?} is not a valid path for the account database");
                let expected = "an absolute path without : and control characters";
                self.refuse(&field, Reason::PathInvalid, message, expected)
            }
        }
    }

    fn name(&mut self, field: &FieldValue<'n>) -> Option<String> {
        let text = field.text(&mut self.reading.problems)?;
        let good = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        let fits = text.len() <= MAX_ACCOUNT_NAME_BYTES && !text.starts_with('-');
        if fits && text.chars().all(good) {
            return Some(text.to_owned());
        }
        let message = format!("{text:?} is not a valid group name");
        let expected = "letters, digits, -, _ and ., at most 32";
        self.refuse(field, Reason::ValueInvalid, message, expected)
    }

    fn names(&mut self, name: &str) -> Vec<String> {
        let Some(field) = self.of(name) else {
            return Vec::new();
        };
        let mut names = Vec::new();
        for item in field.items(&mut self.reading.problems) {
            if let Some(name) = self.name(&item)
                && !names.contains(&name)
            {
                names.push(name);
            }
        }
        names
    }

    fn text(&mut self, name: &str) -> Option<String> {
        let field = self.of(name)?;
        let text = field.text(&mut self.reading.problems)?;
        if is_plain(text) {
            return Some(text.to_owned());
        }
        let message = "it contains : or a control character, which the account database cannot \
             store";
        let reason = Reason::ValueInvalid;
        field.refuse(&mut self.reading.problems, reason, message, None);
        None
    }

    /// A uid or gid. 0 is reserved for root; the two other refused numbers mean "no id" to the
    /// kernel, in 16 and in 32 bits.
    fn id(&mut self, known: VersionedField) -> Option<u32> {
        let field = self.get(known)?;
        let number = field.integer(&mut self.reading.problems)?;
        match u32::try_from(number) {
            Ok(id) if ![0, 0xffff, u32::MAX].contains(&id) => Some(id),
            _ => {
                let message = format!("{number} is not a valid uid or gid in a config");
                let expected = "1 to 4294967294, but not 65535";
                self.refuse(&field, Reason::ValueInvalid, message, expected)
            }
        }
    }

    /// The password of a user. An empty hash locks the password, as in Ignition and OpenShift;
    /// in Ignition 2.0 it was the default.
    fn user_hash(&mut self) -> Option<PasswordHash> {
        let known = VersionedField::new("passwordHash");
        let field = is_there(self.object, known, self.dialect)?;
        match field.is_empty_text() && self.dialect != IgnitionDialect::Two(0) {
            true => Some(PasswordHash::locked()),
            false => self.hash(known),
        }
    }

    /// Never shows the value in messages, even if it is invalid.
    fn hash(&mut self, known: VersionedField) -> Option<PasswordHash> {
        let field = self.get(known)?;
        let hash = PasswordHash::new(field.spelling());
        if hash.is_none() {
            let message = "not a password hash (value hidden)".to_owned();
            return self.refuse(
                &field,
                Reason::ValueInvalid,
                message,
                PasswordHash::EXPECTED,
            );
        }
        hash
    }

    fn refuse<T>(
        &mut self,
        field: &FieldValue<'n>,
        reason: Reason,
        message: String,
        expected: &str,
    ) -> Option<T> {
        field.refuse(&mut self.reading.problems, reason, message, Some(expected));
        None
    }
}

/// Whether a text can be a field of a line in the databases.
fn is_plain(text: &str) -> bool {
    !text.contains(':') && !text.chars().any(char::is_control)
}

/// The account settings of a user; none if there are none.
pub(super) fn read_account(
    object: &mut ObjectReader<'_>,
    dialect: IgnitionDialect,
    reading: &mut ParseContext<'_>,
) -> Option<UserAccount> {
    let mut fields = AccountFields {
        object,
        dialect,
        reading,
    };
    // machinist never writes to the login logs, so the flag has no effect.
    fields.flag("noLogInit");
    let account = UserAccount {
        uid: fields.id(VersionedField::new("uid").two(Some(1))),
        gecos: fields.text("gecos"),
        home_dir: fields.path("homeDir"),
        no_create_home: fields.flag("noCreateHome"),
        primary_group: fields
            .of("primaryGroup")
            .and_then(|field| fields.name(&field)),
        groups: fields.names("groups"),
        no_user_group: fields.flag("noUserGroup"),
        shell: fields.path("shell"),
        system: fields.flag("system"),
        password_hash: fields.user_hash(),
        should_exist: fields.flag("shouldExist"),
    };
    (account != UserAccount::default()).then_some(account)
}

/// Parses only the password, as OpenShift does for `core`.
pub(super) fn read_password(
    object: &mut ObjectReader<'_>,
    dialect: IgnitionDialect,
    reading: &mut ParseContext<'_>,
) -> Option<UserAccount> {
    let mut fields = AccountFields {
        object,
        dialect,
        reading,
    };
    let password_hash = Some(fields.user_hash()?);
    Some(UserAccount {
        password_hash,
        ..UserAccount::default()
    })
}

/// Parses a group except its name.
pub(super) fn read_group(
    field: &FieldValue<'_>,
    object: &mut ObjectReader<'_>,
    dialect: IgnitionDialect,
    reading: &mut ParseContext<'_>,
) -> Group {
    let origin = field.origin(&reading.problems);
    let mut fields = AccountFields {
        object,
        dialect,
        reading,
    };
    Group {
        gid: fields.id(VersionedField::new("gid")),
        password_hash: fields.hash(VersionedField::new("passwordHash")),
        system: fields
            .get(VersionedField::new("system"))
            .and_then(|field| field.flag(&mut fields.reading.problems)),
        should_exist: fields
            .get(VersionedField::new("shouldExist").two(None).three(Some(2)))
            .and_then(|field| field.flag(&mut fields.reading.problems)),
        origin,
    }
}
