//! Finishes verified transactions: updates the journal's lists of owned paths and originals.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    TransactionError, holder_path::holder, kind_name, ownership::is_ours, passwd_entries::edits,
};
use crate::journal::{
    BackupPolicy, GivenLabels, Journal, ObjectId, OperationRecord, OperationRecordKind,
    Transaction, TransactionState,
};
use machinist_base::abs_path::AbsPath;
use machinist_plan::{Attributes, remember};
use machinist_rootfs::{FileKind, ObjectIdentity};

/// Merges all open transactions into the base. Pure; the caller saves the journal immediately afterwards.
///
/// Each path keeps its oldest original. From here on nothing is undone. `cleanup` moves the files, and may be
/// repeated after a crash.
pub fn finish(journal: &mut Journal) -> Result<(), TransactionError> {
    journal.labels = labels(journal);
    let mut transactions = std::mem::take(&mut journal.transactions);
    for tx in &mut transactions {
        tx.mark = TransactionState::Verified;
        for record in &tx.operations {
            for edit in edits(record) {
                remember(&mut journal.entries, edit);
            }
            take_over(journal, tx, record)?;
        }
        journal
            .entries
            .retain(|edit| !tx.let_go.contains(&edit.place()));
        for path in &tx.released {
            journal.modes.remove(path);
            journal.changed_objects.remove(path);
            journal.owned.remove(path);
            journal.adopted.remove(path);
        }
        journal.adopted.extend(tx.adopted.iter().cloned());
        journal.holders.append(&mut tx.holders);
        journal.base = Some(tx.to.clone());
    }
    journal.transactions = transactions;
    if let Some(trial) = journal.os_trial.take() {
        journal.kernel_arguments = trial.append_arguments;
        if trial.packages.is_some() {
            // The provider has recorded them.
            journal.adopted_packages.clear();
        }
    }
    journal.failure = None;
    forget_labels(journal);
    Ok(())
}

/// Drops the labels of paths that are not owned any more.
pub(super) fn forget_labels(journal: &mut Journal) {
    let (owned, made) = (&journal.owned, &journal.made);
    let ours = |path: &AbsPath| owned.contains_key(path) || made.contains(path);
    journal.labels.retain(ours);
}

fn take_over(
    journal: &mut Journal,
    tx: &Transaction,
    record: &OperationRecord,
) -> Result<(), TransactionError> {
    let target = &record.target;
    let (slot, before, after, removal, foreign, keep, owner) = match &record.kind {
        OperationRecordKind::Exchange {
            slot,
            before,
            after,
            removal,
            foreign,
            keep,
            recorded_owner,
        } => (
            slot,
            before,
            after,
            *removal,
            *foreign,
            *keep,
            *recorded_owner,
        ),
        OperationRecordKind::Entries { .. } => return Ok(()),
        OperationRecordKind::Metadata { .. } => return take_over_metadata(journal, tx, record),
    };
    forget_attributes(journal, record);
    if let Some(object) = copied_object(record) {
        journal.changed_objects.insert(target.clone(), object);
    }
    let directory = kind_name(FileKind::Directory);
    if before
        .as_ref()
        .is_some_and(|before| before.kind == directory)
    {
        forget_below(journal, target);
    }
    if keep == BackupPolicy::Original {
        keep_original(journal, tx, target, slot)?;
    }
    if restores_original(tx, slot) {
        journal.originals.remove(target);
    }
    journal.adopted.remove(target);
    journal.owned.remove(target);
    journal.made.remove(target);
    if removal || foreign {
        return Ok(());
    }
    if after.as_ref().is_none_or(|after| after.kind != directory) {
        journal.owned.insert(target.clone(), owner);
    } else if !record.stays {
        journal.made.insert(target.clone());
    }
    for below in &record.below {
        if below.directory {
            journal.made.insert(below.path.clone());
        } else {
            journal.owned.insert(below.path.clone(), below.owner);
        }
    }
    Ok(())
}

/// Drops what the journal knows of the replaced object's mode and owner. A copy of the original keeps its own.
fn forget_attributes(journal: &mut Journal, record: &OperationRecord) {
    let target = &record.target;
    journal.modes.remove(target);
    journal.changed_objects.remove(target);
    if record.copy_of.is_none() {
        journal.user_written.remove(target);
        return;
    }
    journal.originals.remove(target);
    let attributes = record.attributes.map(|them| (target.clone(), them));
    journal.modes.extend(attributes);
}

/// The copy of an original that the operation put in its place: no other user can have put it there, so its mode and
/// owner may be restored later.
fn copied_object(record: &OperationRecord) -> Option<ObjectIdentity> {
    let OperationRecordKind::Exchange {
        after: Some(after), ..
    } = &record.kind
    else {
        return None;
    };
    record.copy_of.as_ref()?;
    let ObjectId { ino, birth, .. } = after;
    Some(ObjectIdentity {
        ino: *ino,
        birth: *birth,
    })
}

/// Merges a change of mode and owner in place.
fn take_over_metadata(
    journal: &mut Journal,
    tx: &Transaction,
    record: &OperationRecord,
) -> Result<(), TransactionError> {
    let target = &record.target;
    if let OperationRecordKind::Metadata {
        original,
        file,
        before,
        after,
        chown,
        object,
        ..
    } = &record.kind
    {
        if let Some(object) = object {
            journal.changed_objects.insert(target.clone(), *object);
        }
        if was_users(&record.kind) {
            journal.user_written.insert(target.clone());
        }
        if let Some(slot) = original {
            keep_original(journal, tx, target, slot)?;
        }
        if *file && !journal.owned.contains_key(target) {
            keep_mode(&mut journal.modes, target, *before, (*after, *chown));
        }
        journal.adopted.remove(target);
    }
    Ok(())
}

/// Keeps the mode and owner before the first change. Once the file belongs to another user than root, that user may
/// write its content, so set-ID bits for another user are not restored.
fn keep_mode(
    modes: &mut BTreeMap<AbsPath, Attributes>,
    target: &AbsPath,
    before: (u32, u32, u32),
    ((_, owner, _), chown): ((u32, u32, u32), bool),
) {
    let kept = modes.entry(target.clone()).or_insert(attributes_of(before));
    if chown && owner != 0 && owner != kept.uid {
        kept.mode &= !Attributes::SET_ID_BITS;
    }
}

pub(super) const fn attributes_of((mode, uid, gid): (u32, u32, u32)) -> Attributes {
    Attributes { mode, uid, gid }
}

fn keep_original(
    journal: &mut Journal,
    tx: &Transaction,
    target: &AbsPath,
    slot: &AbsPath,
) -> Result<(), TransactionError> {
    let place = original_place(tx, slot)?;
    journal.originals.entry(target.clone()).or_insert(place);
    Ok(())
}

/// Drops the records of objects in a directory that was removed.
fn forget_below(journal: &mut Journal, target: &AbsPath) {
    let inside = |path: &AbsPath| path.is_under(target) && path != target;
    journal.owned.retain(|path, _| !inside(path));
    journal.made.retain(|path| !inside(path));
    journal.adopted.retain(|path| !inside(path));
}

/// Returns whether the operation restores an original: then the slot is outside the transaction's own staging
/// directories.
pub(super) fn restores_original(tx: &Transaction, slot: &AbsPath) -> bool {
    !tx.staging.iter().any(|dir| slot.is_under(dir))
}

/// Returns the path for an original on the mount of its slot.
pub(super) fn original_place(
    tx: &Transaction,
    slot: &AbsPath,
) -> Result<AbsPath, TransactionError> {
    let holder = holder(slot);
    Ok(holder.join(&format!("originals/{}-{}", tx.id, slot.file_name()))?)
}

/// Returns the labels of owned paths, including open transactions.
pub fn labels(journal: &Journal) -> GivenLabels {
    let mut all = journal.labels.clone();
    for tx in &journal.transactions {
        for record in &tx.operations {
            if matches!(record.kind, OperationRecordKind::Exchange { .. }) {
                all.retain(|path| !path.is_under(&record.target));
            }
        }
        all.retain(|path| !tx.released.contains(path));
        all.extend(&tx.labels);
    }
    all
}

/// Returns the directories that machinist created, including those of open transactions.
pub fn made(journal: &Journal) -> BTreeSet<AbsPath> {
    let originals = originals(journal);
    let operations = journal.transactions.iter().flat_map(|tx| &tx.operations);
    let open = operations.flat_map(|record| {
        let created = matches!(record.kind, OperationRecordKind::Exchange { .. }) && !record.stays;
        let own = created.then_some(&record.target);
        let below = record.below.iter().filter(|below| below.directory);
        below.map(|below| &below.path).chain(own)
    });
    let all = journal.made.iter().chain(open);
    let made = all.filter(|path| is_ours(journal, path) && !originals.contains_key(path));
    made.cloned().collect()
}

/// Returns the originals by target: those that are kept, and those of open transactions, which are in their slots
/// until the verification. Leaves out originals that an open transaction has restored.
pub fn originals(journal: &Journal) -> BTreeMap<AbsPath, AbsPath> {
    let mut all = journal.originals.clone();
    for tx in &journal.transactions {
        for record in &tx.operations {
            if record.copy_of.is_some() {
                all.remove(&record.target);
                continue;
            }
            let (slot, kept) = match &record.kind {
                OperationRecordKind::Exchange { slot, keep, .. } => {
                    (slot, *keep == BackupPolicy::Original)
                }
                OperationRecordKind::Metadata {
                    original: Some(slot),
                    ..
                } => (slot, true),
                OperationRecordKind::Metadata { .. } | OperationRecordKind::Entries { .. } => {
                    continue;
                }
            };
            if kept {
                all.entry(record.target.clone()).or_insert(slot.clone());
            } else if restores_original(tx, slot) {
                all.remove(&record.target);
            }
        }
    }
    all
}

/// Returns mode and owner before machinist changed them, for files whose content the config does not define,
/// including open transactions.
pub fn modes(journal: &Journal) -> BTreeMap<AbsPath, Attributes> {
    let mut all = journal.modes.clone();
    for record in journal.transactions.iter().flat_map(|tx| &tx.operations) {
        let target = &record.target;
        match &record.kind {
            OperationRecordKind::Metadata {
                file: true,
                before,
                after,
                chown,
                ..
            } if !is_ours(journal, target) => {
                keep_mode(&mut all, target, *before, (*after, *chown));
            }
            OperationRecordKind::Exchange { .. } => {
                all.remove(target);
                let copied = record.attributes.filter(|_| record.copy_of.is_some());
                all.extend(copied.map(|them| (target.clone(), them)));
            }
            _ => {}
        }
    }
    all
}

/// Returns the files that a user could write while a config set their owner, including open transactions.
pub fn user_written(journal: &Journal) -> BTreeSet<AbsPath> {
    let mut all = journal.user_written.clone();
    for record in journal.transactions.iter().flat_map(|tx| &tx.operations) {
        if was_users(&record.kind) {
            all.insert(record.target.clone());
        }
    }
    all
}

/// Whether the operation sets the owner of a file that belongs to another user than root before or after it.
fn was_users(kind: &OperationRecordKind) -> bool {
    matches!(
        kind,
        OperationRecordKind::Metadata { file: true, chown: true, before, after, .. }
            if before.1 != 0 || after.1 != 0
    )
}

/// Returns the objects whose mode or owner was changed in place, including open transactions.
pub fn changed_objects(journal: &Journal) -> BTreeMap<AbsPath, ObjectIdentity> {
    let mut all = journal.changed_objects.clone();
    all.extend(open_changes(journal).map(|(path, object)| (path.clone(), object)));
    all
}

/// Returns the object at this path whose mode or owner was changed in place last.
pub(super) fn changed_object(journal: &Journal, path: &AbsPath) -> Option<ObjectIdentity> {
    let open = open_changes(journal).filter(|(changed, _)| *changed == path);
    let open = open.last().map(|(_, object)| object);
    open.or_else(|| journal.changed_objects.get(path).copied())
}

fn open_changes(journal: &Journal) -> impl Iterator<Item = (&AbsPath, ObjectIdentity)> {
    let records = journal.transactions.iter().flat_map(|tx| &tx.operations);
    records.filter_map(|record| match &record.kind {
        OperationRecordKind::Metadata {
            object: Some(object),
            ..
        } => Some((&record.target, *object)),
        _ => Some((&record.target, copied_object(record)?)),
    })
}
