//! Commits a transaction: exchanges the staged objects, with one rename each.

use std::collections::BTreeMap;

use super::{
    SyncPoints, TransactionError, backups, passwd_entries,
    progress::{OperationProgress, operation_progress},
    target_directory::{DirectoryRefusal, name_mover, reach},
    three_step_swap::{self, SwapDirection},
};
use crate::journal::{OperationRecord, OperationRecordKind, Transaction};
use machinist_base::abs_path::AbsPath;
use machinist_rootfs::{FileKind, Meta, ObjectIdentity, Root};

/// Carries out the remaining operations and makes them durable. It is idempotent.
///
/// The caller marks the transaction [`Committed`](super::super::journal::TransactionState::Committed). After
/// [`TransactionError::Changed`] nothing is lost: completed operations stay, and [`super::undo`] restores the old
/// objects.
pub fn commit(root: &Root, tx: &Transaction) -> Result<(), TransactionError> {
    let pass = &root.for_one_pass();
    let sync = SyncPoints::of(pass, tx)?;
    for record in &tx.operations {
        commit_one(pass, record).map_err(|error| name_mover(root, tx, error))?;
    }
    sync.sync()
}

fn commit_one(root: &Root, record: &OperationRecord) -> Result<(), TransactionError> {
    let target = &record.target;
    let reached = match reach(root, record) {
        Ok(reached) => reached,
        // If the staging directory is missing too, the whole file system is unmounted.
        Err(DirectoryRefusal::Missing)
            if operation_progress(root, record)? == OperationProgress::Unreachable =>
        {
            let target = target.clone();
            return Err(TransactionError::MountMissing { target });
        }
        Err(refusal) => return Err(refusal.into_error(target)),
    };
    settle_and_commit(&reached.root, record).map_err(|error| reached.blame(target, error))?;
    let confirmed = reached.confirm(root, record);
    confirmed.map_err(|refusal| refusal.into_error(target))
}

fn settle_and_commit(root: &Root, record: &OperationRecord) -> Result<(), TransactionError> {
    let target = record.target.clone();
    three_step_swap::settle(root, record, SwapDirection::Forward)?;
    match operation_progress(root, record)? {
        OperationProgress::Done => Ok(()),
        // Another process uses a directory that is about to be removed.
        OperationProgress::NotDone if backups::holds_other(root, &target, record.held)? => {
            Err(TransactionError::Changed { target })
        }
        OperationProgress::NotDone => forward(root, record),
        OperationProgress::Foreign => Err(TransactionError::Changed { target }),
        OperationProgress::Unreachable => Err(TransactionError::MountMissing { target }),
    }
}

fn forward(root: &Root, record: &OperationRecord) -> Result<(), TransactionError> {
    match &record.kind {
        OperationRecordKind::Exchange {
            slot,
            before,
            after,
            ..
        } => swap(
            root,
            &record.target,
            before.is_some(),
            slot,
            after.is_some(),
        ),
        OperationRecordKind::Metadata {
            after, chown, file, ..
        } => {
            let (target, how) = (&record.target, (*chown, *file));
            let only = record.kind.only_object();
            if !loses_lists(&record.kind) {
                return set_attributes(root, target, *after, how, only);
            }
            let none = BTreeMap::new();
            root.set_access_lists(target, &none)?;
            set_attributes(root, target, *after, how, only)?;
            // The previous owner may have set an access control list in between.
            Ok(root.set_access_lists(target, &none)?)
        }
        OperationRecordKind::Entries { slot, edits } => {
            passwd_entries::forward(root, &record.target, slot, edits)
        }
    }
}

/// Exchanges two objects, or moves the one that exists, with one rename.
pub(super) fn swap(
    root: &Root,
    target: &AbsPath,
    at_target: bool,
    slot: &AbsPath,
    in_slot: bool,
) -> Result<(), TransactionError> {
    match (at_target, in_slot) {
        (true, true) => match root.exchange(target, slot) {
            Err(error) if error.exchange_unsupported() => {
                three_step_swap::swap(root, target, slot)?
            }
            exchanged => exchanged?,
        },
        (false, true) => root.move_new(slot, target)?,
        (true, false) => root.move_new(target, slot)?,
        (false, false) => {}
    }
    Ok(())
}

/// Returns whether the owner changes from one user to another in place, so that access control lists of the
/// previous owner must be removed.
pub(super) fn loses_lists(kind: &OperationRecordKind) -> bool {
    let OperationRecordKind::Metadata {
        before,
        after,
        chown,
        ..
    } = kind
    else {
        return false;
    };
    *chown && before.1 != 0 && before.1 != after.1
}

/// Sets mode and owner of a directory or file in place.
pub(super) fn set_attributes(
    root: &Root,
    path: &AbsPath,
    (mode, uid, gid): (u32, u32, u32),
    (chown, file): (bool, bool),
    object: Option<ObjectIdentity>,
) -> Result<(), TransactionError> {
    let kind = match file {
        true => FileKind::File,
        false => FileKind::Directory,
    };
    let meta = Meta {
        mode,
        uid,
        gid,
        chown,
    };
    Ok(root.set_meta_of(path, (kind, object), &meta)?)
}
