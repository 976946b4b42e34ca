//! Building every new object complete, beside the machine, and making it durable.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{SyncPoints, TransactionError, kept, kind_name, object_at};
use crate::{
    path::AbsPath,
    plan::{Node, NodeKind, Operation, OperationKind},
    root::{Kind, Meta, Root},
    update::journal::{OperationRecord, OperationRecordKind, Transaction},
};

/// Below this many new objects, syncing each one costs less than flushing the whole file system,
/// which may hold gigabytes of somebody else's dirty pages. 64 objects at the 0.1–1 ms a sync takes on
/// flash stay within a tenth of a second.
const FEW: u64 = 64;

/// Asked between two objects: whether to give up. Nothing has been committed then.
pub type Stop = AtomicBool;

/// Builds and syncs every new object of `tx`, and fills in their identities.
///
/// `planned` is the plan's operation list that `tx` was made from, in the same order. What an earlier,
/// interrupted attempt left in the staging directories is removed first. The caller marks the
/// transaction [`Staged`](super::super::journal::Mark::Staged) and saves the journal.
pub fn stage(
    root: &Root,
    tx: &mut Transaction,
    planned: &[Operation],
    chown: bool,
    stop: &Stop,
) -> Result<(), TransactionError> {
    for dir in &tx.staging {
        root.remove_tree(dir)?;
        root.make_dirs(dir, 0o700)?;
    }
    let points = SyncPoints::of(root, tx)?;
    let few = planned.iter().map(weight).sum::<u64>() < FEW && !planned.iter().any(owns_links);
    if planned.len() != tx.operations.len() {
        return Err(TransactionError::NotThePlan {
            target: AbsPath::root(),
        });
    }
    for (operation, record) in planned.iter().zip(&mut tx.operations) {
        if stop.load(Ordering::Relaxed) {
            return Err(TransactionError::Stopped);
        }
        stage_one(root, operation, record, chown, few)?;
    }
    if few {
        for dir in &tx.staging {
            root.sync_dir(dir)?;
        }
    } else {
        points.sync()?;
    }
    Ok(())
}

fn weight(operation: &Operation) -> u64 {
    match &operation.kind {
        OperationKind::Put(node) => node.weight().1,
        _ => 0,
    }
}

/// Whether a link of somebody but root is made: its owner is made durable by nothing but `syncfs`.
fn owns_links(operation: &Operation) -> bool {
    fn any(node: &Node) -> bool {
        match &node.kind {
            NodeKind::Link(_) => (node.uid, node.gid) != (0, 0),
            NodeKind::Directory(children) => children.values().any(any),
            NodeKind::File(_) => false,
        }
    }
    matches!(&operation.kind, OperationKind::Put(node) if any(node))
}

fn stage_one(
    root: &Root,
    operation: &Operation,
    record: &mut OperationRecord,
    chown: bool,
    sync: bool,
) -> Result<(), TransactionError> {
    let not_the_plan = || TransactionError::NotThePlan {
        target: operation.target.clone(),
    };
    if operation.target != record.target {
        return Err(not_the_plan());
    }
    let (slot, before, after) = match &mut record.kind {
        OperationRecordKind::Exchange {
            slot,
            before,
            after,
            ..
        } => (slot, before, after),
        // Built from the file as it is when its turn comes.
        OperationRecordKind::Entries { .. } => return Ok(()),
        OperationRecordKind::Metadata {
            before,
            chown,
            original,
            ..
        } => {
            let Some(place) = original else { return Ok(()) };
            return keep_metadata(root, place, *before, *chown, sync);
        }
    };
    match &operation.kind {
        OperationKind::Put(node) => {
            let passes_on = matches!(node.kind, NodeKind::File(_))
                && before
                    .as_ref()
                    .is_some_and(|before| before.kind == kind_name(Kind::File));
            build(root, slot, node, chown, sync && !passes_on)?;
            if passes_on {
                let extras = root.copy_meta_extras(&operation.target, slot)?;
                for (name, error) in extras.left {
                    tracing::warn!(path = %operation.target, attribute = name, %error, "attribute not kept");
                }
                if sync {
                    root.sync_file(slot)?;
                }
            }
            *after = object_at(root, slot)?;
            if matches!(node.kind, NodeKind::Directory(_)) {
                record.brought = Some(kept::content(root, slot)?);
            }
        }
        OperationKind::Restore(_) => {
            *after = Some(object_at(root, slot)?.ok_or_else(not_the_plan)?);
        }
        OperationKind::Remove => *after = None,
        OperationKind::Metadata { .. } | OperationKind::Entries(_) => return Err(not_the_plan()),
    }
    Ok(())
}

/// Mode and owner of a directory that was there before machinist, as an object that can be kept.
fn keep_metadata(
    root: &Root,
    place: &AbsPath,
    (mode, uid, gid): (u32, u32, u32),
    chown: bool,
    sync: bool,
) -> Result<(), TransactionError> {
    let meta = Meta {
        mode,
        uid,
        gid,
        chown,
    };
    root.build_dir(place, &meta)?;
    if sync {
        root.sync_dir(place)?;
    }
    Ok(())
}

fn build(
    root: &Root,
    at: &AbsPath,
    node: &Node,
    chown: bool,
    sync: bool,
) -> Result<(), TransactionError> {
    let meta = Meta {
        mode: node.mode,
        uid: node.uid,
        gid: node.gid,
        chown,
    };
    match &node.kind {
        NodeKind::File(content) => {
            let bytes = content.bytes().ok_or_else(|| TransactionError::NoContent {
                digest: content.digest(),
            })?;
            root.build_file(at, bytes, &meta)?;
            if sync {
                root.sync_file(at)?;
            }
        }
        NodeKind::Link(text) => {
            root.build_link(at, text)?;
            root.own_link(at, &meta)?;
        }
        NodeKind::Directory(children) => {
            // Built open to us alone; its own mode may forbid us to write into it.
            root.build_dir(
                at,
                &Meta {
                    mode: 0o700,
                    ..meta
                },
            )?;
            for (name, child) in children {
                build(root, &at.join(name)?, child, chown, sync)?;
            }
            root.set_meta(at, &meta)?;
            if sync {
                root.sync_dir(at)?;
            }
        }
    }
    Ok(())
}
