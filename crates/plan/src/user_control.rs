//! Determines at which paths users other than root may change objects, and in which directories they made updates fail.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Attributes, FileFacts, MachineFacts,
    desired_tree::{DesiredTree, ObjectSpec},
    object::ObjectKind,
};
use machinist_base::abs_path::AbsPath;

/// How many updates a user makes fail by changing objects in a directory until the entries there are skipped, and in how
/// many directories until all entries in the directories of that user are.
pub const MAX_CONTESTED_UPDATES: u32 = 3;

impl MachineFacts {
    /// The paths in directories that a user controls, and of objects that a user may write.
    pub fn user_targets(&self) -> BTreeSet<AbsPath> {
        let objects = self.objects.iter();
        let written = objects.filter(|(_, facts)| facts.is_written_by_users());
        let written = written.map(|(path, _)| path);
        let controlled = self.users_directories.keys();
        controlled.chain(written).cloned().collect()
    }

    /// Whether a user other than root may move or remove the object at a path; `owner` is the one that the config sets.
    pub(super) fn may_be_moved_by_users(&self, path: &AbsPath, owner: Option<u32>) -> bool {
        let found = self.objects.get(path).map(|facts| facts.uid);
        let is_users = |owner: Option<u32>| owner.is_some_and(|uid| uid != 0);
        // In a directory with the sticky bit, the owner of an object may.
        self.user_tops.contains_key(path)
            || (self.exposed.contains(path) && (is_users(owner) || is_users(found)))
    }

    /// Whether a user other than root may change the object at a path itself.
    fn may_be_written_by_users(&self, path: &AbsPath, wanted: Option<&ObjectSpec>) -> bool {
        let found = self.objects.get(path);
        found.is_some_and(FileFacts::is_written_by_users)
            || wanted.is_some_and(ObjectSpec::is_users)
    }

    /// Whether a user other than root may have changed the object of an entry, so that its state must not stop others.
    pub(super) fn is_changed_by_users(&self, path: &AbsPath, after: &DesiredTree) -> bool {
        let wanted = after.objects.get(path).map(|wanted| &wanted.object);
        let owner = wanted.and_then(ObjectSpec::uid);
        let is_skipped = || match after.objects.get(path) {
            Some(wanted) => self.skipped.contains(&wanted.asked),
            None => self.skipped.contains(path),
        };
        self.may_be_moved_by_users(path, owner)
            // The directory of the user may be root's again, with what the user has put there.
            || (!self.skipped.is_empty() && is_skipped())
            || (self.changed_targets.contains_key(path)
                && self.may_be_written_by_users(path, wanted))
    }

    /// The topmost directory above a path that the users who may change the path may change too. Below a directory that
    /// several users may write it is that directory, because any of them may cause the failures there.
    fn users_top(&self, path: &AbsPath) -> Option<AbsPath> {
        let top = self.user_tops.get(path)?;
        let above: Vec<AbsPath> = path.ancestors().take_while(|it| it.is_under(top)).collect();
        let is_shared = |directory: &&AbsPath| {
            let facts = self.objects.get(*directory);
            facts.is_some_and(|facts| is_writable_for_others(facts.mode, facts.gid))
        };
        let shared = above.iter().rev().find(is_shared);
        Some(shared.unwrap_or(top).clone())
    }
}

/// Whether a file or directory is writable for a group other than root's, or for all.
const fn is_writable_for_others(mode: u32, gid: u32) -> bool {
    mode & 0o002 != 0 || (mode & 0o020 != 0 && gid != 0)
}

impl FileFacts {
    /// Whether a user other than root may change the object itself, and add names (hard links) to a file.
    pub(super) fn is_written_by_users(&self) -> bool {
        let is_file = self.kind == ObjectKind::File;
        let shared = is_writable_for_others(self.mode, self.gid) || self.access_list;
        self.uid != 0 || (is_file && shared)
    }
}

impl ObjectSpec {
    /// Whether a user other than root may change the object itself.
    fn is_users(&self) -> bool {
        self.uid().is_some_and(|uid| uid != 0) || self.is_writable_for_users()
    }

    /// Whether a user other than root may have made a field differ of an object in a directory of root. The owner may
    /// change content, mode and group, everybody else only the content that they may write, which clears set-ID bits.
    pub(super) fn is_changed_by_users(&self, found: &FileFacts, field: &str) -> bool {
        let owner = self.uid().unwrap_or(found.uid);
        let is_owned = owner != 0 && owner == found.uid;
        let is_written = || self.is_writable_for_users() || found.is_written_by_users();
        let set_id = Attributes::SET_ID_BITS;
        let lost_set_id = |mode: u32| mode & !set_id == found.mode && mode != found.mode;
        match field {
            "content" | "keys" => is_owned || is_written(),
            "mode" => is_owned || (self.given().0.is_some_and(lost_set_id) && is_written()),
            "owner" => is_owned,
            _ => false,
        }
    }

    /// Whether this is a file that is writable for a group other than root's, or for all.
    pub(super) fn is_writable_for_users(&self) -> bool {
        match self {
            Self::File { mode, gid, .. } => is_writable_for_others(*mode, *gid),
            Self::Partial {
                directory: false,
                mode: Some(mode),
                gid,
                ..
            } => is_writable_for_others(*mode, gid.unwrap_or(0)),
            _ => false,
        }
    }
}

/// The updates that users made fail in one directory.
#[derive(Debug, Default)]
struct DirectoryFailures {
    updates: u32,
    /// Whether the last one is so recent that the entries are skipped.
    is_recent: bool,
    /// Whether the place is an object of a user in a directory of root.
    is_object: bool,
    /// The topmost directory that the same users may change.
    top: Option<AbsPath>,
}

/// The directories whose entries are skipped, because users made several updates fail there.
#[derive(Debug, Default)]
pub(super) struct ContestedDirectories {
    directories: BTreeSet<AbsPath>,
    /// Objects of users in directories of root.
    objects: BTreeSet<AbsPath>,
    /// The topmost directories of users who did so in several directories.
    tops: BTreeSet<AbsPath>,
}

impl ContestedDirectories {
    pub(super) fn of(observed: &MachineFacts, after: &DesiredTree) -> Self {
        let mut failures: BTreeMap<AbsPath, DirectoryFailures> = BTreeMap::new();
        for (target, of_target) in &observed.changed_targets {
            if observed.is_changed_by_users(target, after) {
                // Where users may only change their own object, they cannot change the entries beside it.
                let is_moved = observed.user_tops.contains_key(target);
                let place = target.parent().filter(|_| is_moved);
                let is_object = place.is_none();
                let all = failures.entry(place.unwrap_or_else(|| target.clone()));
                let all = all.or_default();
                all.is_object |= is_object;
                all.updates = all.updates.saturating_add(of_target.updates);
                all.is_recent |= of_target.is_recent;
                all.top = observed.users_top(target);
            }
        }
        failures.retain(|_, all| all.updates >= MAX_CONTESTED_UPDATES);
        let mut below: BTreeMap<AbsPath, (u32, bool)> = BTreeMap::new();
        for all in failures.values() {
            if let Some(top) = all.top.clone() {
                let (directories, is_recent) = below.entry(top).or_default();
                *directories += 1;
                *is_recent |= all.is_recent;
            }
        }
        below.retain(|_, (directories, is_recent)| {
            *is_recent && *directories >= MAX_CONTESTED_UPDATES
        });
        failures.retain(|_, all| all.is_recent);
        let objects = failures.extract_if(.., |_, all| all.is_object);
        let objects = objects.map(|(place, _)| place).collect();
        Self {
            objects,
            directories: failures.into_keys().collect(),
            tops: below.into_keys().collect(),
        }
    }

    /// The contested directory that holds a target, if a user may change the object there.
    pub(super) fn holding(
        &self,
        target: &AbsPath,
        observed: &MachineFacts,
        after: &DesiredTree,
    ) -> Option<&AbsPath> {
        let below = self.directories.iter().chain(&self.tops);
        let mut all = below
            .filter(|directory| target != *directory)
            .chain(&self.objects);
        let found = all.find(|place| target.is_under(place))?;
        observed.is_changed_by_users(target, after).then_some(found)
    }
}
