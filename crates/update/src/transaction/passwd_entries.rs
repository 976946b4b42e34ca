//! Edits entries of users and groups in the current databases, under the lock that all user management tools take.
//! Whether an edit is done is judged by the entry, not by the file.

use std::time::Duration;

use super::TransactionError;
use crate::journal::{Journal, OperationRecord, OperationRecordKind};
use machinist_base::abs_path::AbsPath;
use machinist_plan::{Database, DatabaseEntries, Edit, EditState, remember};
use machinist_rootfs::{FileLock, Meta, Root};

/// The file that lckpwdf(3) locks.
const PASSWD_LOCK_PATH: &str = "/etc/.pwd.lock";

/// Timeout of lckpwdf(3).
const LOCK_TIMEOUT: Duration = Duration::from_secs(15);

/// Maximum length of a database: 16 MiB hold about 200,000 accounts.
const MAX_DATABASE_BYTES: u64 = 16 << 20;

/// The database to edit, and the path where the new file is built.
struct DatabaseEdit<'a> {
    root: &'a Root,
    target: &'a AbsPath,
    slot: &'a AbsPath,
}

/// Applies the edits that are not done yet. Applies none if another writer has changed one of the entries.
pub(super) fn forward(
    root: &Root,
    target: &AbsPath,
    slot: &AbsPath,
    edits: &[Edit],
) -> Result<(), TransactionError> {
    let work = DatabaseEdit { root, target, slot };
    let _locked = lock(root)?;
    let changed = || TransactionError::Changed {
        target: target.clone(),
    };
    let found = read(root, target)?.ok_or_else(changed)?;
    let mut there = found.clone();
    for edit in edits {
        match edit.commit_state(&there) {
            EditState::After => {}
            EditState::Before => edit.apply(&mut there),
            EditState::Foreign => return Err(changed()),
        }
    }
    work.put(&found, &there)
}

/// Reverts the edits in reverse order. An entry that another writer has changed stays, unless its user or group no
/// longer exists.
pub(super) fn backward(
    root: &Root,
    target: &AbsPath,
    slot: &AbsPath,
    edits: &[Edit],
) -> Result<(), TransactionError> {
    let work = DatabaseEdit { root, target, slot };
    // vipw(8) holds the lock for as long as its editor is open, so that a rollback that changes nothing must not take
    // it.
    if let Some(found) = read(root, target)?
        && let reverted = work.revert(edits, &found)?
        && reverted.entries == found
    {
        reverted.warn(target);
        return work.put(&found, &found);
    }
    let _locked = lock(root)?;
    let Some(found) = read(root, target)? else {
        tracing::warn!(path = %target, "the file no longer exists; its entries are not changed");
        return Ok(());
    };
    let reverted = work.revert(edits, &found)?;
    reverted.warn(target);
    work.put(&found, &reverted.entries)
}

/// The entries without the edits of a transaction.
struct RevertedEntries<'a> {
    entries: DatabaseEntries,
    /// Names of entries that another writer has changed.
    foreign: Vec<&'a str>,
}

impl RevertedEntries<'_> {
    fn warn(&self, path: &AbsPath) {
        for entry in &self.foreign {
            tracing::warn!(%path, entry, "changed by another process; left unchanged");
        }
    }
}

/// Returns whether a changed entry belongs to a user or group that no longer exists, such as a password that was
/// set for a user who is being removed.
fn is_orphan(root: &Root, edit: &Edit) -> Result<bool, TransactionError> {
    let goes = matches!(edit, Edit::Line { after: None, .. });
    let Some(owner) = edit.database().owner().filter(|_| goes) else {
        return Ok(false);
    };
    let owners = read(root, &owner.path())?;
    Ok(!owners.is_some_and(|owners| owners.has(edit.name())))
}

impl DatabaseEdit<'_> {
    fn revert<'e>(
        &self,
        edits: &'e [Edit],
        found: &DatabaseEntries,
    ) -> Result<RevertedEntries<'e>, TransactionError> {
        let (mut entries, mut foreign) = (found.clone(), Vec::new());
        for edit in edits.iter().rev() {
            let back = edit.reversed();
            match back.rollback_state(&entries) {
                EditState::After => {}
                EditState::Before => back.apply(&mut entries),
                EditState::Foreign if is_orphan(self.root, &back)? => back.apply(&mut entries),
                EditState::Foreign => foreign.push(edit.name()),
            }
        }
        Ok(RevertedEntries { entries, foreign })
    }

    /// Replaces the database with the edited file: complete, durable, with the same mode, owner, label, and access
    /// control list.
    fn put(
        &self,
        found: &DatabaseEntries,
        edited: &DatabaseEntries,
    ) -> Result<(), TransactionError> {
        let Self { root, target, slot } = *self;
        // An interrupted attempt may have left a new or an old file there.
        root.remove_tree(slot)?;
        if edited == found {
            return Ok(());
        }
        let changed = || TransactionError::Changed {
            target: target.clone(),
        };
        let stat = root.stat(target)?.ok_or_else(changed)?;
        if let Some(staging) = slot.parent() {
            root.make_dirs(&staging, 0o700)?;
        }
        let meta = Meta {
            mode: stat.mode,
            uid: stat.uid,
            gid: stat.gid,
            chown: root.can_chown(),
        };
        root.build_file(slot, &edited.bytes(), &meta)?;
        let extras = root.copy_meta_extras(target, slot, None)?;
        for (name, error) in extras.left {
            tracing::warn!(path = %target, attribute = name, %error, "attribute not kept");
        }
        root.sync_file(slot)?;
        match root.exchange(target, slot) {
            Err(error) if error.exchange_unsupported() => root.move_over(slot, target)?,
            exchanged => exchanged?,
        }
        root.remove_file(slot)?;
        Ok(())
    }
}

fn lock(root: &Root) -> Result<FileLock, TransactionError> {
    let path = AbsPath::new(PASSWD_LOCK_PATH)?;
    let locked = root.lock_record(&path, LOCK_TIMEOUT)?;
    locked.ok_or(TransactionError::Locked { path })
}

/// Reads the entries of a database; returns `None` if it does not exist.
pub(super) fn read(
    root: &Root,
    path: &AbsPath,
) -> Result<Option<DatabaseEntries>, TransactionError> {
    match root.read_nofollow(path, MAX_DATABASE_BYTES) {
        Ok(bytes) => Ok(Some(DatabaseEntries::read(&bytes))),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the previous values of entries that verified and open transactions have changed.
pub fn kept_entries(journal: &Journal) -> Vec<Edit> {
    let mut kept = journal.entries.clone();
    for tx in &journal.transactions {
        for edit in tx.operations.iter().flat_map(edits) {
            remember(&mut kept, edit);
        }
        kept.retain(|edit| !tx.let_go.contains(&edit.place()));
    }
    kept
}

/// Returns the edits of an operation; empty for other kinds of operations.
pub(super) fn edits(record: &OperationRecord) -> &[Edit] {
    match &record.kind {
        OperationRecordKind::Entries { edits, .. } => edits,
        _ => &[],
    }
}

/// Returns the databases that contain entries of machinist.
pub fn databases(journal: &Journal) -> Vec<AbsPath> {
    let mut all: Vec<Database> = journal.entries.iter().map(Edit::database).collect();
    all.sort_unstable();
    all.dedup();
    all.into_iter().map(Database::path).collect()
}
