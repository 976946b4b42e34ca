//! Refuses two paths of an update that lead to one object, because a file system is mounted at both.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    MachineFacts, ObjectKind,
    desired_tree::{DesiredEntry, DesiredTree},
    steps::{PathSteps, add_parents},
};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::Refusal;

/// A directory, whatever its path: the nearest existing one at or above it, by device and inode, and
/// the names of the missing ones below that.
type DirectoryIdentity = ((u32, u32), u64, String);

/// Refuses pairs of paths that are the same object, if the update changes something at one of them.
/// Two wanted objects that exist as the config wants them are left alone.
pub(super) fn refusals(
    steps: &PathSteps,
    after: &DesiredTree,
    observed: &MachineFacts,
) -> Vec<Refusal> {
    if observed.mounts.len() < 2 || steps.at.is_empty() {
        return Vec::new();
    }
    let named: BTreeSet<&AbsPath> = steps.at.keys().chain(after.objects.keys()).collect();
    let pairs = same_directories(&named, observed);
    if pairs.is_empty() {
        return Vec::new();
    }
    let mut inside: BTreeMap<&str, Vec<&AbsPath>> = BTreeMap::new();
    for path in &named {
        inside.entry(path.directory()).or_default().push(path);
    }
    let mut found = Vec::new();
    for (one, other) in &pairs {
        let tops = (named.contains(one) && named.contains(other)).then_some((one, other.clone()));
        let in_one = inside.get(one.as_str()).into_iter().flatten();
        let both = in_one.filter_map(|path| {
            let there = other.join(path.file_name()).ok()?;
            named.contains(&there).then_some((*path, there))
        });
        let changes = |path: &AbsPath| steps.at.contains_key(path);
        for (one, other) in tops.into_iter().chain(both) {
            if changes(one) || changes(&other) {
                found.push(refusal((one, &other), steps, after));
            }
        }
    }
    found
}

/// The directories of these paths, in pairs that are one directory on different mounts.
fn same_directories(
    named: &BTreeSet<&AbsPath>,
    observed: &MachineFacts,
) -> Vec<(AbsPath, AbsPath)> {
    let mut directories = BTreeSet::new();
    add_parents(named.iter().copied(), &mut directories);
    let directory = |path: &&&AbsPath| {
        let facts = observed.objects.get(**path);
        facts.is_some_and(|facts| facts.kind == ObjectKind::Directory)
    };
    directories.extend(named.iter().filter(directory).map(|path| (*path).clone()));
    let mut all: BTreeMap<DirectoryIdentity, Vec<(AbsPath, &AbsPath)>> = BTreeMap::new();
    for path in directories {
        if let Some((identity, mount)) = identity(&path, observed) {
            all.entry(identity).or_default().push((path, mount));
        }
    }
    let mut pairs = Vec::new();
    for same in all.values() {
        for (index, (one, mount)) in same.iter().enumerate() {
            let others = same[index + 1..].iter();
            let others = others.filter(|(_, other)| other != mount);
            pairs.extend(others.map(|(other, _)| (one.clone(), other.clone())));
        }
    }
    pairs
}

/// The identity of a directory, which may not exist yet, and the mount that holds it.
fn identity<'o>(
    path: &AbsPath,
    observed: &'o MachineFacts,
) -> Option<(DirectoryIdentity, &'o AbsPath)> {
    let mut at = std::iter::once(path.clone()).chain(path.ancestors());
    let (top, facts) = at.find_map(|at| {
        let facts = observed.objects.get(&at)?;
        (facts.kind == ObjectKind::Directory).then_some((at, facts))
    })?;
    let missing = path.components().skip(top.components().count());
    let missing: Vec<&str> = missing.collect();
    let identity = (facts.device, facts.inode, missing.join("/"));
    Some((identity, &facts.mount))
}

fn refusal((one, other): (&AbsPath, &AbsPath), steps: &PathSteps, after: &DesiredTree) -> Refusal {
    let asked = |path: &AbsPath| {
        let wanted = after.objects.get(path);
        wanted.map_or_else(|| path.clone(), |wanted| wanted.asked.clone())
    };
    let entry = |path: &AbsPath| -> Option<&DesiredEntry> {
        let wanted = after.objects.get(path).map(|wanted| &wanted.entry);
        wanted.or_else(|| steps.at.get(path).map(|step| &step.entry))
    };
    let message = format!(
        "{} and {} are the same object on this machine, because a file system is mounted at both paths",
        asked(one),
        asked(other)
    );
    let refusal = Refusal::new(Reason::DuplicateTarget, message);
    let refusal = refusal.expected("one of the two paths, in this config and in the one before");
    match entry(other).or_else(|| entry(one)) {
        Some(entry) => refusal.at(&entry.origin),
        None => refusal,
    }
}
