//! Bringing the old objects back, and dropping what was only staged.

use super::{
    SyncPoints, TransactionError,
    aside::{self, Way},
    commit::{loses_lists, set_attributes, swap},
    entries,
    judge::{Verdict, judge},
    kept, object_at,
};
use crate::{
    path::AbsPath,
    root::{Kind, Root},
    update::journal::{Mark, OperationRecord, OperationRecordKind, Transaction},
};

/// Exchanges everything back in reverse order and makes it durable. Repeating it changes nothing.
///
/// The direction must be in the journal before the first call. A target that is no longer what we
/// committed is first saved below `drifted/<transaction>/`; those paths are returned, for an event.
pub fn undo(root: &Root, tx: &Transaction) -> Result<Vec<AbsPath>, TransactionError> {
    let sync = SyncPoints::of(root, tx)?;
    let mut drifted = Vec::new();
    for record in tx.operations.iter().rev() {
        if matches!(record.kind, OperationRecordKind::Entries { .. }) {
            // Each entry is judged by itself: one may be done, and the next one somebody else's.
            if tx.mark >= Mark::Staged {
                backward(root, record)?;
            }
            continue;
        }
        aside::settle(root, record, Way::Back)?;
        match judge(root, record)? {
            Verdict::NotDone => {}
            // Somebody uses a directory of ours.
            Verdict::Done if kept::holds_other(root, &record.target, record.brought)? => {
                drifted.extend(reclaim(root, tx, record)?);
            }
            Verdict::Done => backward(root, record)?,
            Verdict::Unreachable if tx.mark < Mark::Staged => {}
            Verdict::Unreachable => {
                return Err(TransactionError::MountMissing {
                    target: record.target.clone(),
                });
            }
            Verdict::Foreign => drifted.extend(reclaim(root, tx, record)?),
        }
    }
    sync.sync()?;
    Ok(drifted)
}

/// Removes the staging directories of a transaction of which nothing was committed, or all undone,
/// and makes that durable: the journal may forget them afterwards.
pub fn drop_staging(root: &Root, tx: &Transaction) -> Result<(), TransactionError> {
    let mut sync = SyncPoints::new(root);
    for dir in &tx.staging {
        sync.add(dir)?;
    }
    kept::clear(root, tx)?;
    sync.sync()
}

fn backward(root: &Root, record: &OperationRecord) -> Result<(), TransactionError> {
    match &record.kind {
        OperationRecordKind::Exchange {
            slot,
            before,
            after,
            ..
        } => swap(
            root,
            &record.target,
            after.is_some(),
            slot,
            before.is_some(),
        ),
        OperationRecordKind::Metadata {
            before,
            chown,
            file,
            ..
        } => {
            bring_lists_back(root, record)?;
            set_attributes(root, &record.target, *before, (*chown, *file))
        }
        OperationRecordKind::Entries { slot, edits } => {
            entries::backward(root, &record.target, slot, edits)
        }
    }
}

fn bring_lists_back(root: &Root, record: &OperationRecord) -> Result<(), TransactionError> {
    match loses_lists(&record.kind) {
        true => Ok(root.set_access_lists(&record.target, &record.lists)?),
        false => Ok(()),
    }
}

/// Somebody changed the target after the commit. Their object is kept aside; ours comes back.
///
/// When the old object is not in its slot either, it was never taken out (the change came before the
/// commit reached this operation): then the target is theirs and stays.
fn reclaim(
    root: &Root,
    tx: &Transaction,
    record: &OperationRecord,
) -> Result<Option<AbsPath>, TransactionError> {
    let OperationRecordKind::Exchange { slot, before, .. } = &record.kind else {
        let OperationRecordKind::Metadata {
            before,
            chown,
            file,
            ..
        } = &record.kind
        else {
            return Ok(None);
        };
        let kind = if *file { Kind::File } else { Kind::Directory };
        if root
            .stat(&record.target)?
            .is_some_and(|stat| stat.kind == kind)
        {
            bring_lists_back(root, record)?;
            set_attributes(root, &record.target, *before, (*chown, *file))?;
        }
        return Ok(Some(record.target.clone()));
    };
    let waiting = object_at(root, slot)?;
    let taken_out = before.is_some() && waiting == *before;
    let put_in = before.is_none() && waiting.is_none();
    if !taken_out && !put_in {
        return Ok(None);
    }
    let theirs = root.stat(&record.target)?.is_some();
    if theirs {
        kept::set_aside(root, tx, slot, &record.target, &record.target)?;
    }
    if taken_out {
        root.move_new(slot, &record.target)?;
    }
    Ok(theirs.then(|| record.target.clone()))
}
