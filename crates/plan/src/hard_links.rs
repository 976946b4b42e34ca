//! Resolves hard links to their files and refuses those that cannot be created.

use std::collections::BTreeMap;

use super::{
    Database, FileFacts, MachineFacts, ObjectKind,
    desired_tree::{DesiredEntry, DesiredObject, DesiredTree, ObjectSpec, PathResolver},
    host_checks,
    partial_entries::is_root_only,
    steps::{PathAction, PathStep, PathSteps},
};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::{EntryKind, MachineConfig, Refusal};

/// Adds the hard links of a config. A link to another hard link is a name of the same file; links
/// in a loop are names of no file.
pub(super) fn add(layout: &mut DesiredTree, config: &MachineConfig, place: &PathResolver<'_>) {
    let hard = config.links.iter().filter(|(_, link)| link.hard);
    let hard: Vec<_> = hard
        .filter_map(|(path, link)| Some((path, link, AbsPath::new(link.target.as_str()).ok()?)))
        .collect();
    let next = hard.iter();
    let next: BTreeMap<_, _> = next
        .map(|(path, _, target)| (place.of(path), place.of(target)))
        .collect();
    let ends = ends(&next);
    for (path, link, _) in hard {
        let entry = DesiredEntry::new(EntryKind::Link, path.as_str(), &link.origin);
        match ends.get(&place.of(path)) {
            Some(Some(end)) => {
                let target = (*end).clone();
                let there = place.observed.objects.get(&target);
                let inode = there.map(|facts| facts.inode);
                layout.add(place, path, entry, ObjectSpec::Hard { target, inode });
            }
            _ => {
                let message = format!("the hard link {path} points to itself");
                let refusal = Refusal::new(Reason::ValueInvalid, message).at(&link.origin);
                layout.refusals.push(refusal.expected("the path of a file"));
            }
        }
    }
}

/// The end of each chain of links; none for a loop.
fn ends(next: &BTreeMap<AbsPath, AbsPath>) -> BTreeMap<&AbsPath, Option<&AbsPath>> {
    let mut ends: BTreeMap<&AbsPath, Option<&AbsPath>> = BTreeMap::new();
    for start in next.keys() {
        let mut passed = Vec::new();
        let mut at = start;
        let end = loop {
            if let Some(known) = ends.get(at) {
                // A path that was visited in this chain without a known end is part of a loop.
                break *known;
            }
            match next.get(at) {
                None => break Some(at),
                Some(further) => {
                    ends.insert(at, None);
                    passed.push(at);
                    at = further;
                }
            }
        };
        ends.extend(passed.into_iter().map(|path| (path, end)));
    }
    ends
}

impl DesiredTree {
    /// A hard link needs a regular file that keeps its inode: one of the config, or an existing
    /// one.
    pub(super) fn refuse_odd_hard_links(&mut self) {
        let fault = |target: &AbsPath| {
            if host_checks::is_state(target) {
                return Some("which belongs to machinist");
            }
            if Database::at(target).is_some() {
                return Some("which is replaced whenever a user or group changes");
            }
            if self.absent.contains_key(target) {
                return Some("which this config removes");
            }
            let entry = self.objects.get(target).map(|wanted| wanted.entry.kind);
            if entry == Some(EntryKind::SSHKey) {
                return Some("which holds SSH keys and is replaced whenever they change");
            }
            // The kind of an object that is not in this config is known when the steps are.
            let wanted = self.objects.get(target)?;
            kind_fault(Some(wanted.object.kind()))
        };
        let mut refusals = Vec::new();
        for wanted in self.objects.values() {
            if let ObjectSpec::Hard { target, .. } = &wanted.object
                && let Some(fault) = fault(target)
            {
                refusals.push(refusal(&wanted.entry, target, fault));
            }
        }
        self.refusals.extend(refusals);
    }
}

fn kind_fault(kind: Option<ObjectKind>) -> Option<&'static str> {
    match kind {
        Some(ObjectKind::File) => None,
        Some(ObjectKind::Directory) => Some("which is a directory"),
        Some(ObjectKind::Link) => Some("which is a symbolic link"),
        Some(ObjectKind::Other) => Some("which is not a regular file"),
        None => Some("which exists neither in the config nor on this machine"),
    }
}

fn refusal(entry: &DesiredEntry, target: &AbsPath, fault: &str) -> Refusal {
    let message = format!("the hard link {} points to {target}, {fault}", entry.name);
    let refusal = Refusal::new(Reason::HardLinkTarget, message).at(&entry.origin);
    refusal.expected("the path of a regular file of this config or this machine")
}

/// Refuses hard links that must be created if this update removes their file, or if the file cannot
/// get a name there.
pub(super) fn refusals(steps: &PathSteps, observed: &MachineFacts) -> Vec<Refusal> {
    let mut found = Vec::new();
    for (path, step) in &steps.at {
        if let PathAction::Put(ObjectSpec::Hard { target, .. }) = &step.act
            && let Some(fault) = fault(path, target, steps, observed)
        {
            found.push(refusal(&step.entry, target, &fault));
        }
    }
    found
}

/// Why the hard link at a path cannot be made, if it must be.
pub(super) fn link_fault(
    path: &AbsPath,
    steps: &PathSteps,
    observed: &MachineFacts,
) -> Option<String> {
    let PathAction::Put(ObjectSpec::Hard { target, .. }) = &steps.at.get(path)?.act else {
        return None;
    };
    let fault = fault(path, target, steps, observed)?;
    Some(format!("it points to {target}, {fault}"))
}

fn fault(
    path: &AbsPath,
    target: &AbsPath,
    steps: &PathSteps,
    observed: &MachineFacts,
) -> Option<String> {
    let facts = observed.objects.get(target);
    let (kept, stays) = match steps.at.get(target).map(|step| &step.act) {
        Some(PathAction::Remove) => return Some("which this update removes".to_owned()),
        Some(PathAction::Restore(place)) => {
            let kind = observed.objects.get(place).map(|original| original.kind);
            if kind != Some(ObjectKind::File) {
                let fault = "whose original is restored by this update and is not a regular file";
                return Some(fault.to_owned());
            }
            (None, false)
        }
        Some(PathAction::Put(_) | PathAction::Copy(..)) => (None, false),
        Some(PathAction::Metadata(_)) | None => {
            if let Some(why) = observed.unsafe_after.get(target) {
                return Some(format!("whose path is not safe: {why}"));
            }
            let refused = host_checks::is_state(target) || Database::at(target).is_some();
            if let Some(fault) = kind_fault(facts.map(|facts| facts.kind))
                && !refused
            {
                return Some(fault.to_owned());
            }
            (facts, !steps.at.contains_key(target))
        }
    };
    let mount = |path: &AbsPath| observed.nearest(path).map(|(_, facts)| &facts.mount);
    let above = |path: &AbsPath| path.parent().unwrap_or_else(AbsPath::root);
    let (here, there) = match kept {
        Some(facts) => (mount(&above(path)), Some(&facts.mount)),
        None => (mount(&above(path)), mount(&above(target))),
    };
    if here != there {
        let mount_text = |mount: Option<&AbsPath>| mount.map_or("/", AbsPath::as_str).to_owned();
        return Some(format!(
            "which is on the mount {}, but a hard link must be on the same mount: here {}",
            mount_text(there),
            mount_text(here)
        ));
    }
    let fixed = stays && kept.is_some_and(|facts| facts.immutable);
    fixed.then(|| "which is immutable or append-only (lsattr) and cannot be linked".to_owned())
}

impl PathSteps {
    /// Whether an object that looks as desired must still be replaced because of the names of a
    /// file: this update replaces the file of a hard link, or a hard link becomes a file of its
    /// own.
    pub(super) fn parts_names(
        &self,
        wanted: &DesiredObject,
        had: Option<&DesiredObject>,
        facts: &FileFacts,
    ) -> bool {
        match (&wanted.object, had.map(|had| &had.object)) {
            (ObjectSpec::Hard { target, .. }, _) => {
                let step = self.at.get(target);
                step.is_some_and(|step| !matches!(step.act, PathAction::Metadata(_)))
            }
            (ObjectSpec::File { .. }, Some(ObjectSpec::Hard { inode, .. })) => {
                *inode == Some(facts.inode)
            }
            _ => false,
        }
    }
}

impl PathSteps {
    /// The number of names of a file, if some of them are not the config's and must not get another mode and owner.
    pub(super) fn shared_names(&self, target: &AbsPath, observed: &MachineFacts) -> Option<u32> {
        let facts = observed.objects.get(target)?;
        let wanted = self.names.wanted.get(target).copied().unwrap_or(0);
        let own = self.names.existing.get(target).copied().unwrap_or(0);
        // A user could put another file there that has the same number of names.
        let is_shared = match observed.users_directories.contains_key(target) {
            true => wanted > 0 || facts.names > 1,
            false => {
                let others = facts.names > own.saturating_add(1);
                let by_users = observed.is_linked_by_users(target, facts);
                others && (!by_users || self.is_named_twice(target, facts, observed))
            }
        };
        (facts.kind == ObjectKind::File && is_shared)
            .then(|| facts.names.max(wanted.saturating_add(1)))
    }

    /// Whether the update also changes the file at another of its paths, where users cannot have put it.
    fn is_named_twice(&self, target: &AbsPath, facts: &FileFacts, observed: &MachineFacts) -> bool {
        let in_place = |step: &PathStep| matches!(step.act, PathAction::Metadata(_));
        let steps = self.at.iter().filter(|(_, step)| in_place(step));
        steps
            .map(|(path, _)| path)
            .chain(&self.names.without_content)
            .filter(|path| *path != target && !observed.users_directories.contains_key(*path))
            .filter_map(|path| observed.objects.get(path))
            .any(|other| (other.device, other.inode) == (facts.device, facts.inode))
    }
}

impl MachineFacts {
    /// Whether a user other than root may have made the other names of a file in a directory of root, now or before
    /// machinist changed its mode and owner.
    fn is_linked_by_users(&self, target: &AbsPath, facts: &FileFacts) -> bool {
        let before = self.modes.get(target);
        facts.is_written_by_users()
            || before.is_some_and(|before| !is_root_only(*before))
            || self.user_written.contains(target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard_link_chains_resolve_to_their_end_and_loops_do_not_resolve() {
        let at = |path: &str| AbsPath::new(path).unwrap();
        let pairs = [
            ("/a", "/b"),
            ("/b", "/file"),
            ("/c", "/d"),
            ("/d", "/c"),
            ("/e", "/d"),
            ("/f", "/f"),
            ("/g", "/a"),
        ];
        let next = pairs.map(|(from, to)| (at(from), at(to))).into();
        let ends = ends(&next);
        let file = at("/file");
        let found: Vec<_> = ends.values().map(|end| *end == Some(&file)).collect();
        assert_eq!(found, [true, true, false, false, false, false, true]);
    }
}
