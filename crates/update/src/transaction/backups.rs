//! Manages staging, `originals/`, and `drifted/`, the directories beside the machine's own files.

use std::cmp::Reverse;

use super::{
    TransactionError,
    holder_path::{holder, holder_of_staging},
    mount_point_dirs,
};
use crate::{
    journal::{
        BackupPolicy, MAX_HISTORY_UPDATES, OperationRecord, OperationRecordKind, Transaction,
        UpdateRecord,
    },
    store::paths,
};
use machinist_base::{abs_path::AbsPath, digest::Digest, reason::Reason};
use machinist_plan::MAX_TOTAL_FILE_BYTES;
use machinist_rootfs::{FileKind, Root, RootError};

/// Maximum length of a name below `drifted/` in bytes: a component has at most 255, and a number is appended.
const MAX_BACKUP_NAME_BYTES: usize = 200;

/// Maximum number of names that are read from a directory: more than an update creates. A larger directory differs
/// from every recorded one.
const MAX_NAMES: usize = 200_000;

/// Maximum depth of directories that are read.
const MAX_DEPTH: usize = 256;

/// Number of updates whose drifted files are kept in one place, the same as in `history`: older ones cannot be
/// attributed any more. The limit also prevents a program that keeps rewriting one file from filling the disk.
const MAX_DRIFTED_UPDATES: usize = MAX_HISTORY_UPDATES;

/// Returns a digest of a directory: names, kinds, and contents. Once more bytes were read than a config can
/// contain, size and modification time replace the content of a file, because another program may have put files of
/// any size there.
pub(super) fn content(root: &Root, dir: &AbsPath) -> Result<Digest, TransactionError> {
    let mut lines = String::new();
    let mut budget = ReadLimits {
        bytes: MAX_TOTAL_FILE_BYTES,
        names: MAX_NAMES,
    };
    list(root, dir, &mut lines, (&mut budget, MAX_DEPTH))?;
    Ok(Digest::of(lines.as_bytes()))
}

/// The remaining limits for reading a directory.
struct ReadLimits {
    bytes: u64,
    names: usize,
}

fn list(
    root: &Root,
    dir: &AbsPath,
    into: &mut String,
    (budget, levels): (&mut ReadLimits, usize),
) -> Result<(), TransactionError> {
    let listing = match root.listing_up_to(dir, budget.names) {
        Err(error) if error.is_absent() => return Ok(()),
        listing => listing?,
    };
    if listing.more {
        into.push_str("more\n");
        budget.names = 0;
        return Ok(());
    }
    budget.names -= listing.entries.len() + listing.unreadable_names;
    // A name that is not text is at least counted.
    into.push_str(&format!("{}\n", listing.unreadable_names));
    for entry in listing.entries {
        let path = dir.join(&entry.name).ok().filter(|_| levels > 0);
        let Some(path) = path else {
            into.push_str("more\n");
            continue;
        };
        let what = match entry.kind {
            FileKind::File => file(root, &path, budget)?,
            FileKind::Link => root
                .link_text(&path)?
                .unwrap_or_else(|| "no text".to_owned()),
            _ => String::new(),
        };
        into.push_str(&format!("{:?} {:?} {what:?}\n", entry.name, entry.kind));
        if entry.kind == FileKind::Directory {
            list(root, &path, into, (budget, levels - 1))?;
            into.push_str("..\n");
        }
    }
    Ok(())
}

fn file(root: &Root, path: &AbsPath, budget: &mut ReadLimits) -> Result<String, TransactionError> {
    let Some(stat) = root.stat(path)? else {
        return Ok(String::new());
    };
    let digest = match stat.size <= budget.bytes {
        true => match root.digest_within(path, stat.size) {
            // Another process removed or replaced it in the meantime.
            Err(RootError::WrongKind { .. }) => None,
            Err(error) if error.is_absent() || error.is_leased() => None,
            digest => digest?,
        },
        false => None,
    };
    if let Some(digest) = digest {
        budget.bytes -= stat.size;
        return Ok(digest.hex());
    }
    Ok(format!("{} {:?}", stat.size, stat.mtime))
}

/// Returns whether a directory has changed since it was recorded. Returns false if it was not recorded.
pub(super) fn holds_other(
    root: &Root,
    dir: &AbsPath,
    recorded: Option<Digest>,
) -> Result<bool, TransactionError> {
    match recorded {
        Some(recorded) => Ok(content(root, dir)? != recorded),
        None => Ok(false),
    }
}

/// Creates the directories for [`set_aside`] wherever a user could fill the file system before an undo, and those of
/// originals: what follows the commit must not need a new inode.
pub(super) fn prepare(root: &Root, tx: &Transaction) -> Result<(), TransactionError> {
    for staging in &tx.staging {
        let here = holder_of_staging(staging);
        let users = |record: &OperationRecord| {
            let slot = record.kind.slot().filter(|slot| holder(slot) == here);
            slot.is_some() && record.parent.is_some()
        };
        if mount_point_dirs::is_at_top(&here)? || tx.operations.iter().any(users) {
            let dir = drifted(&here, &tx.id)?;
            root.make_dirs(&dir, 0o700)?;
            sync_names(root, &dir, &here)?;
        }
        // After the commit there may be no inode for it.
        if tx.operations.iter().any(|it| keeps_original(it, &here)) {
            root.make_dirs(&here.join("originals")?, 0o700)?;
        }
    }
    Ok(())
}

/// Whether the object that an operation replaces is kept in `originals/` of this directory.
fn keeps_original(record: &OperationRecord, here: &AbsPath) -> bool {
    let slot = match &record.kind {
        OperationRecordKind::Exchange {
            slot,
            before: Some(_),
            keep: BackupPolicy::Original,
            ..
        }
        | OperationRecordKind::Metadata {
            original: Some(slot),
            ..
        } => slot,
        _ => return false,
    };
    holder(slot) == *here
}

fn drifted(holder: &AbsPath, id: &str) -> Result<AbsPath, TransactionError> {
    Ok(holder.join(&format!("drifted/{id}"))?)
}

/// Moves an object to `drifted/<transaction>/`, beside the slot and on its mount, under a name that is derived from
/// `target`.
pub(super) fn set_aside(
    root: &Root,
    tx: &Transaction,
    slot: &AbsPath,
    object: &AbsPath,
    target: &AbsPath,
) -> Result<(), TransactionError> {
    let dir = drifted(&holder(slot), &tx.id)?;
    root.make_dirs(&dir, 0o700)?;
    sync_names(root, &dir, &holder(slot))?;
    let whole = target.relative().replace('/', "-");
    let mut from = whole.len().saturating_sub(MAX_BACKUP_NAME_BYTES);
    while !whole.is_char_boundary(from) {
        from += 1;
    }
    let mut place = dir.join(&whole[from..])?;
    let mut number = 0_u32;
    while root.stat(&place)?.is_some() {
        number += 1;
        place = dir.join(&format!("{}.{number}", &whole[from..]))?;
    }
    Ok(root.move_new(object, &place)?)
}

/// Works like [`set_aside`], but only warns if there is no space on a file system that a user can fill.
pub(super) fn set_aside_if_it_fits(
    root: &Root,
    tx: &Transaction,
    slot: &AbsPath,
    object: &AbsPath,
    target: &AbsPath,
) -> Result<(), TransactionError> {
    match set_aside(root, tx, slot, object, target) {
        Err(full) if full.reason() == Reason::NoSpace => {
            let why = machinist_base::error_chain::chain(&full);
            tracing::warn!(path = %target, "its previous version cannot be kept: {why}");
            Ok(())
        }
        kept => kept,
    }
}

/// Makes the objects in `originals/` and `drifted/` of this transaction durable, and the names of these
/// directories. It is also called before objects are moved there: the process that created the directories may have
/// been killed before their names were durable, and then the objects in them would be lost.
pub(super) fn sync(root: &Root, tx: &Transaction) -> Result<(), TransactionError> {
    for holder in tx.staging.iter().map(holder_of_staging) {
        for below in ["originals".to_owned(), format!("drifted/{}", tx.id)] {
            let dir = holder.join(&below)?;
            if root.stat(&dir)?.is_some() {
                root.sync_dir(&dir)?;
                sync_names(root, &dir, &holder)?;
            }
        }
    }
    Ok(())
}

/// Makes the name of a directory durable, and those of its parents below the holder.
fn sync_names(root: &Root, dir: &AbsPath, holder: &AbsPath) -> Result<(), TransactionError> {
    for above in dir.ancestors().take_while(|dir| dir.is_under(holder)) {
        root.sync_dir(&above)?;
    }
    Ok(())
}

/// Removes a staging directory, and `.machinist` if it is empty then. The state directory's own subdirectories
/// stay.
pub(super) fn clear(root: &Root, dir: &AbsPath) -> Result<(), TransactionError> {
    let holder = holder_of_staging(dir);
    if mount_point_dirs::is_private(root, &holder)? {
        root.remove_tree(dir)?;
        let all = holder.join("drifted")?;
        if root.stat(&all)?.is_some() {
            root.remove_empty_dir(&drifted(&holder, dir.file_name())?)?;
            root.remove_empty_dir(&all)?;
        }
        sweep(root, &holder)?;
    }
    Ok(())
}

/// Removes the oldest drifted files beyond [`MAX_DRIFTED_UPDATES`] updates on each mount. Those of updates in the
/// history stay, and those of older repairs are removed first. An error is only logged, because the next update tries
/// again.
pub(super) fn prune(root: &Root, history: &[UpdateRecord], tx: &Transaction) {
    for holder in tx.staging.iter().map(holder_of_staging) {
        if let Err(error) = prune_below(root, &holder, history, &tx.id) {
            tracing::warn!(%holder, "failed to remove old versions below drifted/: {}", machinist_base::error_chain::chain(&error));
        }
    }
}

fn prune_below(
    root: &Root,
    holder: &AbsPath,
    history: &[UpdateRecord],
    now: &str,
) -> Result<(), TransactionError> {
    let dir = holder.join("drifted")?;
    if root.stat(&dir)?.is_none() {
        return Ok(());
    }
    // An ID begins with its time. The current transaction is excluded in case the clock was set back.
    let mut ids = root.list(&dir)?;
    ids.retain(|entry| entry.kind == FileKind::Directory && entry.name != now);
    let is_known = |id: &str| {
        let mut known = history.iter().filter(|update| !update.repair);
        known.any(|update| update.id == id)
    };
    ids.sort_by_key(|entry| Reverse((is_known(&entry.name), entry.name.clone())));
    for old in ids.iter().skip(MAX_DRIFTED_UPDATES) {
        root.remove_tree(&dir.join(&old.name)?)?;
    }
    Ok(())
}

/// Compares two files. They count as different while another process holds a lease on one of them.
pub(super) fn has_same_content(
    reached: &Root,
    path: &AbsPath,
    root: &Root,
    place: &AbsPath,
) -> Result<bool, TransactionError> {
    let digest = |root: &Root, at: &AbsPath| match root.digest_within(at, MAX_TOTAL_FILE_BYTES) {
        Err(error) if error.is_leased() => Ok(None),
        digest => digest,
    };
    let (there, kept) = (digest(reached, path)?, digest(root, place)?);
    Ok(there.is_some() && there == kept)
}

/// Removes an empty `.machinist`.
pub(super) fn sweep(root: &Root, holder: &AbsPath) -> Result<(), TransactionError> {
    if *holder != paths::state_dir() {
        root.remove_empty_dir(&holder.join("originals")?)?;
        root.remove_empty_dir(holder)?;
    }
    Ok(())
}

/// Returns the names of the originals on the mounts of the state directory and of `/etc`.
pub(super) fn originals(root: &Root) -> Result<Vec<String>, TransactionError> {
    let mut names = Vec::new();
    for holder in [paths::state_dir(), AbsPath::root().join("etc/.machinist")?] {
        match root.list(&holder.join("originals")?) {
            Err(error) if error.is_not_found() => {}
            listed => names.extend(listed?.into_iter().map(|entry| entry.name)),
        }
    }
    Ok(names)
}
