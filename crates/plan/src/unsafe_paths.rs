//! Handles paths that a user could redirect: they are refused in the desired config and skipped in
//! the base config. What a user does at a path whose entry is unchanged blocks no other entry.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    MAX_TOTAL_FILE_BYTES, MachineFacts, Operation, OperationKind,
    desired_tree::{DesiredObject, DesiredTree, ObjectSpec},
    disk_space, hard_links, host_checks,
    kind_replacement::KindReplacement,
    object::ObjectKind,
    steps::PathSteps,
    user_control::{ContestedDirectories, MAX_CONTESTED_UPDATES},
};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::{MachineConfig, Overwrite, Refusal};

/// Returns the paths in users' directories at which both configs have the same entry. A path that the desired config
/// makes unsafe, because it gives root's directory to a user, is not among them.
pub(super) fn unchanged(
    before: &DesiredTree,
    after: &DesiredTree,
    observed: &MachineFacts,
) -> BTreeSet<AbsPath> {
    let paths: BTreeSet<&AbsPath> = users_paths(after, observed).collect();
    if paths.is_empty() {
        return BTreeSet::new();
    }
    let had: BTreeMap<&AbsPath, (&AbsPath, &DesiredObject)> = before
        .objects
        .iter()
        .map(|(path, had)| (&had.asked, (path, had)))
        .collect();
    let same = |path: &&&AbsPath| {
        let wanted = after.objects.get(**path);
        wanted.is_some_and(|wanted| {
            had.get(&wanted.asked).is_some_and(|(place, had)| {
                let users_today = observed.unsafe_before.contains_key(*place)
                    || observed.is_changed_by_users(place, after);
                had.object == wanted.object && users_today
            })
        })
    };
    paths
        .iter()
        .filter(same)
        .map(|path| (*path).clone())
        .collect()
}

/// The paths that users may have changed, and those that they could redirect.
fn users_paths<'a>(
    after: &'a DesiredTree,
    observed: &'a MachineFacts,
) -> impl Iterator<Item = &'a AbsPath> {
    let is_skipped = |wanted: &DesiredObject| observed.skipped.contains(&wanted.asked);
    let skipped = after
        .objects
        .iter()
        .filter(move |(_, wanted)| is_skipped(wanted));
    let changed = observed.exposed.iter().chain(skipped.map(|(path, _)| path));
    let changed = changed.chain(observed.changed_targets.keys());
    changed
        .filter(|path| observed.is_changed_by_users(path, after))
        .chain(observed.unsafe_after.keys())
}

/// Hard links whose files users may have changed; those that both configs have, and all of them if the machine returns to
/// an earlier config.
fn users_hard_links(
    before: &DesiredTree,
    after: &DesiredTree,
    observed: &MachineFacts,
) -> BTreeSet<AbsPath> {
    let target = |wanted: &DesiredObject| match &wanted.object {
        ObjectSpec::Hard { target, .. } => Some(target.clone()),
        _ => None,
    };
    let all = after
        .objects
        .iter()
        .filter_map(|(path, wanted)| Some((path, target(wanted)?)));
    let all: Vec<_> = all.collect();
    if all.is_empty() {
        return BTreeSet::new();
    }
    let users: BTreeSet<&AbsPath> = users_paths(after, observed).collect();
    let had = |path: &AbsPath| before.objects.get(path).and_then(target);
    all.into_iter()
        .filter(|(path, target)| {
            let is_users = users.contains(target) || observed.user_tops.contains_key(target);
            is_users && (observed.is_return || had(path).as_ref() == Some(target))
        })
        .map(|(path, _)| path.clone())
        .collect()
}

/// The entries that are skipped where a user has changed the path, so that nothing else is blocked.
pub(super) struct SkippableEntries {
    paths: BTreeSet<AbsPath>,
    /// Hard links to files that a user controls.
    hard_links: BTreeSet<AbsPath>,
    why: &'static str,
}

impl SkippableEntries {
    /// The unchanged entries in users' directories; all entries there if the machine returns to an earlier
    /// config.
    pub(super) fn of(
        unchanged: &BTreeSet<AbsPath>,
        [before, after]: [&DesiredTree; 2],
        observed: &MachineFacts,
    ) -> Self {
        let hard_links = users_hard_links(before, after, observed);
        if !observed.is_return {
            return Self {
                paths: unchanged.clone(),
                hard_links,
                why: "its entry has not changed",
            };
        }
        let paths = users_paths(after, observed);
        let paths = paths.filter(|path| after.objects.contains_key(*path));
        Self {
            paths: paths.cloned().collect(),
            hard_links,
            why: "the machine returns to an earlier config",
        }
    }

    /// Skips hard links that cannot be made because of what a user did at their files. Returns their paths.
    pub(super) fn skip_hard_links(
        &self,
        steps: &mut PathSteps,
        after: &mut DesiredTree,
        observed: &MachineFacts,
    ) -> BTreeSet<AbsPath> {
        let links = self.hard_links.iter();
        let faults =
            links.filter_map(|path| Some((path, hard_links::link_fault(path, steps, observed)?)));
        let faults: Vec<_> = faults.collect();
        for (path, fault) in &faults {
            steps.at.remove(*path);
            after.skip(path, self.why, fault);
        }
        faults.into_iter().map(|(path, _)| path.clone()).collect()
    }
}

/// Refuses each entry of the desired config at an unsafe path (only the path `only`, if given), and
/// removes such paths from the base config, so that nothing is done there. Unchanged entries are not touched.
pub(super) fn refuse_unsafe_paths(
    before: &mut DesiredTree,
    after: &mut DesiredTree,
    observed: &MachineFacts,
    only: Option<&AbsPath>,
    skippable: &SkippableEntries,
) {
    for (path, why) in &observed.unsafe_after {
        match skippable.paths.contains(path) {
            true => after.skip(path, skippable.why, &format!("its path is not safe: {why}")),
            false => after.refuse_unsafe(path, why, only),
        }
    }
    let obstructed = obstructed(before, observed);
    for (path, why) in observed.unsafe_before.iter().chain(&obstructed) {
        let earlier = before.earlier_keys.remove(path);
        let earlier = earlier.filter(|_| observed.key_files.contains(path));
        let wanted = before.objects.remove(path).or(earlier);
        let absent = before.absent.remove(path);
        let skipped = |wanted: &DesiredObject| after.skipped_entries.contains(&wanted.asked);
        let stays = after.speaks_of(path)
            || after.unsafe_keys.contains(path)
            || wanted.as_ref().is_some_and(skipped);
        if (wanted.is_some() || absent.is_some()) && !stays {
            let asked = wanted.map_or_else(|| path.clone(), |wanted| wanted.asked);
            after.left_behind.push(format!(
                "{asked} is removed from the config, but kept on disk, because its path is not \
                 safe: {why}"
            ));
        }
    }
}

/// Does not touch skippable entries where the user has changed the path in a way that would block the rest of the
/// update.
pub(super) fn skip_refused(
    steps: &mut PathSteps,
    after: &mut DesiredTree,
    observed: &MachineFacts,
    to: &MachineConfig,
    skippable: &SkippableEntries,
) {
    if skippable.paths.is_empty() {
        return;
    }
    let mut why = BTreeMap::new();
    let is_skippable = |(path, _): &mut (AbsPath, Refusal)| skippable.paths.contains(path);
    why.extend(steps.refusals.extract_if(.., is_skippable));
    // A config that was in force may replace objects of any kind.
    if matches!(to.overwrite, Overwrite::Except(_)) {
        why.extend(steps.kind_refusals.extract_if(.., is_skippable));
    }
    let mut why: BTreeMap<AbsPath, String> = why
        .into_iter()
        .map(|(path, refusal)| (path, refusal.message.into()))
        .collect();
    let planned = skippable.paths.iter();
    for path in planned.filter(|path| steps.at.contains_key(*path)) {
        let obstacle = no_directory_above(path, observed);
        if let Some(above) = obstacle.filter(|above| !steps.at.contains_key(above)) {
            why.insert(path.clone(), format!("{above} is no longer a directory"));
        }
    }
    for (path, why) in why {
        steps.at.remove(&path);
        after.skip(&path, skippable.why, &why);
    }
}

/// Skips objects in a user's directory that leave the config or are skippable in it, if the user has changed the
/// path in a way that would block the rest of the update, or has made the last update fail there. Skips all objects in
/// directories in which users have made several updates fail, and a file that leaves the config and has other names.
pub(super) fn leave_obstructed(
    operations: &mut Vec<Operation>,
    steps: &mut PathSteps,
    after: &mut DesiredTree,
    observed: &MachineFacts,
    (to, skippable): (&MachineConfig, &SkippableEntries),
) {
    let is_metadata = |operation: &Operation| matches!(operation.kind, OperationKind::Metadata(_));
    let users = !observed.exposed.is_empty()
        || !observed.changed_targets.is_empty()
        || !observed.skipped.is_empty();
    if !users && !operations.iter().any(is_metadata) {
        return;
    }
    let contested = ContestedDirectories::of(observed, after);
    let (busy, mount_points) = (steps.busy(), host_checks::mount_points(observed));
    operations.retain(|operation| {
        let target = &operation.target;
        if let Some(directory) = contested.holding(target, observed, after) {
            leave_contested(target, directory, steps, after);
            return false;
        }
        let failed = failed_before(target, observed);
        let entries = match failed {
            Some(_) => entries_at(target, after),
            None => vec![target.clone()],
        };
        let stays =
            !entries.is_empty() && entries.iter().all(|path| skippable.paths.contains(path));
        let leaves = !stays && !after.speaks_of(target);
        let is_users = |path: &AbsPath| observed.is_changed_by_users(path, after);
        // A directory that is created as a parent is no path of the config.
        let in_users = is_users(target) || (stays && entries.iter().all(is_users));
        let may_be_left = match in_users {
            true => leaves || stays,
            false => leaves && is_metadata(operation),
        };
        if !may_be_left {
            return true;
        }
        let around = (&busy, mount_points.as_slice());
        let obstacle = || host_checks::obstacle(operation, steps, observed, around);
        let kinds = || KindReplacement::new(to, after, steps, observed).refusal(target);
        let failed = failed.filter(|_| in_users);
        let Some(obstacle) = failed.or_else(obstacle).or_else(kinds) else {
            return true;
        };
        // Where the kernel does not protect hard links, every user can add names to files of root.
        if !in_users && obstacle.reason != Reason::DuplicateTarget {
            return true;
        }
        let (step, why) = (steps.at.remove(target), obstacle.message);
        if stays {
            for path in &entries {
                steps.at.remove(path);
                after.skip(path, skippable.why, &why);
            }
            return false;
        }
        let asked = step.map_or_else(|| target.to_string(), |step| step.entry.name.to_string());
        after.left_behind.push(format!(
            "{asked} is removed from the config, but kept on disk: {why}"
        ));
        false
    });
}

/// Skips skippable entries in users' directories on mounts without space for them: a user who fills a file system blocks
/// no other entry.
pub(super) fn leave_on_full_mounts(
    operations: &mut Vec<Operation>,
    steps: &mut PathSteps,
    after: &mut DesiredTree,
    observed: &MachineFacts,
    skippable: &SkippableEntries,
) {
    if skippable.paths.is_empty() {
        return;
    }
    let full = disk_space::full_mounts(operations, observed);
    if full.is_empty() {
        return;
    }
    operations.retain(|operation| {
        let target = &operation.target;
        let entries = entries_at(target, after);
        let may_skip =
            !entries.is_empty() && entries.iter().all(|path| skippable.paths.contains(path));
        let mount = observed.nearest(target).map(|(_, facts)| &facts.mount);
        let Some(mount) = mount.filter(|mount| may_skip && full.contains(*mount)) else {
            return true;
        };
        for path in &entries {
            steps.at.remove(path);
            after.skip(path, skippable.why, &format!("not enough space on {mount}"));
        }
        false
    });
}

/// Skips entries that would restore a large file of a user: copying it could delay all other entries.
pub(super) fn leave_large_originals(
    operations: &mut Vec<Operation>,
    steps: &mut PathSteps,
    after: &mut DesiredTree,
    observed: &MachineFacts,
) {
    operations.retain(|operation| {
        let target = &operation.target;
        let size = operation.copied_bytes();
        if size <= MAX_TOTAL_FILE_BYTES || !observed.users_directories.contains_key(target) {
            return true;
        }
        steps.at.remove(target);
        let wanted = after.objects.get(target);
        let asked = wanted.map_or(target, |wanted| &wanted.asked).clone();
        let most = MAX_TOTAL_FILE_BYTES >> 20;
        after.left_behind.push(format!(
            "{asked} is not changed: its original, a file of a user, has {size} bytes, and at most {most} MiB are \
             restored"
        ));
        after.skipped_entries.insert(asked);
        false
    });
}

/// Returns the entries that an operation concerns: the one at its target, or those below a directory that it creates as
/// their parent.
fn entries_at(target: &AbsPath, after: &DesiredTree) -> Vec<AbsPath> {
    if after.objects.contains_key(target) {
        return vec![target.clone()];
    }
    let below = after.objects.keys().filter(|path| path.is_under(target));
    below.cloned().collect()
}

/// Skips the entries at a target in a directory in which a user changes objects during updates.
fn leave_contested(
    target: &AbsPath,
    directory: &AbsPath,
    steps: &mut PathSteps,
    after: &mut DesiredTree,
) {
    let mut entries = entries_at(target, after);
    if entries.is_empty() {
        entries.push(target.clone());
    }
    let changed = match target == directory {
        true => "it".to_owned(),
        false => format!("files below {directory}"),
    };
    for path in entries {
        steps.at.remove(&path);
        let asked = after
            .objects
            .get(&path)
            .map_or(&path, |wanted| &wanted.asked);
        let asked = asked.clone();
        after.left_behind.push(format!(
            "{asked} is left unchanged: a user changed {changed} during {MAX_CONTESTED_UPDATES} updates, which failed"
        ));
        after.skipped_entries.insert(asked);
    }
}

/// Why an operation is not tried again: another writer made the last update fail there. An entry that an update has
/// skipped since is tried again.
fn failed_before(target: &AbsPath, observed: &MachineFacts) -> Option<Refusal> {
    let message = "another process changed it during the last update, which failed";
    let failed = observed.changed_targets.get(target)?;
    let is_skipped = failed.is_recent && !observed.skipped.contains(target);
    is_skipped.then(|| Refusal::new(Reason::TargetChanged, message))
}

/// Paths in a user's directory where the user has replaced a parent directory by something else.
fn obstructed(before: &DesiredTree, observed: &MachineFacts) -> BTreeMap<AbsPath, String> {
    let users = before.objects.keys().chain(before.earlier_keys.keys());
    let users = users.filter(|path| observed.user_tops.contains_key(path));
    let why = |path: &AbsPath| {
        let above = no_directory_above(path, observed)?;
        Some(format!("{above} is no longer a directory"))
    };
    users
        .filter_map(|path| Some((path.clone(), why(path)?)))
        .collect()
}

/// The nearest existing object above the path that is not a directory.
fn no_directory_above(path: &AbsPath, observed: &MachineFacts) -> Option<AbsPath> {
    let is_other = |above: &AbsPath| {
        let facts = observed.objects.get(above);
        facts.is_some_and(|facts| facts.kind != ObjectKind::Directory)
    };
    path.ancestors().find(is_other)
}

impl DesiredTree {
    /// The skipped entries, by the path in the config and by the canonical path.
    pub(super) fn skipped_paths(&self) -> BTreeSet<AbsPath> {
        let objects = self.objects.iter();
        let skipped = objects.filter(|(_, wanted)| self.skipped_entries.contains(&wanted.asked));
        let canonical = skipped.map(|(path, _)| path.clone());
        canonical
            .chain(self.skipped_entries.iter().cloned())
            .collect()
    }

    /// Leaves the object of an entry unchanged.
    fn skip(&mut self, path: &AbsPath, may_skip: &str, why: &str) {
        let wanted = self.objects.get(path);
        let asked = wanted.map_or(path, |wanted| &wanted.asked).clone();
        self.left_behind
            .push(format!("{asked} is skipped, because {may_skip}: {why}"));
        self.skipped_entries.insert(asked);
    }

    fn refuse_unsafe(&mut self, path: &AbsPath, why: &str, only: Option<&AbsPath>) {
        let wanted = self.objects.get(path);
        if wanted.is_none() && self.unsafe_keys.contains(path) {
            return;
        }
        let asked = wanted.map_or(path, |wanted| &wanted.asked);
        if only.is_some_and(|only| only != asked) {
            return;
        }
        let message = format!("{asked} is not safe to write: {why}");
        let refusal = Refusal::new(Reason::UnsafePath, message);
        let entry = wanted.map(|wanted| &wanted.entry);
        self.refusals
            .push(match entry.or_else(|| self.absent.get(path)) {
                Some(entry) => refusal.at(&entry.origin),
                None => refusal,
            });
    }
}
