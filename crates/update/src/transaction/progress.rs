//! Judges from the disk alone whether an operation is done.

use super::{TransactionError, object_at, passwd_entries};
use crate::journal::{ObjectId, OperationRecord, OperationRecordKind};
use machinist_base::abs_path::AbsPath;
use machinist_plan::{Attributes, Edit, EditState};
use machinist_rootfs::{FileKind, Root, Stat};

/// Progress of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperationProgress {
    /// The new object is in place and the old one in the slot.
    Done,
    /// The old object is in place and the new one in the slot.
    NotDone,
    /// Neither: another writer has changed an object.
    Foreign,
    /// The target's directory does not exist, nor does its file system.
    Unreachable,
}

/// Judges target and slot *together*: one of them alone can match by accident, for example when another writer
/// deleted a file that the operation removes.
pub(super) fn operation_progress(
    root: &Root,
    record: &OperationRecord,
) -> Result<OperationProgress, TransactionError> {
    match &record.kind {
        OperationRecordKind::Exchange {
            slot,
            before,
            after,
            removal,
            ..
        } => {
            if after.is_none() && !removal {
                return Ok(OperationProgress::NotDone);
            }
            let holder = slot.parent().unwrap_or_else(AbsPath::root);
            if root.stat(&holder)?.is_none() {
                return Ok(OperationProgress::Unreachable);
            }
            let (target, waiting) = (object_at(root, &record.target)?, object_at(root, slot)?);
            Ok(exchange(
                before.as_ref(),
                after.as_ref(),
                target.as_ref(),
                waiting.as_ref(),
            ))
        }
        OperationRecordKind::Entries { slot, edits } => {
            let holder = slot.parent().unwrap_or_else(AbsPath::root);
            match root.stat(&holder)? {
                Some(_) => entries_progress(root, &record.target, edits),
                None => Ok(OperationProgress::Unreachable),
            }
        }
        OperationRecordKind::Metadata { .. } => metadata_progress(root, record),
    }
}

/// Judges a change of mode and owner in place by the current mode and owner.
fn metadata_progress(
    root: &Root,
    record: &OperationRecord,
) -> Result<OperationProgress, TransactionError> {
    let OperationRecordKind::Metadata {
        before,
        after,
        chown,
        file,
        ..
    } = &record.kind
    else {
        return Ok(OperationProgress::Foreign);
    };
    let Some(stat) = metadata_target(root, record, *file)? else {
        return Ok(OperationProgress::Foreign);
    };
    let now = (stat.mode, stat.uid, stat.gid);
    let same =
        |want: &(u32, u32, u32)| now.0 == want.0 && (!chown || (now.1, now.2) == (want.1, want.2));
    // Compared attribute by attribute: a crash may have left the owner set and the mode not yet. Setting the owner
    // of a file clears its set-ID bits.
    let cleared = before.0 & !Attributes::SET_ID_BITS;
    let mixed = [before.0, after.0, cleared].contains(&now.0)
        && (!chown || [(before.1, before.2), (after.1, after.2)].contains(&(now.1, now.2)));
    Ok(match () {
        () if same(after) => OperationProgress::Done,
        () if same(before) || mixed => OperationProgress::NotDone,
        () => OperationProgress::Foreign,
    })
}

/// Returns the object whose mode and owner the operation changes; `None` if another one is there.
pub(super) fn metadata_target(
    root: &Root,
    record: &OperationRecord,
    file: bool,
) -> Result<Option<Stat>, TransactionError> {
    let kind = match file {
        true => FileKind::File,
        false => FileKind::Directory,
    };
    let only = record.kind.only_object();
    let is_target =
        |stat: &Stat| stat.kind == kind && only.is_none_or(|only| only == stat.identity);
    Ok(root.stat(&record.target)?.filter(is_target))
}

/// Judges whether the edits of one database are done. If only some of them are done, an administrator has reverted
/// one; the others can still be done.
fn entries_progress(
    root: &Root,
    target: &AbsPath,
    edits: &[Edit],
) -> Result<OperationProgress, TransactionError> {
    let Some(current) = passwd_entries::read(root, target)? else {
        return Ok(OperationProgress::Foreign);
    };
    let states: Vec<EditState> = edits
        .iter()
        .map(|edit| edit.commit_state(&current))
        .collect();
    Ok(match () {
        () if states.contains(&EditState::Foreign) => OperationProgress::Foreign,
        () if states.contains(&EditState::Before) => OperationProgress::NotDone,
        () => OperationProgress::Done,
    })
}

fn exchange(
    before: Option<&ObjectId>,
    after: Option<&ObjectId>,
    target: Option<&ObjectId>,
    slot: Option<&ObjectId>,
) -> OperationProgress {
    if target == after && slot == before {
        OperationProgress::Done
    } else if target == before && slot == after {
        OperationProgress::NotDone
    } else {
        OperationProgress::Foreign
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_counts_as_done_only_if_both_paths_agree() {
        let id = |ino| ObjectId {
            kind: "file".into(),
            ino,
            birth: Some((1, 0)),
            digest: None,
        };
        let (old, new, other) = (id(1), id(2), id(3));
        let (old, new, other) = (Some(&old), Some(&new), Some(&other));
        for (before, after, target, slot, verdict) in [
            (old, new, new, old, OperationProgress::Done),
            (old, new, old, new, OperationProgress::NotDone),
            (None, new, new, None, OperationProgress::Done),
            (None, new, None, new, OperationProgress::NotDone),
            (old, None, None, old, OperationProgress::Done),
            (old, None, old, None, OperationProgress::NotDone),
            // Removed by another writer.
            (old, None, None, None, OperationProgress::Foreign),
            // Two names of one new object.
            (old, new, new, new, OperationProgress::Foreign),
            (old, new, other, new, OperationProgress::Foreign),
            (None, new, other, new, OperationProgress::Foreign),
        ] {
            assert_eq!(
                exchange(before, after, target, slot),
                verdict,
                "{before:?} {after:?} {target:?} {slot:?}"
            );
        }
    }
}
