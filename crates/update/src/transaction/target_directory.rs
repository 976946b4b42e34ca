//! Opens the directory of an operation: walks to it once, with the checks for directories that users control, and
//! then uses the same directory, even if its path is redirected later.

use super::{TransactionError, backups, holder_path, mount_point_dirs};
use crate::journal::{OperationRecord, Transaction};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_rootfs::{DirectoryControl, Root, RootError, WalkedPath};

/// The directory of a target, and the directory of its staging and originals.
pub(super) struct TargetDirectory {
    /// The tree, with these two directories pinned.
    pub(super) root: Root,
    way: WalkedPath,
}

/// Reasons why the directory of an operation is not used.
pub(super) enum DirectoryRefusal {
    /// It does not exist.
    Missing,
    /// It is unsafe, or differs from the recorded one.
    Error(TransactionError),
}

impl DirectoryRefusal {
    /// Converts it into the error of a commit.
    pub(super) fn into_error(self, target: &AbsPath) -> TransactionError {
        match self {
            Self::Missing => changed(target),
            Self::Error(TransactionError::Root(source)) if source.is_unsafe() => {
                TransactionError::Unsafe {
                    target: target.clone(),
                    source: Box::new(source),
                }
            }
            Self::Error(error) => error,
        }
    }
}

/// Walks to the target of an operation.
pub(super) fn reach(
    root: &Root,
    record: &OperationRecord,
) -> Result<TargetDirectory, DirectoryRefusal> {
    let way = way(root, record)?;
    let holder = record.kind.slot();
    let holder = holder
        .map(|slot| holder_way(root, slot))
        .transpose()?
        .flatten();
    let ways: Vec<&WalkedPath> = holder.iter().chain([&way]).collect();
    Ok(TargetDirectory {
        root: root.pinned(&ways),
        way,
    })
}

/// Walks to the target by its canonical path, which must contain no link, and by the requested path, which must
/// lead to the same directory.
fn way(root: &Root, record: &OperationRecord) -> Result<WalkedPath, DirectoryRefusal> {
    let target = &record.target;
    let way = walk(root, target)?;
    let recorded = record.parent.is_none_or(|parent| parent == way.holder);
    let asked = record.asked.as_ref();
    let asked = asked.map(|asked| walk(root, asked)).transpose()?;
    if !way.links.is_empty() || !recorded || asked.is_some_and(|asked| !asked.is_same(&way)) {
        return Err(DirectoryRefusal::Error(changed(target)));
    }
    Ok(way)
}

fn walk(root: &Root, path: &AbsPath) -> Result<WalkedPath, DirectoryRefusal> {
    root.walk(path).map_err(|error| match error.is_absent() {
        true => DirectoryRefusal::Missing,
        false => DirectoryRefusal::Error(as_user_change(root, path, error.into())),
    })
}

/// Converts an error into a change of the target by another process, if a user may have caused it by moving a
/// directory on the path while it was in use.
pub(super) fn as_user_change(
    root: &Root,
    target: &AbsPath,
    error: TransactionError,
) -> TransactionError {
    let moved = matches!(&error, TransactionError::Root(cause) if cause.is_moved());
    if !moved || is_roots(root, target) {
        return error;
    }
    tracing::warn!(path = %target, "{}", machinist_base::error_chain::chain(&error));
    changed(target)
}

/// Names the user who has moved a staging directory away, if that is the cause of an error: another error about a
/// target on that mount would name the wrong thing. The error concerns an operation on that mount, so that later plans
/// skip its target.
pub(super) fn name_mover(
    root: &Root,
    tx: &Transaction,
    error: TransactionError,
) -> TransactionError {
    let target = match &error {
        TransactionError::Changed { target } | TransactionError::MountMissing { target } => {
            Some(target)
        }
        TransactionError::Root(cause) if cause.is_moved() => None,
        _ => return error,
    };
    let mut dirs = tx.staging.iter();
    let moved = dirs.find_map(|dir| Some((dir, moved_away(root, dir, target)?)));
    let Some((dir, source)) = moved else {
        return error;
    };
    let is_staged_in = |record: &&OperationRecord| {
        let slot = record.kind.slot();
        slot.is_some_and(|slot| slot.is_under(dir))
    };
    match tx.operations.iter().find(is_staged_in) {
        Some(record) => DirectoryRefusal::Error(source.into()).into_error(&record.target),
        None => source.into(),
    }
}

/// The error about a staging directory that no longer exists, if a user controls the top of its mount. `target` is
/// on that mount.
fn moved_away(root: &Root, dir: &AbsPath, target: Option<&AbsPath>) -> Option<RootError> {
    let holder = holder_path::holder_of_staging(dir);
    let mount = holder.parent()?;
    if target.is_some_and(|target| !target.is_under(&mount)) {
        return None;
    }
    if root.stat(dir).is_ok_and(|there| there.is_some()) {
        return None;
    }
    let DirectoryControl::User { uid, top } = root.walk(&holder).ok()?.control else {
        return None;
    };
    let user = uid.map_or_else(|| "a user".to_owned(), |uid| format!("user {uid}"));
    Some(RootError::Unsafe {
        path: dir.clone(),
        why: format!("it was moved away during the update by {user}, who controls {top}"),
    })
}

/// Returns whether only root can change the path. A path that cannot be walked any more may be a user's.
fn is_roots(root: &Root, path: &AbsPath) -> bool {
    root.walk(path)
        .is_ok_and(|way| way.control == DirectoryControl::Root)
}

/// Walks to the directory that contains staging and originals of a slot; returns `None` if it does not exist.
fn holder_way(root: &Root, slot: &AbsPath) -> Result<Option<WalkedPath>, DirectoryRefusal> {
    let inside = holder_path::holder(slot)
        .join("x")
        .map_err(|bad| DirectoryRefusal::Error(bad.into()))?;
    match walk(root, &inside) {
        Ok(way) => Ok(Some(way.spelled(&inside))),
        Err(DirectoryRefusal::Missing) => Ok(None),
        Err(refusal) => Err(refusal),
    }
}

/// Returns the tree with the staging directories pinned, each reached with the checks. A directory that a user has
/// moved is not reached any more.
pub(super) fn staging(root: &Root, dirs: &[AbsPath]) -> Result<Root, TransactionError> {
    let mut ways = Vec::new();
    for dir in dirs {
        ways.extend(staging_way(root, dir)?);
    }
    Ok(root.pinned(&ways.iter().collect::<Vec<_>>()))
}

/// Removes the staging directories that can be reached with the checks.
pub(super) fn clear_staging(root: &Root, dirs: &[AbsPath]) -> Result<(), TransactionError> {
    for dir in dirs {
        if let Some(way) = staging_way(root, dir)? {
            backups::clear(&root.pinned(&[&way]), dir)?;
        }
    }
    Ok(())
}

fn staging_way(root: &Root, dir: &AbsPath) -> Result<Option<WalkedPath>, TransactionError> {
    match holder_way(root, &dir.join("x")?) {
        Ok(way) => Ok(way),
        Err(DirectoryRefusal::Error(TransactionError::Root(error))) if error.is_unsafe() => {
            let reason = Reason::LeftBehind;
            let why = machinist_base::error_chain::chain(&error);
            tracing::warn!(path = %dir, %reason, "left unchanged: {why}");
            Ok(None)
        }
        Err(refusal) => Err(refusal.into_error(dir)),
    }
}

/// Returns the tree with the directory of `path` pinned; returns `None` if a user could redirect the path, or if it
/// contains a link now. The path is not modified then.
pub(super) fn reach_for_cleanup(
    root: &Root,
    path: &AbsPath,
) -> Result<Option<Root>, TransactionError> {
    let why = match root.walk(path) {
        Ok(way) if way.links.is_empty() => return Ok(Some(root.pinned(&[&way]))),
        Ok(_) => "its path contains a symbolic link".to_owned(),
        Err(error) if error.is_absent() => return Ok(Some(root.clone())),
        Err(error) if is_machine_error(&error) => return Err(error.into()),
        Err(error) => machinist_base::error_chain::chain(&error),
    };
    let reason = Reason::LeftBehind;
    tracing::warn!(%path, %reason, "left unchanged: {why}");
    Ok(None)
}

impl TargetDirectory {
    /// Returns whether a user other than root could move the directory.
    pub(super) fn is_users(&self) -> bool {
        self.way.control != DirectoryControl::Root
    }

    /// Returns whether a user may have caused an error of an undo: by changing objects, by moving the staged ones, or by
    /// filling the file system.
    pub(super) fn is_user_change(
        &self,
        error: &TransactionError,
        record: &OperationRecord,
    ) -> Result<bool, TransactionError> {
        if error.reason() != Reason::NoSpace {
            let moved = matches!(error, TransactionError::MountMissing { .. });
            return Ok(self.is_users() && (moved || error.is_foreign_change()));
        }
        let at_top = |slot| mount_point_dirs::is_at_top(&holder_path::holder(slot));
        let at_top = record.kind.slot().map(at_top).transpose()?;
        Ok(self.is_users() || at_top == Some(true))
    }

    /// Checks the path again after the operation: a directory that was moved in the meantime counts as another
    /// writer's change.
    pub(super) fn confirm(
        &self,
        root: &Root,
        record: &OperationRecord,
    ) -> Result<(), DirectoryRefusal> {
        if !self.is_users() {
            return Ok(());
        }
        match way(root, record)?.is_same(&self.way) {
            true => Ok(()),
            false => Err(DirectoryRefusal::Error(changed(&record.target))),
        }
    }

    /// Converts an error that a user can cause in their own directory into a change by that user.
    pub(super) fn blame(&self, target: &AbsPath, error: TransactionError) -> TransactionError {
        match &error {
            TransactionError::Root(cause) if self.is_users() && !is_machine_error(cause) => {
                tracing::warn!(path = %target, "{}", machinist_base::error_chain::chain(&error));
                changed(target)
            }
            _ => error,
        }
    }
}

/// Returns whether the error is caused by the machine, and cannot be caused by the user of a directory.
pub(super) fn is_machine_error(error: &RootError) -> bool {
    error.is_starved()
        || matches!(
            error.reason(),
            Reason::ReadOnly | Reason::NoSpace | Reason::Immutable
        )
}

fn changed(target: &AbsPath) -> TransactionError {
    let target = target.clone();
    TransactionError::Changed { target }
}
