//! Plans fields of users that machinist created and that the desired config no longer sets.

use super::{
    AccountDraft, field,
    removal::{created_line, part, speaks_of, whose},
    users::NO_PASSWORD,
};
use crate::passwd::{Database, Edit, EditState};

impl AccountDraft<'_> {
    /// Gives fields of a user that machinist created their defaults again, if the config no longer sets them and no other
    /// program has changed them.
    pub(super) fn created_fields_return(&mut self, kept: &Edit) {
        let (database, name) = (kept.database(), kept.name());
        let Some(line) = created_line(kept) else {
            return;
        };
        let shell = self.observed.accounts.shell.clone();
        let defaults = match database {
            Database::Passwd => vec![
                (field::GECOS_FIELD, String::new()),
                (field::SHELL_FIELD, shell),
            ],
            Database::Shadow => vec![(field::PASSWORD_FIELD, NO_PASSWORD.to_owned())],
            _ => return,
        };
        for (index, default) in defaults {
            let ours = part(line, index).unwrap_or_default().to_owned();
            let set = Edit::Field {
                database,
                name: name.to_owned(),
                index,
                before: default,
                after: ours,
            };
            let back = set.reversed();
            let there = self.now.get(&database);
            let is_ours = there.is_some_and(|there| back.edit_state(there) == EditState::Before);
            if is_ours && back != set && !speaks_of(self.to, &set) {
                let (entry, told) = whose(&set);
                self.put(back);
                self.record_restored(entry, told);
            }
        }
    }
}
