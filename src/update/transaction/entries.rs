//! Entries of users and groups: edited in the file as it is, under the lock that all tools for them
//! take, judged by the entries and never by the file.

use std::time::Duration;

use super::{TransactionError, judge::Verdict};
use crate::{
    path::AbsPath,
    plan::{Database, Edit, Entries, Standing, remember},
    root::{Lock, Meta, Root},
    update::journal::{Journal, OperationRecord, OperationRecordKind},
};

/// The file that lckpwdf(3) locks.
const LOCK: &str = "/etc/.pwd.lock";

/// As long as lckpwdf(3) waits.
const PATIENCE: Duration = Duration::from_secs(15);

/// Longest database: 16 MiB are some 200,000 accounts.
const LONGEST: u64 = 16 << 20;

/// What is edited, and where the new file is built.
struct Work<'a> {
    root: &'a Root,
    target: &'a AbsPath,
    slot: &'a AbsPath,
}

/// How far the edits of one database are. Some done and some not is what somebody made of them who
/// took one back; the others can still be done.
pub(super) fn judge(
    root: &Root,
    target: &AbsPath,
    edits: &[Edit],
) -> Result<Verdict, TransactionError> {
    let Some(there) = read(root, target)? else {
        return Ok(Verdict::Foreign);
    };
    let all: Vec<Standing> = edits.iter().map(|edit| edit.standing(&there)).collect();
    Ok(match () {
        () if all.contains(&Standing::Foreign) => Verdict::Foreign,
        () if all.contains(&Standing::Before) => Verdict::NotDone,
        () => Verdict::Done,
    })
}

/// Does what is not done yet. Nothing is done when somebody else has changed one of the entries.
pub(super) fn forward(
    root: &Root,
    target: &AbsPath,
    slot: &AbsPath,
    edits: &[Edit],
) -> Result<(), TransactionError> {
    let work = Work { root, target, slot };
    let _locked = lock(root)?;
    let changed = || TransactionError::Changed {
        target: target.clone(),
    };
    let found = read(root, target)?.ok_or_else(changed)?;
    let mut there = found.clone();
    for edit in edits {
        match edit.standing(&there) {
            Standing::After => {}
            Standing::Before => edit.apply(&mut there),
            Standing::Foreign => return Err(changed()),
        }
    }
    work.put(&found, &there)
}

/// Takes back what is done, the last edit first. An entry that somebody else has changed stays as it
/// is, unless it means nothing without one that has gone.
pub(super) fn backward(
    root: &Root,
    target: &AbsPath,
    slot: &AbsPath,
    edits: &[Edit],
) -> Result<(), TransactionError> {
    let work = Work { root, target, slot };
    let _locked = lock(root)?;
    let Some(found) = read(root, target)? else {
        tracing::warn!(path = %target, "the file is gone; its entries stay as they are");
        return Ok(());
    };
    let mut there = found.clone();
    for edit in edits.iter().rev().map(Edit::reversed) {
        match edit.standing(&there) {
            Standing::After => {}
            Standing::Before => edit.apply(&mut there),
            Standing::Foreign if is_orphan(root, &edit)? => edit.apply(&mut there),
            Standing::Foreign => {
                let entry = edit.name();
                tracing::warn!(path = %target, entry, "changed by somebody else; left as it is");
            }
        }
    }
    work.put(&found, &there)
}

/// Whether the entry of ours that somebody changed belongs to a user or group that is not there: a
/// password set for a user who goes.
fn is_orphan(root: &Root, edit: &Edit) -> Result<bool, TransactionError> {
    let goes = matches!(edit, Edit::Line { after: None, .. });
    let Some(owner) = edit.database().owner().filter(|_| goes) else {
        return Ok(false);
    };
    let owners = read(root, &owner.path())?;
    Ok(!owners.is_some_and(|owners| owners.has(edit.name())))
}

impl Work<'_> {
    /// Puts the edited file in the place of the one that was read: complete, durable, with its mode,
    /// owner, label and access control list.
    fn put(&self, found: &Entries, edited: &Entries) -> Result<(), TransactionError> {
        let Self { root, target, slot } = *self;
        // What an interrupted attempt left: a new file that did not get there, or the old one.
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
        let extras = root.copy_meta_extras(target, slot)?;
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

fn lock(root: &Root) -> Result<Lock, TransactionError> {
    let path = AbsPath::new(LOCK)?;
    let locked = root.lock_record(&path, PATIENCE)?;
    locked.ok_or(TransactionError::Locked { path })
}

/// The entries of a database; none where there is no regular file.
fn read(root: &Root, path: &AbsPath) -> Result<Option<Entries>, TransactionError> {
    match root.read_nofollow(path, LONGEST) {
        Ok(bytes) => Ok(Some(Entries::read(&bytes))),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// What was there before machinist, of entries that verified and open transactions have changed.
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

/// The edits of an operation; none of one that is of another kind.
pub(super) fn edits(record: &OperationRecord) -> &[Edit] {
    match &record.kind {
        OperationRecordKind::Entries { edits, .. } => edits,
        _ => &[],
    }
}

/// The databases that hold entries of ours.
pub fn databases(journal: &Journal) -> Vec<AbsPath> {
    let mut all: Vec<Database> = journal.entries.iter().map(Edit::database).collect();
    all.sort_unstable();
    all.dedup();
    all.into_iter().map(Database::path).collect()
}
