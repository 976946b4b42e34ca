//! Undoes a transaction: restores the old objects, and deletes what was only staged.

use super::{
    SyncPoints, TransactionError, backups,
    commit::{loses_lists, set_attributes, swap},
    object_at, passwd_entries,
    progress::{OperationProgress, metadata_target, operation_progress},
    target_directory::{DirectoryRefusal, clear_staging, is_machine_error, reach, staging},
    three_step_swap::{self, SwapDirection},
};
use crate::journal::{OperationRecord, OperationRecordKind, Transaction, TransactionState};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_plan::Attributes;
use machinist_rootfs::Root;

/// Targets that an undo did not simply exchange back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RollbackSummary {
    /// Targets that another writer had changed: that version is kept below `drifted/<transaction>/`.
    pub kept: Vec<AbsPath>,
    /// Targets whose directory a user has moved, removed, or made unsafe: they are left unchanged, and the old
    /// object is kept below `drifted/<transaction>/`.
    pub left_behind: Vec<UnrevertedTarget>,
}

/// An operation that was not undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnrevertedTarget {
    /// Its target.
    pub path: AbsPath,
    /// The cause.
    pub why: String,
}

impl RollbackSummary {
    /// Returns one line for each path that was left behind, for the journal.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let left = self.left_behind.iter();
        left.map(|UnrevertedTarget { path, why }| {
            format!("{path} could not be restored safely: {why}")
        })
    }

    /// Logs the paths that were moved away or left behind.
    pub fn log(&self) {
        for path in &self.kept {
            tracing::warn!(%path, "modified by another process; its version is kept below drifted/");
        }
        for UnrevertedTarget { path, why } in &self.left_behind {
            let reason = Reason::LeftBehind;
            tracing::warn!(%path, %reason, "could not be restored safely and is left unchanged: {why}");
        }
    }
}

/// Exchanges all objects back in reverse order and makes that durable. It is idempotent.
///
/// The direction must be in the journal before the first call. A target that has changed since the commit is first
/// moved to `drifted/<transaction>/`. Objects that a user has made unreachable are left behind, so that no user can
/// prevent the rollback of the rest of the config.
pub fn undo(root: &Root, tx: &Transaction) -> Result<RollbackSummary, TransactionError> {
    let root = &root.for_one_pass();
    let sync = SyncPoints::of(root, tx)?;
    let mut undone = RollbackSummary::default();
    for record in tx.operations.iter().rev() {
        if matches!(record.kind, OperationRecordKind::Entries { .. }) {
            // Each entry is judged separately: one may be done, and the next one may have been changed by another
            // writer.
            if tx.mark >= TransactionState::Staged {
                backward(root, record)?;
            }
            continue;
        }
        undo_one(root, tx, record, &mut undone)?;
    }
    sync.sync()?;
    Ok(undone)
}

fn undo_one(
    root: &Root,
    tx: &Transaction,
    record: &OperationRecord,
    undone: &mut RollbackSummary,
) -> Result<(), TransactionError> {
    let reached = match reach(root, record) {
        Ok(reached) => reached,
        // The file system is not mounted, or nothing was staged yet.
        Err(DirectoryRefusal::Missing)
            if operation_progress(root, record)? == OperationProgress::Unreachable =>
        {
            return match tx.mark < TransactionState::Staged {
                true => Ok(()),
                false => Err(TransactionError::MountMissing {
                    target: record.target.clone(),
                }),
            };
        }
        Err(DirectoryRefusal::Error(TransactionError::Root(error))) if is_machine_error(&error) => {
            return Err(error.into());
        }
        Err(refusal) => {
            let error = refusal.into_error(&record.target);
            return keep_changed(root, tx, record, &error, undone);
        }
    };
    let back = undo_operation(&reached.root, tx, record);
    let back = back.map_err(|error| reached.blame(&record.target, error));
    let back = back.and_then(|kept| {
        undone.kept.extend(kept);
        let confirmed = reached.confirm(root, record);
        confirmed.map_err(|refusal| refusal.into_error(&record.target))
    });
    match back {
        Err(error) if reached.is_user_change(&error, record)? => {
            keep_changed(&reached.root, tx, record, &error, undone)
        }
        back => back,
    }
}

/// Undoes one operation. Returns the target if another writer's version of it was kept.
fn undo_operation(
    root: &Root,
    tx: &Transaction,
    record: &OperationRecord,
) -> Result<Option<AbsPath>, TransactionError> {
    three_step_swap::settle(root, record, SwapDirection::Back)?;
    match operation_progress(root, record)? {
        OperationProgress::NotDone => Ok(None),
        // Another process uses a directory that machinist created.
        OperationProgress::Done if backups::holds_other(root, &record.target, record.brought)? => {
            reclaim(root, tx, record)
        }
        OperationProgress::Done => backward(root, record).map(|()| None),
        OperationProgress::Unreachable if tx.mark < TransactionState::Staged => Ok(None),
        OperationProgress::Unreachable => Err(TransactionError::MountMissing {
            target: record.target.clone(),
        }),
        OperationProgress::Foreign => reclaim(root, tx, record),
    }
}

/// Leaves one operation behind: does not modify its target, and keeps the old object.
fn keep_changed(
    root: &Root,
    tx: &Transaction,
    record: &OperationRecord,
    error: &TransactionError,
    undone: &mut RollbackSummary,
) -> Result<(), TransactionError> {
    if tx.mark < TransactionState::Staged {
        return Ok(());
    }
    if let OperationRecordKind::Exchange { slot, before, .. } = &record.kind {
        let root = staging(root, &tx.staging)?;
        let mut taken_out = false;
        for place in [slot.clone(), three_step_swap::beside(slot)?] {
            if before.is_some() && object_at(&root, &place)? == *before {
                backups::set_aside_if_it_fits(&root, tx, slot, &place, &record.target)?;
                taken_out = true;
            }
        }
        let put_in = before.is_none() && object_at(&root, slot)?.is_none();
        if !taken_out && !put_in {
            // The commit did not reach this operation.
            return Ok(());
        }
    }
    undone.left_behind.push(UnrevertedTarget {
        path: record.target.clone(),
        why: machinist_base::error_chain::chain(error),
    });
    Ok(())
}

/// Removes the staging directories of a transaction of which nothing was committed or everything was undone, and
/// makes that durable. The journal may drop the transaction afterwards.
pub fn drop_staging(root: &Root, tx: &Transaction) -> Result<(), TransactionError> {
    let mut sync = SyncPoints::new(root);
    for dir in &tx.staging {
        sync.add(dir)?;
    }
    clear_staging(root, &tx.staging)?;
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
        OperationRecordKind::Metadata { .. } => restore_attributes(root, record),
        OperationRecordKind::Entries { slot, edits } => {
            passwd_entries::backward(root, &record.target, slot, edits)
        }
    }
}

/// The mode and owner to restore. A file that belonged to another user than root meanwhile may contain that user's
/// content, so its set-ID bits are not restored.
fn attributes_before(
    (mode, uid, gid): (u32, u32, u32),
    (_, owner, _): (u32, u32, u32),
    (chown, file): (bool, bool),
) -> (u32, u32, u32) {
    let foreign = chown && file && owner != 0 && owner != uid;
    let mode = if foreign {
        mode & !Attributes::SET_ID_BITS
    } else {
        mode
    };
    (mode, uid, gid)
}

/// Sets the mode, owner and access control lists from before the operation.
fn restore_attributes(root: &Root, record: &OperationRecord) -> Result<(), TransactionError> {
    let OperationRecordKind::Metadata {
        before,
        after,
        chown,
        file,
        ..
    } = &record.kind
    else {
        return Ok(());
    };
    restore_access_lists(root, record)?;
    let (how, only) = ((*chown, *file), record.kind.only_object());
    let before = attributes_before(*before, *after, how);
    set_attributes(root, &record.target, before, how, only)
}

fn restore_access_lists(root: &Root, record: &OperationRecord) -> Result<(), TransactionError> {
    match loses_lists(&record.kind) {
        true => Ok(root.set_access_lists(&record.target, &record.lists)?),
        false => Ok(()),
    }
}

/// Undoes an operation whose target another writer has changed after the commit: keeps the changed object, and
/// restores the old one.
///
/// If the old object is not in its slot either, the change came before the commit reached this operation: the
/// target stays as the other writer left it.
fn reclaim(
    root: &Root,
    tx: &Transaction,
    record: &OperationRecord,
) -> Result<Option<AbsPath>, TransactionError> {
    let OperationRecordKind::Exchange { slot, before, .. } = &record.kind else {
        let OperationRecordKind::Metadata { file, .. } = &record.kind else {
            return Ok(None);
        };
        if metadata_target(root, record, *file)?.is_some() {
            restore_attributes(root, record)?;
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
        backups::set_aside(root, tx, slot, &record.target, &record.target)?;
    }
    if taken_out {
        root.move_new(slot, &record.target)?;
    }
    Ok(theirs.then(|| record.target.clone()))
}
