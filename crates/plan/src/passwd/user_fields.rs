//! Judges edits of entries that users may change at any moment: passwd(1), chsh(1) and chfn(1) let users change their
//! password, shell and full name, and gpasswd(1) lets the administrators of a group change its members and password. Such
//! a change must neither stop an update nor its rollback.

use std::collections::BTreeSet;

use super::{Database, DatabaseEntries, Edit, EditState, field};

impl Database {
    /// The fields that users may change in their own entry.
    const fn user_fields(self) -> &'static [usize] {
        match self {
            Self::Passwd => &[field::GECOS_FIELD, field::SHELL_FIELD],
            Self::Shadow => &[field::PASSWORD_FIELD, field::CHANGE_DATE_FIELD],
            Self::Group | Self::Gshadow | Self::Subuid | Self::Subgid => &[],
        }
    }

    /// The fields that may differ in the same entry: those of its user, and those that the administrators
    /// of a group may change.
    const fn changeable_fields(self) -> &'static [usize] {
        match self {
            Self::Group => &[field::MEMBERS_FIELD],
            Self::Gshadow => &[field::PASSWORD_FIELD, field::MEMBERS_FIELD],
            _ => self.user_fields(),
        }
    }
}

impl Edit {
    /// Whether the edit sets a field that its user may change as well.
    fn is_changeable_by_its_user(&self) -> bool {
        let Self::Field {
            database,
            name,
            index,
            ..
        } = self
        else {
            return false;
        };
        name != "root" && database.user_fields().contains(index)
    }

    /// Whether the edit sets something that a user may change as well; `administered` are the groups that users
    /// administer.
    pub(crate) fn is_changeable_by_users(&self, administered: &BTreeSet<String>) -> bool {
        let is_of_group = match self {
            Self::Member { .. } => true,
            Self::Field {
                database, index, ..
            } => *database == Database::Gshadow && *index == field::PASSWORD_FIELD,
            Self::Line { .. } => false,
        };
        self.is_changeable_by_its_user() || (is_of_group && administered.contains(self.name()))
    }

    /// The state that decides about a rollback: an entry is the same although users have changed some of its fields.
    pub fn rollback_state(&self, there: &DatabaseEntries) -> EditState {
        match self.edit_state(there) {
            EditState::Foreign if self.is_of_same_entry(there) => match self {
                Self::Line { after: Some(_), .. } => EditState::After,
                _ => EditState::Before,
            },
            state => state,
        }
    }

    /// The state that decides about a commit: as for a rollback, and the edit replaces whatever the user has set
    /// since the plan.
    pub fn commit_state(&self, there: &DatabaseEntries) -> EditState {
        match self.rollback_state(there) {
            EditState::Foreign
                if self.is_changeable_by_its_user()
                    && there.fields(self.database(), self.name()).is_some() =>
            {
                EditState::Before
            }
            state => state,
        }
    }

    /// Whether the entry that the edit creates or removes exists, apart from the fields that users may change.
    fn is_of_same_entry(&self, there: &DatabaseEntries) -> bool {
        let Self::Line {
            database,
            name,
            before,
            after,
            ..
        } = self
        else {
            return false;
        };
        let line = match (before, after) {
            (Some(line), None) | (None, Some(line)) if name != "root" => line,
            _ => return false,
        };
        let found = there.fields(*database, name);
        let fields: Vec<&str> = line.split(':').collect();
        found.is_some_and(|found| {
            let blank = |fields| without_user_fields(*database, fields);
            blank(found) == blank(fields)
        })
    }

    /// The edit without values that a user may change, or `None` if it sets nothing else.
    pub(crate) fn without_user_values(mut self, administered: &BTreeSet<String>) -> Option<Self> {
        if self.is_changeable_by_users(administered) {
            return None;
        }
        if let Self::Line {
            database,
            before: Some(line),
            after: None,
            ..
        } = &mut self
        {
            *line = without_user_fields(*database, line.split(':').collect()).join(":");
        }
        Some(self)
    }
}

fn without_user_fields(database: Database, mut fields: Vec<&str>) -> Vec<&str> {
    for index in database.changeable_fields() {
        if let Some(field) = fields.get_mut(*index) {
            *field = "";
        }
    }
    fields
}
