//! Handles paths that a user could redirect: they are refused in the desired config and skipped in
//! the base config.

use std::collections::BTreeMap;

use super::{
    MachineFacts, Operation, desired_tree::DesiredTree, host_checks, machine_facts::ObjectKind,
    steps::PathSteps,
};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::Refusal;

/// Refuses each entry of the desired config at an unsafe path (only the path `only`, if given), and
/// removes such paths from the base config, so that nothing is done there.
pub(super) fn refuse_unsafe_paths(
    before: &mut DesiredTree,
    after: &mut DesiredTree,
    observed: &MachineFacts,
    only: Option<&AbsPath>,
) {
    for (path, why) in &observed.unsafe_after {
        after.refuse_unsafe(path, why, only);
    }
    let obstructed = obstructed(before, observed);
    for (path, why) in observed.unsafe_before.iter().chain(&obstructed) {
        let earlier = before.earlier_keys.remove(path);
        let earlier = earlier.filter(|_| observed.key_files.contains(path));
        let wanted = before.objects.remove(path).or(earlier);
        let absent = before.absent.remove(path);
        let stays = after.speaks_of(path) || after.unsafe_keys.contains(path);
        if (wanted.is_some() || absent.is_some()) && !stays {
            let asked = wanted.map_or_else(|| path.clone(), |wanted| wanted.asked);
            after.left_behind.push(format!(
                "{asked} is removed from the config, but kept on disk, because its path is not \
                 safe: {why}"
            ));
        }
    }
}

/// Skips objects that leave the config from a user's directory if the user has changed the path in
/// a way that would block the rest of the update.
pub(super) fn leave_obstructed(
    operations: &mut Vec<Operation>,
    steps: &mut PathSteps,
    after: &mut DesiredTree,
    observed: &MachineFacts,
) {
    if observed.users_directories.is_empty() {
        return;
    }
    let (busy, mount_points) = (steps.busy(), host_checks::mount_points(observed));
    operations.retain(|operation| {
        let target = &operation.target;
        if !observed.users_directories.contains_key(target) || after.speaks_of(target) {
            return true;
        }
        let around = (&busy, mount_points.as_slice());
        let Some(obstacle) = host_checks::obstacle(operation, steps, observed, around) else {
            return true;
        };
        let step = steps.at.remove(target);
        let asked = step.map_or_else(|| target.to_string(), |step| step.entry.name.to_string());
        let why = obstacle.message;
        after.left_behind.push(format!(
            "{asked} is removed from the config, but kept on disk: {why}"
        ));
        false
    });
}

/// Paths in a user's directory where the user has replaced a parent directory by something else.
fn obstructed(before: &DesiredTree, observed: &MachineFacts) -> BTreeMap<AbsPath, String> {
    let users = before.objects.keys().chain(before.earlier_keys.keys());
    let users = users.filter(|path| observed.users_directories.contains_key(path));
    let obstacle = |path: &AbsPath| {
        let facts = |above: &AbsPath| observed.objects.get(above);
        let mut above = path.ancestors();
        above.find(|above| facts(above).is_some_and(|facts| facts.kind != ObjectKind::Directory))
    };
    let why = |path: &AbsPath| Some(format!("{} is no longer a directory", obstacle(path)?));
    users
        .filter_map(|path| Some((path.clone(), why(path)?)))
        .collect()
}

impl DesiredTree {
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
