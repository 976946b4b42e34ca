//! Exchanges two objects on file systems without `RENAME_EXCHANGE`: the old object moves aside, the new one to the
//! target, and the old one into the slot.
//!
//! Between the first and the second rename, the target is missing; no other system call can replace an object with
//! a directory. Each step is durable before the next one begins. After a crash, the three paths together show the
//! state, as [`judge`](super::judge::judge) does with two. [`settle`] then restores one of the two states that
//! `judge` knows, before `judge` runs.

use super::{TransactionError, object_at};
use crate::journal::{ObjectId, OperationRecord, OperationRecordKind};
use machinist_base::abs_path::AbsPath;
use machinist_rootfs::Root;

/// The object that the target shall have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SwapDirection {
    /// The new object.
    Forward,
    /// The old object.
    Back,
}

/// Exchanges target and slot in three steps.
pub(super) fn swap(root: &Root, target: &AbsPath, slot: &AbsPath) -> Result<(), TransactionError> {
    let aside = beside(slot)?;
    move_durably(root, target, &aside)?;
    move_durably(root, slot, target)?;
    move_durably(root, &aside, slot)
}

/// Completes an interrupted [`swap`], towards `way` if both states are still possible.
pub(super) fn settle(
    root: &Root,
    record: &OperationRecord,
    way: SwapDirection,
) -> Result<(), TransactionError> {
    let OperationRecordKind::Exchange {
        slot,
        before: Some(before),
        after: Some(after),
        ..
    } = &record.kind
    else {
        return Ok(());
    };
    let (target, aside) = (&record.target, beside(slot)?);
    let Some(laid_aside) = object_at(root, &aside)? else {
        return Ok(());
    };
    let wanted = match way {
        SwapDirection::Forward => after,
        SwapDirection::Back => before,
    };
    match (object_at(root, target)?, object_at(root, slot)?) {
        (None, Some(waiting)) if waiting == *wanted => {
            move_durably(root, slot, target)?;
            move_durably(root, &aside, slot)
        }
        (None, Some(_)) => move_durably(root, &aside, target),
        (_, None) => move_durably(root, &aside, slot),
        // Another process has created an object there in the meantime. The undo keeps that object, and expects the
        // old one in the slot.
        (Some(_), Some(waiting)) if way == SwapDirection::Back => {
            remove_new_object(root, (slot, &waiting), (&aside, &laid_aside), before)
        }
        (Some(_), Some(_)) => Ok(()),
    }
}

fn remove_new_object(
    root: &Root,
    (slot, waiting): (&AbsPath, &ObjectId),
    (aside, laid_aside): (&AbsPath, &ObjectId),
    before: &ObjectId,
) -> Result<(), TransactionError> {
    if waiting == before {
        return Ok(root.remove_tree(aside)?);
    }
    if laid_aside == before {
        root.remove_tree(slot)?;
        move_durably(root, aside, slot)?;
    }
    Ok(())
}

/// Returns the third path, in the slot's staging directory.
pub(super) fn beside(slot: &AbsPath) -> Result<AbsPath, TransactionError> {
    let staging = slot.parent().unwrap_or_else(AbsPath::root);
    Ok(staging.join(&format!("{}.aside", slot.file_name()))?)
}

/// Renames an object, and makes both the new name and the removal of the old one durable.
fn move_durably(root: &Root, from: &AbsPath, to: &AbsPath) -> Result<(), TransactionError> {
    root.move_new(from, to)?;
    for place in [to, from] {
        root.sync_dir(&place.parent().unwrap_or_else(AbsPath::root))?;
    }
    Ok(())
}
