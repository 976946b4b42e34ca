//! Plans the objects that leave the config: each is removed, or its original is restored.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    ChangeKind, FileFacts, MachineFacts, byte_text,
    desired_tree::{DesiredEntry, DesiredObject, ObjectSpec},
    object::ObjectKind,
    object_compare::differences,
    ssh_keys,
    steps::{PathAction, PathSteps, add_parents, first_field},
    unit_tree::started_by,
};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::{Content, EntryKind};

impl PathSteps {
    /// Plans an object of the base config that the desired config does not contain.
    pub(super) fn leaving<'d>(
        &mut self,
        path: &'d AbsPath,
        wanted: &'d DesiredObject,
        observed: &MachineFacts,
        owners: bool,
        directories: &mut Vec<(&'d AbsPath, &'d DesiredObject)>,
    ) {
        let asked = &wanted.asked;
        if let Some((at, (_, text))) = observed.unreachable_at(path) {
            let what = format!("it cannot be examined: {at}: {text}");
            self.warnings.push(kept(asked, &what));
            return;
        }
        let facts = observed.objects.get(path);
        if wanted.entry.kind == EntryKind::SSHKey {
            self.keys_leave(path, wanted, facts, observed);
            return;
        }
        // If the content existed before machinist, only mode and owner are restored.
        if wanted.object.is_without_content() || observed.modes.contains_key(path) {
            self.file_without_content_leaves(path, wanted, observed, owners);
            return;
        }
        if let Some(place) = observed.originals.get(path) {
            let holder = place.parent();
            let holder = holder.is_some_and(|holder| observed.objects.contains_key(&holder));
            // If the parent directory is missing too, a whole file system is not mounted, which is
            // refused later.
            if observed.objects.contains_key(place) || !holder {
                self.original_returns(path, wanted, place, facts, observed);
                return;
            }
            self.warnings.push(format!(
                "cannot restore the original of {asked}: {place} not found"
            ));
        }
        let Some(facts) = facts else {
            return;
        };
        if observed.adopted.contains(path) {
            return self.found_object_stays(wanted);
        }
        let since = differences(wanted, facts, owners);
        if since.contains(&"kind") {
            self.warnings.push(kept(asked, "its type has changed"));
        } else if facts.kind == ObjectKind::Directory {
            directories.push((path, wanted));
        } else {
            if since
                .iter()
                .any(|field| !["owner", "mode", "label"].contains(field))
            {
                self.warnings.push(format!(
                    "{} is removed from the config and from disk, although \
                     it was modified outside machinist",
                    wanted.asked
                ));
            }
            self.put(
                path,
                &wanted.entry,
                PathAction::Remove,
                ChangeKind::Remove,
                vec![first_field(wanted)],
            );
        }
    }

    /// Notes the unit that a link from before the base config still starts.
    fn found_object_stays(&mut self, wanted: &DesiredObject) {
        let enables = wanted.entry.kind == EntryKind::Enablement;
        if enables && started_by(&wanted.asked).is_some() {
            self.started.insert(wanted.entry.name.to_string());
        }
    }

    fn original_returns(
        &mut self,
        path: &AbsPath,
        wanted: &DesiredObject,
        place: &AbsPath,
        facts: Option<&FileFacts>,
        observed: &MachineFacts,
    ) {
        let original = observed.objects.get(place);
        let hard = matches!(wanted.object, ObjectSpec::Hard { .. });
        let act = match (facts, original) {
            // A hard link may look like the original although it is a name of another file.
            (Some(now), Some(then)) if now.looks_like(then) && !hard => return,
            (Some(now), Some(then))
                if now.kind == ObjectKind::Directory && then.kind == now.kind =>
            {
                match self.directory_back(path, wanted, (now, then), observed) {
                    Some(act) => act,
                    None => return,
                }
            }
            _ => PathAction::Restore(place.clone()),
        };
        self.put(
            path,
            &wanted.entry,
            act,
            ChangeKind::Remove,
            vec![first_field(wanted)],
        );
    }

    /// Removes the managed keys from a file that also contains the user's own keys; removes the
    /// file only if nothing else is left in it.
    pub(super) fn keys_leave(
        &mut self,
        path: &AbsPath,
        wanted: &DesiredObject,
        facts: Option<&FileFacts>,
        observed: &MachineFacts,
    ) {
        if facts.is_none_or(|facts| facts.kind != ObjectKind::File) {
            return;
        }
        let shared = ssh_keys::is_shared(&wanted.asked);
        if shared && observed.leased.contains(path) {
            self.warnings.push(format!(
                "the SSH keys for {} stay in {}, because it is held by a lease of another process",
                wanted.entry.name, wanted.asked
            ));
            return;
        }
        let text = observed.texts.get(path);
        let act = match text.filter(|_| shared) {
            None if shared => {
                self.left_behind.push(format!(
                    "the SSH keys for {} stay in {}, because it is too large, or was replaced while it was read",
                    wanted.entry.name, wanted.asked
                ));
                return;
            }
            None => PathAction::Remove,
            Some(text) => match (ssh_keys::without_block(text), &wanted.object) {
                (Some(rest), ObjectSpec::File { mode, uid, gid, .. }) if !rest.is_empty() => {
                    PathAction::Put(ObjectSpec::File {
                        content: Content::new(byte_text::to_bytes(&rest)),
                        mode: *mode,
                        uid: *uid,
                        gid: *gid,
                    })
                }
                (Some(_), _) => PathAction::Remove,
                (None, _) => return,
            },
        };
        self.put(path, &wanted.entry, act, ChangeKind::Remove, vec!["keys"]);
    }

    /// Removes empty `x.wants` and `x.service.d` directories, which have no effect; systemctl
    /// removes them too. Those that an overlay's lower layer may hold stay, because they cannot be
    /// renamed.
    pub(super) fn tidy_unit_directories(&mut self, observed: &MachineFacts) {
        let removed = self
            .at
            .iter()
            .filter(|(_, step)| step.act == PathAction::Remove);
        // Objects that existed before machinist are restored one by one, not with their whole
        // directory.
        let others = |path: &AbsPath| {
            observed.adopted.contains(path) || observed.originals.contains_key(path)
        };
        let ours = |path: &AbsPath| self.ours.contains(path) && !others(path);
        let others = removed.clone().filter(|(path, _)| !ours(path));
        let others: BTreeSet<AbsPath> = others.filter_map(|(path, _)| path.parent()).collect();
        let parents: BTreeMap<AbsPath, DesiredEntry> = removed
            .filter_map(|(path, step)| Some((path.parent()?, step.entry.clone())))
            .filter(|(parent, _)| is_unit_directory(parent) && !others.contains(parent))
            .collect();
        let busy = self.busy();
        for (path, entry) in parents {
            let fixed = !self.ours.contains(&path) && observed.is_on_overlay(&path);
            if !fixed && !self.at.contains_key(&path) && self.empties(&path, observed, &busy) {
                self.put(
                    &path,
                    &entry,
                    PathAction::Remove,
                    ChangeKind::Remove,
                    Vec::new(),
                );
            }
        }
    }

    /// All directories that contain an object that is created or is kept because the config wants
    /// it.
    pub(super) fn busy(&self) -> BTreeSet<AbsPath> {
        let mut busy = self.needed.clone();
        let coming = self
            .at
            .iter()
            .filter(|(_, step)| step.act != PathAction::Remove);
        add_parents(coming.map(|(path, _)| path), &mut busy);
        busy
    }

    /// Whether everything in the directory is removed and nothing is created in it.
    pub(super) fn empties(
        &self,
        directory: &AbsPath,
        observed: &MachineFacts,
        busy: &BTreeSet<AbsPath>,
    ) -> bool {
        let Some(children) = observed.children.get(directory) else {
            return false;
        };
        let goes = |name: &String| {
            let Ok(child) = directory.join(name) else {
                return false;
            };
            match self.at.get(&child) {
                Some(step) => step.act == PathAction::Remove,
                // For a directory that no config mentions, its content decides.
                None => {
                    observed.children.contains_key(&child)
                        && observed
                            .children
                            .get(&child)
                            .is_some_and(|inside| !inside.is_empty())
                        && self.empties(&child, observed, busy)
                }
            }
        };
        !busy.contains(directory) && children.iter().all(goes)
    }
}

/// Says that an object leaves the config and stays on the disk, and why.
pub(super) fn kept(asked: &AbsPath, what: &str) -> String {
    format!("{asked} is removed from the config, but kept on disk, because {what}")
}

fn is_unit_directory(path: &AbsPath) -> bool {
    let suffixes = [".wants", ".requires", ".upholds", ".d"];
    path.parent()
        .is_some_and(|parent| parent.as_str() == super::enablement::UNIT_DIR)
        && suffixes
            .iter()
            .any(|suffix| path.file_name().ends_with(suffix))
}
