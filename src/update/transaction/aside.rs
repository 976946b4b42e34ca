//! Where a file system cannot make two names change places (`RENAME_EXCHANGE`): the old object moves
//! aside, the new one in, the old one into the slot.
//!
//! Between the first and the second of these the target is absent; no other call can put a directory in
//! the place of something. Each step is durable before the next begins. What a crash leaves is told
//! apart by the three places together, as [`judge`](super::judge::judge) does with two, and brought to
//! one of the two states that it knows before it is asked.

use super::{TransactionError, object_at};
use crate::{
    path::AbsPath,
    root::Root,
    update::journal::{ObjectId, OperationRecord, OperationRecordKind},
};

/// Which object the target shall hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The new one.
    Forward,
    /// The one before.
    Back,
}

/// Makes target and slot change places in three steps.
pub(super) fn swap(root: &Root, target: &AbsPath, slot: &AbsPath) -> Result<(), TransactionError> {
    let aside = beside(slot)?;
    move_durably(root, target, &aside)?;
    move_durably(root, slot, target)?;
    move_durably(root, &aside, slot)
}

/// Ends what an interrupted [`swap`] left half done, towards `way` where both ends are still open.
pub(super) fn settle(
    root: &Root,
    record: &OperationRecord,
    way: Way,
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
        Way::Forward => after,
        Way::Back => before,
    };
    match (object_at(root, target)?, object_at(root, slot)?) {
        (None, Some(waiting)) if waiting == *wanted => {
            move_durably(root, slot, target)?;
            move_durably(root, &aside, slot)
        }
        (None, Some(_)) => move_durably(root, &aside, target),
        (_, None) => move_durably(root, &aside, slot),
        // Somebody has put something there in between. The undo keeps theirs and looks for the object
        // before in the slot.
        (Some(_), Some(waiting)) if way == Way::Back => {
            drop_the_new(root, (slot, &waiting), (&aside, &laid_aside), before)
        }
        (Some(_), Some(_)) => Ok(()),
    }
}

fn drop_the_new(
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

/// The third place, in the staging directory of the slot.
pub(super) fn beside(slot: &AbsPath) -> Result<AbsPath, TransactionError> {
    let staging = slot.parent().unwrap_or_else(AbsPath::root);
    Ok(staging.join(&format!("{}.aside", slot.file_name()))?)
}

/// The new name is durable, and the old one gone.
fn move_durably(root: &Root, from: &AbsPath, to: &AbsPath) -> Result<(), TransactionError> {
    root.move_new(from, to)?;
    for place in [to, from] {
        root.sync_dir(&place.parent().unwrap_or_else(AbsPath::root))?;
    }
    Ok(())
}
