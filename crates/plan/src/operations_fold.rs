//! Folds steps into operations: no target is below another operation's target, and the operations
//! are in commit order.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Attributes, MachineFacts, NewObject, NodeKind, Operation, OperationKind,
    desired_tree::{DesiredTree, ObjectSpec},
    object::ObjectKind,
    ssh_keys,
    steps::{PathAction, PathStep, PathSteps},
};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::{EntryKind, Refusal};

/// The attributes of missing parent directories.
pub(super) const DEFAULT_PARENT: ObjectSpec = ObjectSpec::Directory {
    mode: 0o755,
    uid: 0,
    gid: 0,
};

/// The operations that carry out `steps`, and a refusal for each step that is impossible because a
/// file or a foreign link exists where a directory is needed.
pub(super) fn operations(
    steps: &PathSteps,
    layout: &DesiredTree,
    observed: &MachineFacts,
) -> (Vec<Operation>, Vec<Refusal>) {
    let mut acts: BTreeMap<AbsPath, PathAction> = steps
        .at
        .iter()
        .map(|(path, step)| (path.clone(), step.act.clone()))
        .collect();
    let mut refusals = Vec::new();
    for (path, step) in &steps.at {
        if matches!(
            step.act,
            PathAction::Put(_) | PathAction::Restore(_) | PathAction::Copy(..)
        ) && let Err(refusal) = add_parents(path, step, &mut acts, layout, observed)
        {
            refusals.push(refusal);
        }
    }
    drop_what_goes_with_its_directory(&mut acts, observed);
    let mut operations = fold(acts, &edited(steps, observed), observed);
    operations.sort_by_cached_key(order);
    (operations, refusals)
}

/// Adds the missing directories above `path`, up to the first existing one.
fn add_parents(
    path: &AbsPath,
    step: &PathStep,
    acts: &mut BTreeMap<AbsPath, PathAction>,
    layout: &DesiredTree,
    observed: &MachineFacts,
) -> Result<(), Refusal> {
    for above in path.ancestors() {
        let made = || {
            let user = observed.users_directories.get(path).copied();
            let user = user.filter(|uid| has_directory_of(*uid, path, acts, observed));
            let object = match &step.act {
                PathAction::Put(object) => Some(object),
                _ => None,
            };
            let original = original(acts.get(&above), observed);
            made_parent(&above, layout, original, (user, object))
        };
        match (acts.get(&above), observed.objects.get(&above)) {
            (Some(PathAction::Put(ObjectSpec::Directory { .. }) | PathAction::Metadata(_)), _) => {
                return Ok(());
            }
            (_, Some(facts)) if facts.kind == ObjectKind::Directory => return Ok(()),
            (None | Some(PathAction::Remove | PathAction::Restore(_)), None)
            | (Some(PathAction::Remove | PathAction::Restore(_)), Some(_)) => {
                let object = made();
                acts.insert(above, PathAction::Put(object));
            }
            _ if above == AbsPath::root() => return Ok(()),
            // A file or link of the config itself was already refused when the layout was built.
            (Some(PathAction::Put(_)), _) => return Ok(()),
            _ => {
                let message = format!(
                    "{} needs the directory {above}, which exists, but is not a directory",
                    step.entry
                );
                return Err(Refusal::new(Reason::ForeignContent, message).at(&step.entry.origin));
            }
        }
    }
    Ok(())
}

/// Whether a directory above `path` that exists today belongs to this user after the update, too.
fn has_directory_of(
    user: u32,
    path: &AbsPath,
    acts: &BTreeMap<AbsPath, PathAction>,
    observed: &MachineFacts,
) -> bool {
    let mut above = path.ancestors();
    above.any(|above| {
        let today = observed.objects.get(&above).map(|facts| facts.uid);
        PathAction::owner_after(acts.get(&above), today) == Some(user)
    })
}

/// The directory that is created at `path` as a parent of `object`: a new home, the original, or a directory of root.
/// It belongs to the user who controls the directories above it if that user also owns the object.
pub(super) fn made_parent(
    path: &AbsPath,
    layout: &DesiredTree,
    original: Option<ObjectSpec>,
    (user, object): (Option<u32>, Option<&ObjectSpec>),
) -> ObjectSpec {
    let parent = layout.parents.get(path).cloned().or(original);
    parent
        .or_else(|| users_own(user?, object?))
        .unwrap_or(DEFAULT_PARENT)
}

fn users_own(user: u32, object: &ObjectSpec) -> Option<ObjectSpec> {
    let (ObjectSpec::File { uid, gid, .. }
    | ObjectSpec::Directory { uid, gid, .. }
    | ObjectSpec::Link { uid, gid, .. }) = object
    else {
        return None;
    };
    (*uid == user).then_some(ObjectSpec::Directory {
        mode: 0o755,
        uid: user,
        gid: *gid,
    })
}

/// The original directory, if one would be restored.
fn original(act: Option<&PathAction>, observed: &MachineFacts) -> Option<ObjectSpec> {
    let Some(PathAction::Restore(place)) = act else {
        return None;
    };
    let facts = observed.objects.get(place)?;
    let (mode, uid, gid) = (facts.mode, facts.uid, facts.gid);
    (facts.kind == ObjectKind::Directory).then_some(ObjectSpec::Directory { mode, uid, gid })
}

/// Drops operations on objects inside a directory that is replaced or removed as a whole.
fn drop_what_goes_with_its_directory(
    acts: &mut BTreeMap<AbsPath, PathAction>,
    observed: &MachineFacts,
) {
    let whole: BTreeSet<AbsPath> = acts
        .iter()
        .filter(|(path, act)| {
            let directory = observed
                .objects
                .get(*path)
                .is_some_and(|facts| facts.kind == ObjectKind::Directory);
            directory && !matches!(act, PathAction::Metadata(_))
        })
        .map(|(path, _)| path.clone())
        .collect();
    if !whole.is_empty() {
        acts.retain(|path, _| !path.ancestors().any(|above| whole.contains(&above)));
    }
}

/// Files that belong to a user and in which only the managed block changes.
fn edited(steps: &PathSteps, observed: &MachineFacts) -> BTreeSet<AbsPath> {
    let keys = steps.at.iter().filter(|(path, step)| {
        step.entry.kind == EntryKind::SSHKey
            && ssh_keys::is_shared(path)
            && observed.objects.contains_key(*path)
    });
    keys.map(|(path, _)| path.clone()).collect()
}

/// Moves new objects into the trees of the new directories that contain them.
fn fold(
    acts: BTreeMap<AbsPath, PathAction>,
    shared: &BTreeSet<AbsPath>,
    observed: &MachineFacts,
) -> Vec<Operation> {
    let mut held: BTreeMap<AbsPath, Vec<(String, NewObject)>> = BTreeMap::new();
    let new: BTreeSet<AbsPath> = acts
        .iter()
        .filter(|(_, act)| matches!(act, PathAction::Put(ObjectSpec::Directory { .. })))
        .map(|(path, _)| path.clone())
        .collect();
    let mut operations = Vec::new();
    // A parent sorts before its children, so iterating from the end meets each directory after its
    // children.
    for (path, act) in acts.into_iter().rev() {
        let kind = match act {
            PathAction::Put(object) => {
                let children = held.remove(&path).unwrap_or_default();
                let node = node(object, children.into_iter().rev().collect());
                if let Some(parent) = path.parent().filter(|parent| new.contains(parent)) {
                    held.entry(parent)
                        .or_default()
                        .push((path.file_name().to_owned(), node));
                    continue;
                }
                OperationKind::Put(node)
            }
            PathAction::Metadata(attributes) => OperationKind::Metadata(attributes),
            PathAction::Copy(place, attributes) => {
                OperationKind::Put(copy(place, attributes, observed))
            }
            PathAction::Remove => OperationKind::Remove,
            PathAction::Restore(place) => OperationKind::Restore(place),
        };
        let shared = shared.contains(&path);
        let facts = observed.objects.get(&path).filter(|_| shared);
        operations.push(Operation {
            merged_from: facts.and_then(|facts| facts.digest),
            target: path,
            kind,
            shared,
            homes: Vec::new(),
        });
    }
    operations
}

fn node(object: ObjectSpec, children: BTreeMap<String, NewObject>) -> NewObject {
    match object {
        ObjectSpec::Partial { .. } => node(object.with_defaults(), children),
        ObjectSpec::File {
            content,
            mode,
            uid,
            gid,
        } => NewObject {
            mode,
            uid,
            gid,
            kind: NodeKind::File(content),
            label: None,
        },
        ObjectSpec::Directory { mode, uid, gid } => NewObject {
            mode,
            uid,
            gid,
            kind: NodeKind::Directory(children),
            label: None,
        },
        ObjectSpec::Link { target, uid, gid } => NewObject {
            mode: 0o777,
            uid,
            gid,
            kind: NodeKind::Link(target),
            label: None,
        },
        ObjectSpec::Hard { target, inode } => NewObject {
            mode: 0o777,
            uid: 0,
            gid: 0,
            kind: NodeKind::Hard { target, inode },
            label: None,
        },
    }
}

/// A file with the content of an original and another mode and owner.
fn copy(place: AbsPath, attributes: Attributes, observed: &MachineFacts) -> NewObject {
    let size = observed.objects.get(&place).map_or(0, |facts| facts.size);
    let Attributes { mode, uid, gid } = attributes;
    let kind = NodeKind::Copy { place, size };
    NewObject {
        mode,
        uid,
        gid,
        kind,
        label: None,
    }
}

/// Parents before children, links after their targets, removals last and bottom-up.
fn order(operation: &Operation) -> (u8, std::cmp::Reverse<usize>, AbsPath) {
    let depth = |up: bool| {
        std::cmp::Reverse(if up {
            operation.target.components().count()
        } else {
            0
        })
    };
    let (rank, up) = match &operation.kind {
        OperationKind::Metadata(_) | OperationKind::Entries(_) => (0, false),
        OperationKind::Put(NewObject {
            kind: NodeKind::Link(_) | NodeKind::Hard { .. },
            ..
        }) => (2, false),
        OperationKind::Put(_) | OperationKind::Restore(_) => (1, false),
        OperationKind::Remove => (3, true),
    };
    (rank, depth(up), operation.target.clone())
}
