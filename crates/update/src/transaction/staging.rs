//! Stages a transaction: builds every new object completely, and makes it durable.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
};

use super::{
    SyncPoints, TransactionError,
    adopted_originals::copy_file,
    backups, kind_name, mount_point_dirs, object_at,
    target_directory::{as_user_change, name_mover, reach, staging},
};
use crate::journal::{GivenLabels, ObjectId, OperationRecord, OperationRecordKind, Transaction};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_plan::{NewObject, NodeKind, Operation, OperationKind};
use machinist_rootfs::{FileKind, Meta, ObjectIdentity, Root, RootError};

/// Below this number of new objects, syncing each one costs less than flushing the whole file system, which may
/// have gigabytes of other programs' dirty pages. A sync takes 0.1–1 ms on flash, so 64 objects take less than a
/// tenth of a second.
const SYNC_EACH_BELOW_OBJECTS: u64 = 64;

/// Cancellation flag, checked between two objects. Nothing has been committed then.
pub type AbortFlag = AtomicBool;

/// Builds and syncs every new object of `tx`, and fills in their identities.
///
/// `planned` is the plan's list of operations from which `tx` was made, in the same order. Leftovers of an
/// interrupted attempt in the staging directories are removed first. The caller marks the transaction
/// [`Staged`](super::super::journal::TransactionState::Staged) and saves the journal.
pub fn stage(
    root: &Root,
    tx: &mut Transaction,
    planned: &[Operation],
    chown: bool,
    stop: &AbortFlag,
) -> Result<(), TransactionError> {
    let staged = stage_all(root, tx, planned, chown, stop);
    staged.map_err(|error| name_mover(root, tx, error))
}

fn stage_all(
    root: &Root,
    tx: &mut Transaction,
    planned: &[Operation],
    chown: bool,
    stop: &AbortFlag,
) -> Result<(), TransactionError> {
    for dir in &tx.staging {
        tx.holders.extend(mount_point_dirs::secure(root, dir)?);
        root.remove_tree(dir)?;
        root.make_dirs(dir, 0o700)?;
    }
    let root = &staging(root, &tx.staging)?;
    backups::prepare(root, tx)?;
    let points = SyncPoints::of(root, tx)?;
    let few = planned.iter().map(weight).sum::<u64>() < SYNC_EACH_BELOW_OBJECTS
        && !planned.iter().any(owns_links);
    if planned.len() != tx.operations.len() {
        return Err(TransactionError::NotThePlan {
            target: AbsPath::root(),
        });
    }
    let mut work = StagingWork {
        root,
        chown,
        sync: few,
        names: Vec::new(),
        open: Vec::new(),
        labels: GivenLabels::default(),
    };
    for (operation, record) in planned.iter().zip(&tx.operations) {
        if stop.load(Ordering::Relaxed) {
            return Err(TransactionError::Stopped);
        }
        let staged = work.stage_one(operation, record);
        staged.map_err(|error| as_user_change(root, &operation.target, error))?;
    }
    tx.labels = work.close(&tx.operations)?;
    for (operation, record) in planned.iter().zip(&mut tx.operations) {
        identify_one(root, operation, record)?;
    }
    if few {
        for dir in &tx.staging {
            root.sync_dir(dir)?;
        }
    } else {
        points.sync()?;
    }
    Ok(())
}

fn weight(operation: &Operation) -> u64 {
    match &operation.kind {
        OperationKind::Put(node) => node.weight().1,
        _ => 0,
    }
}

/// Returns whether the operation creates a link that is not root's or has a label: only `syncfs` makes that
/// durable.
fn owns_links(operation: &Operation) -> bool {
    fn any(node: &NewObject) -> bool {
        match &node.kind {
            NodeKind::Link(_) => (node.uid, node.gid) != (0, 0) || node.label.is_some(),
            NodeKind::Directory(children) => children.values().any(any),
            NodeKind::File(_) | NodeKind::Copy { .. } | NodeKind::Hard { .. } => false,
        }
    }
    matches!(&operation.kind, OperationKind::Put(node) if any(node))
}

/// Staging in progress.
struct StagingWork<'a> {
    root: &'a Root,
    chown: bool,
    sync: bool,
    /// Hard links to create, each with its file, which may be staged later.
    names: Vec<(AbsPath, (AbsPath, Option<u64>))>,
    /// Directories that only root can access until they are complete, with their final mode and owner.
    open: Vec<(AbsPath, Meta)>,
    /// Labels by final path.
    labels: GivenLabels,
}

impl StagingWork<'_> {
    fn stage_one(
        &mut self,
        operation: &Operation,
        record: &OperationRecord,
    ) -> Result<(), TransactionError> {
        if operation.target != record.target {
            return Err(not_the_plan(operation));
        }
        match (&operation.kind, &record.kind) {
            (OperationKind::Put(node), OperationRecordKind::Exchange { slot, before, .. }) => {
                let was_file = |before: &ObjectId| before.kind == kind_name(FileKind::File);
                let passes_on =
                    matches!(node.kind, NodeKind::File(_)) && before.as_ref().is_some_and(was_file);
                let target = &operation.target;
                self.build(slot, target, node, passes_on)?;
                match before.as_ref().filter(|_| passes_on) {
                    Some(before) => self.pass_on(record, (slot, before), node),
                    None => Ok(()),
                }
            }
            (
                OperationKind::Restore(_) | OperationKind::Remove,
                OperationRecordKind::Exchange { .. },
            ) => Ok(()),
            // Built from the current file when the operation runs.
            (_, OperationRecordKind::Entries { .. }) => Ok(()),
            (
                _,
                OperationRecordKind::Metadata {
                    before,
                    chown,
                    original,
                    ..
                },
            ) => match original {
                Some(place) => keep_metadata(self.root, place, *before, *chown, self.sync),
                None => Ok(()),
            },
            _ => Err(not_the_plan(operation)),
        }
    }

    /// Copies attributes that belong to the name and not to the content to a new file: those of the recorded object
    /// in the directory that was judged, since a user may have put another one there.
    fn pass_on(
        &mut self,
        record: &OperationRecord,
        (slot, before): (&AbsPath, &ObjectId),
        node: &NewObject,
    ) -> Result<(), TransactionError> {
        let target = &record.target;
        let reached = reach(self.root, record).map_err(|refusal| refusal.into_error(target))?;
        let recorded = ObjectIdentity {
            ino: before.ino,
            birth: before.birth,
        };
        let extras = reached.root.copy_meta_extras(target, slot, Some(recorded));
        let extras = extras.map_err(|error| moved(target, error))?;
        for (name, error) in extras.left {
            tracing::warn!(path = %target, attribute = name, %error, "attribute not kept");
        }
        self.label(slot, target, node)?;
        if self.sync {
            self.root.sync_file(slot)?;
        }
        Ok(())
    }

    /// Sets the label of an object, which depends on its final path.
    fn label(
        &mut self,
        at: &AbsPath,
        target: &AbsPath,
        node: &NewObject,
    ) -> Result<(), TransactionError> {
        if let Some(label) = node.label.clone() {
            let set = self.root.set_label(at, &label)?;
            let labels = match set {
                true => &mut self.labels.given,
                false => &mut self.labels.pending,
            };
            labels.insert(target.clone(), label);
        }
        Ok(())
    }

    /// Builds one object and its children. `unfinished`: the caller changes it further and then syncs it.
    fn build(
        &mut self,
        at: &AbsPath,
        target: &AbsPath,
        node: &NewObject,
        unfinished: bool,
    ) -> Result<(), TransactionError> {
        let meta = Meta {
            mode: node.mode,
            uid: node.uid,
            gid: node.gid,
            chown: self.chown,
        };
        match &node.kind {
            NodeKind::File(content) => {
                let bytes = content.bytes().ok_or_else(|| TransactionError::NoContent {
                    digest: content.digest(),
                })?;
                self.root.build_file(at, bytes, &meta)?;
                if unfinished {
                    return Ok(());
                }
                self.label(at, target, node)?;
                if self.sync {
                    self.root.sync_file(at)?;
                }
            }
            NodeKind::Copy { place, .. } => {
                copy_file(self.root, place, at, &meta)?;
                self.label(at, target, node)?;
                self.root.sync_file(at)?;
            }
            NodeKind::Link(text) => {
                self.root.build_link(at, text)?;
                self.root.own_link(at, &meta)?;
                self.label(at, target, node)?;
            }
            NodeKind::Hard { target, inode } => {
                self.names.push((at.clone(), (target.clone(), *inode)));
            }
            NodeKind::Directory(children) => {
                // The final mode may prevent writing into it.
                let mode = 0o700;
                self.root.build_dir(at, &Meta { mode, ..meta })?;
                self.label(at, target, node)?;
                self.open.push((at.clone(), meta));
                for (name, child) in children {
                    self.build(&at.join(name)?, &target.join(name)?, child, false)?;
                }
            }
        }
        Ok(())
    }

    /// Creates the hard links, since all files exist now, and sets the modes of directories, nested ones first.
    /// Returns the labels.
    fn close(self, operations: &[OperationRecord]) -> Result<GivenLabels, TransactionError> {
        let waiting: BTreeMap<&AbsPath, &AbsPath> =
            operations.iter().filter_map(waiting_place).collect();
        for (at, (target, inode)) in self.names {
            match staged(&target, &waiting)? {
                Some(place) => self.root.build_hard_link(&at, &place, None)?,
                None => link_to_existing(self.root, &at, &target, inode)?,
            }
        }
        for (dir, meta) in self.open.iter().rev() {
            self.root.set_meta(dir, meta)?;
            if self.sync {
                self.root.sync_dir(dir)?;
            }
        }
        if let Some((path, label)) = self.labels.pending.first_key_value() {
            let (reason, count) = (Reason::LabelPending, self.labels.pending.len());
            tracing::warn!(%path, label, count, %reason, "cannot set the SELinux label");
        }
        Ok(self.labels)
    }
}

/// Returns the target of an operation and the slot in which its new object waits.
fn waiting_place(record: &OperationRecord) -> Option<(&AbsPath, &AbsPath)> {
    match &record.kind {
        OperationRecordKind::Exchange {
            slot,
            removal: false,
            ..
        } => Some((&record.target, slot)),
        _ => None,
    }
}

/// Creates another name of a file that is in place already: the one that was judged, and in a directory that is
/// reached without links, since a user may have put another file or directory there.
fn link_to_existing(
    root: &Root,
    at: &AbsPath,
    target: &AbsPath,
    inode: Option<u64>,
) -> Result<(), TransactionError> {
    let way = root.walk(target).map_err(|error| moved(target, error))?;
    if !way.links.is_empty() {
        let target = target.clone();
        return Err(TransactionError::Changed { target });
    }
    let linked = root.pinned(&[&way]).build_hard_link(at, target, inode);
    linked.map_err(|error| moved(target, error))
}

/// Converts the error for an object that is not the recorded one any more.
fn moved(target: &AbsPath, error: RootError) -> TransactionError {
    match error.is_moved() {
        true => TransactionError::Changed {
            target: target.clone(),
        },
        false => error.into(),
    }
}

/// Returns the current path of the file that will be at `target`: in a slot, or in a tree in a slot. Returns `None`
/// if it is already in place.
fn staged(
    target: &AbsPath,
    waiting: &BTreeMap<&AbsPath, &AbsPath>,
) -> Result<Option<AbsPath>, TransactionError> {
    let above = std::iter::once(target.clone()).chain(target.ancestors());
    for above in above {
        if let Some(slot) = waiting.get(&above) {
            let below = target.relative().strip_prefix(above.relative());
            return Ok(Some(
                match below.map(|below| below.trim_start_matches('/')) {
                    None | Some("") => (*slot).clone(),
                    Some(below) => slot.join(below)?,
                },
            ));
        }
    }
    Ok(None)
}

fn not_the_plan(operation: &Operation) -> TransactionError {
    TransactionError::NotThePlan {
        target: operation.target.clone(),
    }
}

/// Fills in the identity of the staged object of an operation.
fn identify_one(
    root: &Root,
    operation: &Operation,
    record: &mut OperationRecord,
) -> Result<(), TransactionError> {
    let OperationRecordKind::Exchange { slot, after, .. } = &mut record.kind else {
        return Ok(());
    };
    match &operation.kind {
        OperationKind::Put(node) => {
            *after = object_at(root, slot)?;
            if matches!(node.kind, NodeKind::Directory(_)) {
                record.brought = Some(backups::content(root, slot)?);
            }
        }
        OperationKind::Restore(_) => {
            let there = object_at(root, slot)?;
            *after = Some(there.ok_or_else(|| not_the_plan(operation))?);
        }
        OperationKind::Remove => *after = None,
        OperationKind::Metadata(_) | OperationKind::Entries(_) => {
            return Err(not_the_plan(operation));
        }
    }
    Ok(())
}

/// Creates an empty directory with the mode and owner of a directory that existed before machinist, so that they
/// can be kept as an original.
fn keep_metadata(
    root: &Root,
    place: &AbsPath,
    (mode, uid, gid): (u32, u32, u32),
    chown: bool,
    sync: bool,
) -> Result<(), TransactionError> {
    let meta = Meta {
        mode,
        uid,
        gid,
        chown,
    };
    root.build_dir(place, &meta)?;
    if sync {
        root.sync_dir(place)?;
    }
    Ok(())
}
