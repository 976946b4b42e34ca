//! Restores users that an earlier config removed and that the desired config names again: they get their earlier
//! number, password and groups, because files of theirs may still be there.

use super::{
    AccountDraft, field,
    removal::{is_line, part},
    user_entry,
};
use crate::{
    UserFacts,
    passwd::{Database, Edit},
};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::{EntryOrigin, UserAccount};

impl AccountDraft<'_> {
    /// Restores the user if an earlier config removed it, unless the config asks for another number or home.
    pub(super) fn restore_removed_user(&mut self, name: &str, asked: &UserAccount) {
        let kept = &self.observed.accounts.kept;
        let of_user = |edit: &&Edit| edit.name() == name && edit.is_removal();
        let mut removed = kept.iter().filter(of_user);
        let Some(line) = removed.find(|edit| is_line(edit, Database::Passwd)) else {
            return;
        };
        let Edit::Line {
            before: Some(found),
            ..
        } = line
        else {
            return;
        };
        let is_same = |asked: Option<String>, index| {
            asked.is_none_or(|asked| part(found, index) == Some(&*asked))
        };
        let home = asked.home_dir.as_ref().map(ToString::to_string);
        let wanted = asked.exists()
            && is_same(asked.uid.map(|uid| uid.to_string()), field::ID_FIELD)
            && is_same(home, field::HOME_FIELD);
        if !wanted || self.has(Database::Passwd, name) {
            return;
        }
        self.line_returns(line, user_entry(name, &EntryOrigin::default()));
        if !self.has(Database::Passwd, name) {
            return;
        }
        // The group of the same name was removed with the user, if it had no other member.
        for edit in kept.iter().filter(of_user) {
            if is_line(edit, Database::Group) && !self.to.groups.contains_key(name) {
                self.line_returns(edit, super::group_entry(name, &EntryOrigin::default()));
            }
        }
        for edit in kept.iter().filter(of_user) {
            self.companion_returns(edit);
        }
        let id = |draft: &Self, index| draft.field(Database::Passwd, name, index)?.parse().ok();
        if let (Some(uid), Some(gid)) = (id(self, field::ID_FIELD), id(self, field::GROUP_FIELD)) {
            let home = self.field(Database::Passwd, name, field::HOME_FIELD);
            let home = home.and_then(|home| AbsPath::new(home).ok());
            let facts = UserFacts { uid, gid, home };
            self.done.users.insert(name.to_owned(), facts);
        }
        if let Some(gid) = self.id(Database::Group, name) {
            self.done.groups.insert(name.to_owned(), gid);
        }
    }
}
