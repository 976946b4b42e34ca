//! Determines how the target of a new operation is reached, and records it so that later steps reach it the same
//! way.

use std::collections::{BTreeMap, BTreeSet};

use super::TransactionError;
use crate::journal::OperationRecord;
use machinist_base::abs_path::AbsPath;
use machinist_plan::{Operation, OperationKind};
use machinist_rootfs::{
    DirectoryControl, ExpectedObject, FileKind, ObjectIdentity, Root, Stat, WalkedPath,
};

/// How the target of an operation is reached.
pub(super) struct TargetPath {
    pub(super) way: WalkedPath,
    pub(super) asked: Option<AbsPath>,
    /// The links on the requested path.
    pub(super) links: Vec<AbsPath>,
}

/// Walks to the target, and along the path in the config if users' links lead from there to the target. If one of
/// the operations `before` creates a directory on the way, it walks only as far as that.
pub(super) fn approach(
    root: &Root,
    moved: &BTreeMap<AbsPath, AbsPath>,
    before: &[Operation],
    target: &AbsPath,
) -> Result<TargetPath, TransactionError> {
    let way = match root.walk(target) {
        Err(error) if error.is_absent() => {
            let changed = || TransactionError::Changed {
                target: target.clone(),
            };
            let mut makers = before.iter().map(|operation| &operation.target);
            let maker = makers.find(|made| target.is_under(made));
            root.walk(maker.ok_or_else(changed)?)?
        }
        way => way?,
    };
    if way.control != DirectoryControl::Root
        && let Some(asked) = asked(moved, target)?
        // Links that this config creates do not resolve yet.
        && let Ok(led) = root.walk(&asked)
        && led.is_same(&way)
    {
        let (asked, links) = (Some(asked), led.links);
        return Ok(TargetPath { way, asked, links });
    }
    Ok(TargetPath {
        way,
        asked: None,
        links: Vec::new(),
    })
}

/// Returns an error if a user has put another object at the target since the plan was made.
pub(super) fn refuse_foreign(
    root: &Root,
    way: &WalkedPath,
    (operation, all): (&Operation, &[Operation]),
    is_ours: &dyn Fn(&AbsPath) -> bool,
) -> Result<(), TransactionError> {
    if way.control == DirectoryControl::Root {
        return Ok(());
    }
    let Some(stat) = root.stat(&operation.target)? else {
        return Ok(());
    };
    let ours = is_ours(&operation.target);
    let wanted = match &operation.kind {
        OperationKind::Put(node) => Some(node.uid),
        OperationKind::Metadata(wanted) => Some(wanted.uid),
        OperationKind::Remove | OperationKind::Restore(_) | OperationKind::Entries(_) => None,
    };
    let users: Vec<u32> = wanted.into_iter().chain(ours.then_some(stat.uid)).collect();
    // If the file is machinist's own, its other names keep their content when this one is exchanged. A user's file
    // would be kept as an original with its content, and its other names may be anywhere.
    let names = match ours {
        true => u32::MAX,
        false => own_names(root, &stat, (operation, all), is_ours),
    };
    let own = ExpectedObject {
        users: &users,
        names,
    };
    let foreign = root.foreign_target(&operation.target, &stat, &way.control, &own)?;
    match foreign {
        None => Ok(()),
        Some(why) => {
            tracing::warn!("{why}");
            Err(TransactionError::Changed {
                target: operation.target.clone(),
            })
        }
    }
}

/// Counts the names of an object: the target, and machinist's own hard links to it that this update replaces or
/// removes.
fn own_names(
    root: &Root,
    object: &Stat,
    (operation, all): (&Operation, &[Operation]),
    is_ours: &dyn Fn(&AbsPath) -> bool,
) -> u32 {
    if object.kind != FileKind::File || object.nlink == 1 {
        return 1;
    }
    let same = |path: &AbsPath| {
        let stat = root.stat(path).ok().flatten();
        stat.is_some_and(|stat| stat.identity == object.identity && stat.device == object.device)
    };
    let others = all.iter().map(|other| &other.target);
    let others = others.filter(|path| **path != operation.target && is_ours(path) && same(path));
    u32::try_from(others.count()).map_or(u32::MAX, |others| others.saturating_add(1))
}

/// Returns the identity of the target's directory, if a user may replace it and the identity survives a reboot. An
/// overlay renumbers its directories when they are first written to.
pub(super) fn lasting_parent(
    root: &Root,
    way: &WalkedPath,
    target: &AbsPath,
) -> Result<Option<ObjectIdentity>, TransactionError> {
    let is_there = way.path.parent() == target.parent();
    if way.control == DirectoryControl::Root || !is_there {
        return Ok(None);
    }
    let overlay = root.mount(&way.path)?.fs_type == "overlay";
    Ok((!overlay).then_some(way.holder))
}

/// Clears the requested path of operations for which the transaction itself changes a link on the way.
pub(super) fn clear_removed_links(operations: &mut [OperationRecord], followed: &[Vec<AbsPath>]) {
    let targets: BTreeSet<AbsPath> = operations
        .iter()
        .map(|record| record.target.clone())
        .collect();
    let changes = |link: &AbsPath| {
        targets.contains(link) || link.ancestors().any(|above| targets.contains(&above))
    };
    for (record, links) in operations.iter_mut().zip(followed) {
        if links.iter().any(changes) {
            record.asked = None;
        }
    }
}

/// Returns the config's path for the object at `target`, or for one below it.
fn asked(
    moved: &BTreeMap<AbsPath, AbsPath>,
    target: &AbsPath,
) -> Result<Option<AbsPath>, TransactionError> {
    for (asked, place) in moved.iter().filter(|(_, place)| place.is_under(target)) {
        let below = place.as_str().strip_prefix(target.as_str());
        let above = below.and_then(|below| asked.as_str().strip_suffix(below));
        if let Some(above) = above.filter(|above| *above != target.as_str()) {
            return Ok(Some(AbsPath::new(above)?));
        }
    }
    Ok(None)
}
