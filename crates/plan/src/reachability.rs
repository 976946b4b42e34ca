//! Warns of objects that would be in place but unusable: a file that its owner cannot reach, or
//! keys that sshd ignores.

use super::{
    Attributes, MachineFacts, UserFacts,
    desired_tree::{DesiredObject, DesiredTree},
    object::ObjectKind,
    ssh_keys,
    sshd_config::Certainty,
};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::EntryKind;

const OTHERS_SEARCH: u32 = 0o001;
const GROUP_SEARCH: u32 = 0o010;
const OWNER_SEARCH: u32 = 0o100;
/// The write permissions of group and others.
const OTHERS_WRITE: u32 = 0o022;

/// One sentence for each entry that its owner could not use.
pub(super) fn warnings(layout: &DesiredTree, observed: &MachineFacts, owners: bool) -> Vec<String> {
    let reach = Reachability {
        layout,
        observed,
        owners,
    };
    let entries = layout.objects.iter();
    entries
        .filter_map(|(path, wanted)| reach.warning(path, wanted))
        .collect()
}

struct Reachability<'a> {
    layout: &'a DesiredTree,
    observed: &'a MachineFacts,
    /// Whether owners can be set here. If not, existing owners are ignored.
    owners: bool,
}

impl Reachability<'_> {
    fn warning(&self, path: &AbsPath, wanted: &DesiredObject) -> Option<String> {
        let keys = wanted.entry.kind == EntryKind::SSHKey;
        let uid = wanted.object.owner().0;
        if uid == 0 && !keys {
            return None;
        }
        let account = self.account(uid);
        let asked = &wanted.asked;
        if let Some((above, found)) = self.blocked(path, uid, account.map(|(_, account)| account)) {
            let owner = account.map_or_else(|| format!("user {uid}"), |(name, _)| name.to_owned());
            let Attributes { mode, uid, gid } = found;
            return Some(format!(
                "{asked} belongs to {owner}, who has no access: {above} has mode {mode:04o} and \
                 owner {uid}:{gid}"
            ));
        }
        let account = self.user(&wanted.entry.name).filter(|_| keys)?;
        let (certainty, because) =
            ssh_keys::is_read(&self.observed.sshd, &wanted.entry.name, account, asked);
        match certainty {
            Certainty::No => return Some(format!("sshd does not read {asked}: {because}")),
            Certainty::Maybe => return Some(format!("sshd may not read {asked}: {because}")),
            Certainty::Yes => {}
        }
        let (at, found) = self.unsafe_for_sshd(path, account)?;
        let Attributes { mode, uid, gid } = found;
        Some(format!(
            "sshd does not read {asked}: {at} has mode {mode:04o} and owner {uid}:{gid}, and it must belong to {} or root and be writable by its owner alone (StrictModes)",
            wanted.entry.name
        ))
    }

    /// The directory above `path` that blocks a user, if that is certain: a user's groups are not
    /// known, so a directory that its group may search is not reported.
    fn blocked(
        &self,
        path: &AbsPath,
        uid: u32,
        account: Option<&UserFacts>,
    ) -> Option<(AbsPath, Attributes)> {
        let all = path.ancestors().filter_map(|above| {
            let attributes = self.attributes(&above)?;
            Some((above, attributes))
        });
        all.into_iter().find(|(_, found)| {
            let own_group = account.is_some_and(|account| account.gid == found.gid);
            let search = match found.uid == uid {
                true => OWNER_SEARCH,
                false if own_group => GROUP_SEARCH,
                false => GROUP_SEARCH | OTHERS_SEARCH,
            };
            found.mode & search == 0 && uid != 0
        })
    }

    /// The object that sshd's StrictModes rejects: the file, or a directory from it up to the home.
    fn unsafe_for_sshd(
        &self,
        file: &AbsPath,
        account: &UserFacts,
    ) -> Option<(AbsPath, Attributes)> {
        let home = account.home.as_ref()?;
        let home = self.observed.canonical.get(home).unwrap_or(home);
        let above = file.ancestors().take_while(|above| above.is_under(home));
        let found = above.filter_map(|above| Some((self.found(&above, true)?, above)));
        let mut found = found.map(|(attributes, above)| (above, attributes));
        found.find(|(_, found)| {
            let owners = [0, account.uid];
            (self.owners && !owners.contains(&found.uid)) || found.mode & OTHERS_WRITE != 0
        })
    }

    /// The planned mode and owner of a directory; none if it does not exist yet.
    fn attributes(&self, directory: &AbsPath) -> Option<Attributes> {
        self.found(directory, self.owners)
    }

    /// The same; what exists counts only where `existing` is true.
    fn found(&self, directory: &AbsPath, existing: bool) -> Option<Attributes> {
        let facts = self.observed.objects.get(directory);
        let facts = facts.filter(|facts| existing && facts.kind == ObjectKind::Directory);
        let now = facts.map(|facts| facts.attributes());
        match self.layout.objects.get(directory) {
            Some(wanted) => wanted.object.attributes_from(now),
            None => now,
        }
    }

    fn account(&self, uid: u32) -> Option<(&String, &UserFacts)> {
        let planned = self.layout.accounts.users.iter();
        let mut all = planned.chain(&self.observed.users);
        all.find(|(_, account)| account.uid == uid)
    }

    fn user(&self, name: &str) -> Option<&UserFacts> {
        let planned = self.layout.accounts.users.get(name);
        planned.or_else(|| self.observed.users.get(name))
    }
}
