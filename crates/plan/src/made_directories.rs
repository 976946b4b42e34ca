//! Plans directories that machinist created as parents for entries of a user: root gets them back once the user has
//! neither a directory above them nor an entry in them.

use super::{
    Attributes, ChangeKind, MachineFacts,
    desired_entry::DesiredEntry,
    desired_tree::{DesiredTree, ObjectSpec},
    object::ObjectKind,
    operations_fold::DEFAULT_PARENT,
    steps::{PathAction, PathSteps, changed_by},
};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::{EntryKind, EntryOrigin};

impl PathSteps {
    /// Gives the directories back to root that would belong to root on a fresh machine.
    pub(super) fn return_made_directories(
        &mut self,
        before: &DesiredTree,
        after: &DesiredTree,
        observed: &MachineFacts,
        owners: bool,
    ) {
        let Some(attributes) = DEFAULT_PARENT.attributes_from(None).filter(|_| owners) else {
            return;
        };
        // Parents come first, so that the owner of a directory above is known.
        for path in &observed.made {
            let found = observed.objects.get(path);
            let found = found.filter(|facts| facts.kind == ObjectKind::Directory);
            let Some(found) = found.filter(|facts| facts.uid != 0 && !facts.mount_point) else {
                continue;
            };
            let user = found.uid;
            let is_parent = self.needed.contains(path) && !after.speaks_of(path);
            let is_planned = self.at.contains_key(path);
            let of_user = |facts: &super::FileFacts| facts.uid == user;
            let today = |above: AbsPath| observed.objects.get(&above).is_some_and(of_user);
            let was_users = path.ancestors().any(today);
            let later = |above: AbsPath| self.owner_after(&above, observed) == Some(user);
            let is_users = path.ancestors().any(later);
            let was_made_for_user = was_users && has_entry_of(user, path, before);
            let stays = is_users && has_entry_of(user, path, after);
            // The user may have exchanged one that was made for entries of root.
            let is_taken_back = was_users && !is_users;
            if is_parent && !is_planned && (is_taken_back || was_made_for_user) && !stays {
                self.return_to_root(path, attributes, observed);
            }
        }
    }

    fn return_to_root(&mut self, path: &AbsPath, attributes: Attributes, observed: &MachineFacts) {
        let Some(found) = observed.objects.get(path) else {
            return;
        };
        let entry = DesiredEntry::new(EntryKind::Directory, path.as_str(), &EntryOrigin::default());
        let act = PathAction::Metadata(attributes);
        let fields = changed_by(&act, found, Vec::new());
        self.put(path, &entry, act, ChangeKind::Modify, fields);
    }

    fn owner_after(&self, path: &AbsPath, observed: &MachineFacts) -> Option<u32> {
        let today = observed.objects.get(path).map(|facts| facts.uid);
        PathAction::owner_after(self.at.get(path).map(|step| &step.act), today)
    }
}

/// Whether the config has an entry of this user below a directory.
fn has_entry_of(user: u32, directory: &AbsPath, tree: &DesiredTree) -> bool {
    // `/etc/x-y` is between `/etc/x` and `/etc/x/y`.
    let near = tree.objects.range(directory.clone()..);
    let mut near = near.take_while(|(path, _)| path.as_str().starts_with(directory.as_str()));
    near.any(|(path, wanted)| {
        let is_below = path != directory && path.is_under(directory);
        is_below && ObjectSpec::uid(&wanted.object) == Some(user)
    })
}
