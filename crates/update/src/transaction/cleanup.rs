//! Cleans up after a durable verification: keeps or deletes the old objects.

use super::{
    SyncPoints, TransactionError, backups,
    commit::set_attributes,
    finalize::{forget_labels, original_place},
    holder_path, mount_point_dirs,
    target_directory::{clear_staging, reach_for_cleanup, staging},
};
use crate::journal::{
    BackupPolicy, ContentState, Journal, OperationRecord, OperationRecordKind, Transaction,
    TransactionState,
};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_plan::{Attributes, MAX_TOTAL_FILE_BYTES};
use machinist_rootfs::{FileKind, Root, Stat};

/// The file of SSH keys that its user edits as well, in `~/.ssh`.
const KEYS_FILE: &str = "authorized_keys";

/// Maximum size of a file of SSH keys that is read.
const MAX_KEYS_BYTES: u64 = 1 << 20;

/// Moves the old objects to where they are kept, empties the staging directories, and makes that durable. It is
/// idempotent.
///
/// Returns the paths whose changed object was moved to `drifted/`. The caller removes the transactions from the
/// journal afterwards. `wanted` returns whether the base config names a directory.
pub fn clean_up(
    root: &Root,
    journal: &mut Journal,
    wanted: &dyn Fn(&AbsPath) -> bool,
) -> Result<Vec<AbsPath>, TransactionError> {
    let transactions = std::mem::take(&mut journal.transactions);
    let tidied = tidy_after(root, journal, &transactions, wanted);
    journal.transactions = transactions;
    tidied
}

fn tidy_after(
    root: &Root,
    journal: &mut Journal,
    transactions: &[Transaction],
    wanted: &dyn Fn(&AbsPath) -> bool,
) -> Result<Vec<AbsPath>, TransactionError> {
    let mut drifted = Vec::new();
    let verified = || {
        transactions
            .iter()
            .filter(|tx| tx.mark == TransactionState::Verified)
    };
    let mut idle = idle_directories(journal, wanted);
    idle.retain(|dir| !holds_keys(root, dir));
    let mut sync = SyncPoints::new(root);
    for dir in verified().flat_map(|tx| &tx.staging).chain(&idle) {
        sync.add(dir)?;
    }
    for tx in verified() {
        let root = &staging(root, &tx.staging)?;
        backups::sync(root, tx)?;
        for record in &tx.operations {
            drifted.extend(keep_pre_image(root, journal, tx, record)?);
        }
        // This must happen before the directories from which these objects came are removed.
        backups::sync(root, tx)?;
    }
    // Each list contains the previous ones, without the paths that a later config named again.
    for path in verified().next_back().iter().flat_map(|tx| &tx.released) {
        let place = journal.originals.get(path);
        let released = place.map(|place| release(root, path, place));
        let released =
            released.map(|released| if_it_answers(path, released, RestoredOriginal::Kept));
        let handled = released.transpose()?;
        if handled == Some(RestoredOriginal::Back) {
            journal.made.remove(path);
        }
        if !journal.made.contains(path) {
            journal.originals.remove(path);
        }
    }
    for dir in idle {
        if journal.made.remove(&dir) {
            let removed = remove_idle(root, journal, &dir);
            if_it_answers(&dir, removed, ())?;
        }
    }
    forget_labels(journal);
    for tx in verified() {
        clear_staging(root, &tx.staging)?;
        backups::prune(root, &journal.history, tx);
    }
    mount_point_dirs::drop_removed(root, journal)?;
    sync.sync()?;
    Ok(drifted)
}

/// Returns the result for a path, or `left` if the file system of a user there does not respond: the path is left
/// unchanged then.
fn if_it_answers<T>(
    path: &AbsPath,
    tidied: Result<T, TransactionError>,
    left: T,
) -> Result<T, TransactionError> {
    match tidied {
        Err(TransactionError::Root(error)) if error.is_unreachable() => {
            let reason = Reason::LeftBehind;
            let why = machinist_base::error_chain::chain(&error);
            tracing::warn!(%path, %reason, "left unchanged: {why}");
            Ok(left)
        }
        tidied => tidied,
    }
}

fn keep_pre_image(
    root: &Root,
    journal: &mut Journal,
    tx: &Transaction,
    record: &OperationRecord,
) -> Result<Option<AbsPath>, TransactionError> {
    let target = &record.target;
    if let Some(place) = &record.copy_of {
        root.remove_tree(place)?;
    }
    let (slot, keep) = match &record.kind {
        OperationRecordKind::Exchange { before: None, .. }
        | OperationRecordKind::Metadata { original: None, .. }
        | OperationRecordKind::Entries { .. } => return Ok(None),
        OperationRecordKind::Exchange { slot, keep, .. } => (slot, *keep),
        OperationRecordKind::Metadata {
            original: Some(slot),
            ..
        } => (slot, BackupPolicy::Original),
    };
    let place = original_place(tx, slot)?;
    let original = keep == BackupPolicy::Original && journal.originals.get(target) == Some(&place);
    let waits = root.stat(slot)?;
    if original {
        if waits.is_some() {
            if let Some(holder) = place.parent() {
                root.make_dirs(&holder, 0o700)?;
            }
            root.move_new(slot, &place)?;
        }
        if let Some(Attributes { mode, uid, gid }) = record.attributes {
            let chown = root.can_chown();
            set_attributes(root, &place, (mode, uid, gid), (chown, true), None)?;
        }
        complete(root, journal, record, &place)?;
        return Ok(None);
    }
    let Some(stat) = waits else {
        return Ok(None);
    };
    let is_kept = match keep {
        BackupPolicy::Drifted => true,
        BackupPolicy::No => record
            .content_before
            .is_some_and(|before| is_written(root, before, slot, &stat)),
        BackupPolicy::Original => false,
    };
    if is_kept {
        backups::set_aside(root, tx, slot, slot, target)?;
        return Ok(Some(target.clone()));
    }
    root.remove_tree(slot)?;
    Ok(None)
}

/// Returns whether a file was written after its state was recorded.
fn is_written(root: &Root, before: ContentState, file: &AbsPath, stat: &Stat) -> bool {
    let digest = || root.digest_within(file, before.size).ok().flatten();
    stat.kind == FileKind::File
        && (stat.size != before.size
            || stat.mtime != before.mtime && digest() != Some(before.digest))
}

/// Restores the previous state of a directory that is kept: removes machinist's objects from it, and moves their
/// originals back.
fn complete(
    root: &Root,
    journal: &mut Journal,
    record: &OperationRecord,
    place: &AbsPath,
) -> Result<(), TransactionError> {
    let inside = |path: &AbsPath| {
        let below = path.relative().strip_prefix(record.target.relative());
        below.map(|below| place.join(below.trim_start_matches('/')))
    };
    for ours in &record.ours_before {
        let Some(at) = inside(ours).transpose()? else {
            continue;
        };
        let kept = journal.originals.remove(ours);
        if let Some(kept) = &kept
            && root.stat(kept)?.is_none()
        {
            // It was restored before a crash.
            continue;
        }
        match root.stat(&at)?.map(|stat| stat.kind) {
            Some(FileKind::Directory) => drop(root.remove_empty_dir(&at)?),
            Some(_) => root.remove_file(&at)?,
            None => {}
        }
        if let Some(kept) = kept {
            root.move_new(&kept, &at)?;
        }
    }
    Ok(())
}

/// The result for an original whose path the config no longer names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoredOriginal {
    /// It is in place, restored by machinist or by an administrator; the kept copy is deleted.
    Back,
    /// Another object is in place: the original is kept for an administrator.
    Kept,
}

/// Deletes a kept original if it equals the object in place, or is already restored.
pub fn release(
    root: &Root,
    path: &AbsPath,
    place: &AbsPath,
) -> Result<RestoredOriginal, TransactionError> {
    let Some(kept) = root.stat(place)? else {
        return Ok(RestoredOriginal::Back);
    };
    let Some(reached) = reach_for_cleanup(root, path)? else {
        return Ok(RestoredOriginal::Kept);
    };
    let there = reached.stat(path)?;
    let meta = |stat: &Stat| (stat.kind, stat.mode, stat.uid, stat.gid, stat.size);
    let same = match (there.as_ref().map(|there| there.kind), kept.kind) {
        (Some(FileKind::Directory), FileKind::Directory) => root.list(place)?.is_empty(),
        (Some(FileKind::File), FileKind::File) => {
            there.as_ref().map(meta) == Some(meta(&kept))
                && kept.size <= MAX_TOTAL_FILE_BYTES
                && backups::has_same_content(&reached, path, root, place)?
        }
        (Some(FileKind::Link), FileKind::Link) => {
            let text = reached.link_text(path)?;
            text.is_some() && text == root.link_text(place)?
        }
        _ => false,
    };
    if !same {
        return Ok(RestoredOriginal::Kept);
    }
    root.remove_tree(place)?;
    backups::sweep(root, &holder_path::holder(place))?;
    Ok(RestoredOriginal::Back)
}

/// Returns the directories that machinist created, that the config does not name, and that contain no owned path.
fn idle_directories(journal: &Journal, wanted: &dyn Fn(&AbsPath) -> bool) -> Vec<AbsPath> {
    let named = journal.made.iter().filter(|dir| wanted(dir));
    let needed: Vec<_> = journal.owned.keys().chain(named).collect();
    let in_use = |dir: &AbsPath| needed.iter().any(|path| path.is_under(dir));
    let made = journal.made.iter().rev();
    made.filter(|dir| !in_use(dir)).cloned().collect()
}

/// Returns whether a directory holds SSH keys of the config beside keys of its user: that file is not machinist's, but
/// its directory is needed.
fn holds_keys(root: &Root, dir: &AbsPath) -> bool {
    let file = dir.join(KEYS_FILE).ok();
    let Some(file) = file.filter(machinist_plan::is_keys_file) else {
        return false;
    };
    let Ok(Some(reached)) = reach_for_cleanup(root, &file) else {
        return false;
    };
    let bytes = reached.read(&file, MAX_KEYS_BYTES);
    bytes.is_ok_and(|bytes| machinist_plan::has_managed_keys(&bytes))
}

/// Removes the directory if it is empty, and restores the original. Otherwise another program uses it now, or has
/// replaced it.
fn remove_idle(root: &Root, journal: &mut Journal, dir: &AbsPath) -> Result<(), TransactionError> {
    let original = journal.originals.remove(dir);
    if let Some(place) = &original
        && root.stat(place)?.is_none()
    {
        // It was restored before a crash.
        return Ok(());
    }
    let Some(root) = &reach_for_cleanup(root, dir)? else {
        return Ok(());
    };
    let there = root.stat(dir)?.map(|stat| stat.kind);
    if there == Some(FileKind::Directory) {
        root.remove_empty_dir(dir)?;
    }
    match original {
        Some(place) if root.stat(dir)?.is_none() => {
            root.move_new(&place, dir)?;
            Ok(root.sync_dir(&dir.parent().unwrap_or_else(AbsPath::root))?)
        }
        _ => Ok(()),
    }
}
