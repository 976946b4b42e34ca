//! Creates the intent of a transaction: the paths for staging, and the identity of the current objects.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::{
    TransactionError, backups,
    commit::loses_lists,
    finalize::{attributes_of, changed_object, modes, originals},
    identify, kind_name, mount_point_dirs,
    ownership::{is_ours, ours_below, released},
    staging_dirs::StagingDirs,
    target_directory::as_user_change,
    target_path::{TargetPath, approach, clear_removed_links, lasting_parent, refuse_foreign},
};
use crate::{
    boot_id,
    journal::{
        ActionRecord, ActionState, BackupPolicy, ConfigName, ContentState, Direction, GivenLabels,
        Journal, NestedObject, ObjectId, OperationRecord, OperationRecordKind, Transaction,
        TransactionState,
    },
};
use machinist_base::{abs_path::AbsPath, digest::Digest};
use machinist_plan::{
    ActionKind, Attributes, Edit, MAX_TOTAL_FILE_BYTES, NewObject, NodeKind, Operation,
    OperationKind, Plan, discloses,
};
use machinist_rootfs::{DirectoryControl, FileKind, Root, Stat};

/// The input for an intent.
#[expect(
    missing_debug_implementations,
    reason = "it holds a closure and lives for one call"
)]
pub struct TransactionIntent<'a> {
    /// The accepted plan.
    pub plan: &'a Plan,
    /// The previous config, as stored.
    pub from: Option<ConfigName>,
    /// The new config, as stored.
    pub to: ConfigName,
    /// Returns whether an owned path differs from `from`, given the digest of its content (`None` if it is no file or
    /// cannot be read).
    pub drifted: &'a dyn Fn(&AbsPath, Option<Digest>) -> bool,
    /// The canonical paths that the new config names.
    pub named: &'a BTreeSet<AbsPath>,
    /// The canonical paths of those paths in both configs that differ from them.
    pub moved: &'a BTreeMap<AbsPath, AbsPath>,
    /// The root is offline: no service manager runs.
    pub offline: bool,
    /// Whether owners can be set; otherwise they are only recorded.
    pub chown: bool,
    /// The current time.
    pub now: Timestamp,
}

/// Creates the record of a new transaction. Writes nothing; the caller saves the journal.
pub fn begin(
    root: &Root,
    journal: &Journal,
    from: &TransactionIntent<'_>,
) -> Result<Transaction, TransactionError> {
    let root = &root.for_one_pass();
    let id = new_id(journal, from, &backups::originals(root)?);
    let boot = boot_id::current(root)?;
    let mut places = StagingDirs::new(root, &id, mount_point_dirs::known(journal))?;
    let mut operations = Vec::with_capacity(from.plan.operations.len());
    let mut followed = Vec::with_capacity(from.plan.operations.len());
    for (index, operation) in from.plan.operations.iter().enumerate() {
        let recorded = reach_and_record(root, journal, from, (index, operation), &mut places);
        let recorded = recorded.map_err(|error| as_user_change(root, &operation.target, error));
        let (record, links) = recorded?;
        operations.push(record);
        followed.push(links);
    }
    clear_removed_links(&mut operations, &followed);
    let staging = places.used();
    Ok(Transaction {
        id,
        mark: TransactionState::Intent,
        direction: Direction::Forward,
        from: from.from.clone(),
        to: from.to.clone(),
        started: from.now,
        staging,
        holders: BTreeMap::new(),
        operations,
        adopted: from
            .plan
            .adopted
            .iter()
            .filter(|path| !is_ours(journal, path) || returns(from.plan, path))
            .cloned()
            .collect(),
        released: released(journal, from.named),
        let_go: from.plan.let_go.clone(),
        labels: GivenLabels::default(),
        actions: actions(journal, from.plan, boot.as_deref()),
        committed_boot: None,
        boots: 0,
        counted_boot: None,
        reboot: None,
        undo_reason: None,
        left_behind: from.plan.left_behind.clone(),
        skipped: from.plan.skipped.clone(),
        reverted: false,
        booted_into: false,
        offline: from.offline,
        warnings: Vec::new(),
        phases: Vec::new(),
    })
}

/// Returns whether the plan puts the original back at this path.
fn returns(plan: &Plan, path: &AbsPath) -> bool {
    let mut operations = plan.operations.iter();
    operations.any(|operation| {
        operation.target == *path && matches!(operation.kind, OperationKind::Restore(_))
    })
}

/// Returns an ID from the start time and the new config: unique for one writer, sortable, and readable.
fn new_id(journal: &Journal, from: &TransactionIntent<'_>, originals: &[String]) -> String {
    let stem = format!(
        "{}-{}",
        from.now.strftime("%Y%m%dT%H%M%SZ"),
        from.to.digest.short(8)
    );
    // An update of a lost journal may have used the ID: its originals may still exist.
    let kept = |id: &str| {
        let mut names = originals.iter();
        names.any(|name| {
            name.strip_prefix(id)
                .is_some_and(|rest| rest.starts_with('-'))
        })
    };
    let taken = |id: &String| {
        journal.transactions.iter().any(|tx| tx.id == *id)
            || journal.history.iter().any(|update| update.id == *id)
            || kept(id)
    };
    let numbered = (2..).map(|number| format!("{stem}-{number}"));
    std::iter::once(stem.clone())
        .chain(numbered)
        .find(|id| !taken(id))
        .unwrap_or(stem)
}

/// Returns the plan's actions, after the unfinished ones of earlier, unverified transactions, except reboots that have
/// happened.
fn actions(journal: &Journal, plan: &Plan, boot: Option<&str>) -> Vec<ActionRecord> {
    let owed = journal.transactions.iter().flat_map(|tx| {
        let has_rebooted = boot.is_some_and(|boot| tx.rebooted_since(boot));
        let is_owed = move |action: &&ActionRecord| {
            action.state != ActionState::Done
                && !(has_rebooted && action.kind >= ActionKind::SoftReboot)
        };
        tx.actions.iter().filter(is_owed)
    });
    let owed = owed.map(|action| (action.kind, action.unit.clone()));
    let planned = plan
        .actions
        .iter()
        .map(|action| (action.kind, action.unit.clone()));
    let record = |(kind, unit)| ActionRecord {
        kind,
        unit,
        state: ActionState::Pending,
    };
    let all = machinist_plan::in_order(owed.chain(planned));
    all.into_iter().map(record).collect()
}

/// Creates the record of one operation. Returns it with the links on the requested path.
fn reach_and_record(
    root: &Root,
    journal: &Journal,
    from: &TransactionIntent<'_>,
    (index, operation): (usize, &Operation),
    places: &mut StagingDirs<'_>,
) -> Result<(OperationRecord, Vec<AbsPath>), TransactionError> {
    let (before, target) = (&from.plan.operations[..index], &operation.target);
    let TargetPath { way, asked, links } = approach(root, from.moved, before, target)?;
    let parent = lasting_parent(root, &way, target)?;
    let pinned = root.pinned(&[&way]);
    let ours = |path: &AbsPath| is_ours(journal, path);
    refuse_foreign(&pinned, &way, (operation, &from.plan.operations), &ours)?;
    let record = record(&pinned, journal, from, operation, index, places)?;
    let record = judge_exposed(journal, &way.control, record)?;
    let record = OperationRecord {
        asked,
        parent,
        ..record
    };
    Ok((record, links))
}

fn record(
    root: &Root,
    journal: &Journal,
    from: &TransactionIntent<'_>,
    operation: &Operation,
    index: usize,
    places: &mut StagingDirs<'_>,
) -> Result<OperationRecord, TransactionError> {
    let target = operation.target.clone();
    if let OperationKind::Metadata(wanted) = operation.kind {
        return metadata(root, journal, from.chown, (target, wanted), index, places);
    }
    let staging = places.staging_for(&target)?;
    if let OperationKind::Entries(edits) = &operation.kind {
        return entries(target, edits, &staging, index);
    }
    let stat = root.stat(&target)?;
    let content_before = content_state(root, journal, operation, stat.as_ref());
    let before = stat
        .map(|stat| identify(root, &target, &stat))
        .transpose()?;
    let slot = match &operation.kind {
        OperationKind::Restore(place) => place.clone(),
        _ => staging.join(&index.to_string())?,
    };
    let removal = operation.kind == OperationKind::Remove;
    let foreign = operation.shared || is_foreign(&operation.kind);
    let keep = match &before {
        None => BackupPolicy::No,
        Some(_) => keep_before(journal, from, operation, content_before),
    };
    let directory = is_directory(before.as_ref());
    let ours_before = match directory && keep == BackupPolicy::Original {
        true => ours_below(journal, &target),
        false => Vec::new(),
    };
    let held = directory
        .then(|| backups::content(root, &target))
        .transpose()?;
    let mut below = Vec::new();
    let mut recorded_owner = None;
    let (copy_of, attributes) = attributes(places.root(), journal, operation, keep)?;
    if let OperationKind::Put(node) = &operation.kind {
        recorded_owner = owner_to_record(node, from.chown);
        list_below(&target, node, from.chown, &mut below)?;
        below.retain(|below| !belongs_to_user(operation, from.named, &below.path));
    }
    let kind = OperationRecordKind::Exchange {
        slot,
        before,
        after: None,
        removal,
        foreign,
        keep,
        recorded_owner,
    };
    let record = plain(target, kind);
    Ok(OperationRecord {
        below,
        ours_before,
        held,
        stays: operation.homes.contains(&operation.target),
        attributes,
        copy_of,
        content_before,
        ..record
    })
}

/// Returns the state of a file of machinist, or of one that it shares with a user. The caller compares the content
/// with the config afterwards, so that no change is missed.
fn content_state(
    root: &Root,
    journal: &Journal,
    operation: &Operation,
    stat: Option<&Stat>,
) -> Option<ContentState> {
    let target = &operation.target;
    let stat = stat.filter(|stat| stat.kind == FileKind::File)?;
    if !operation.shared && !is_ours(journal, target) {
        return None;
    }
    // A file that another process holds by a lease cannot be read.
    let digest = root.digest_within(target, MAX_TOTAL_FILE_BYTES).ok()??;
    Some(ContentState {
        size: stat.size,
        mtime: stat.mtime,
        digest,
    })
}

fn is_directory(object: Option<&ObjectId>) -> bool {
    object.is_some_and(|object| object.kind == kind_name(FileKind::Directory))
}

/// Decides how to keep the object that an operation replaces.
fn keep_before(
    journal: &Journal,
    from: &TransactionIntent<'_>,
    operation: &Operation,
    content: Option<ContentState>,
) -> BackupPolicy {
    let target = &operation.target;
    if operation.shared {
        let merged_from = operation.merged_from;
        let is_merged = merged_from.is_none() || merged_from == content.map(|one| one.digest);
        return match is_merged {
            true => BackupPolicy::No,
            false => BackupPolicy::Drifted,
        };
    }
    // An entry without contents created an empty file, and another writer filled it.
    let filled = || from.plan.written.contains(target) && !originals(journal).contains_key(target);
    if !is_ours(journal, target) || filled() {
        return BackupPolicy::Original;
    }
    match (from.drifted)(target, content.map(|one| one.digest)) {
        true => BackupPolicy::Drifted,
        false => BackupPolicy::No,
    }
}

/// Returns whether the new object is not owned by machinist.
fn is_foreign(kind: &OperationKind) -> bool {
    matches!(
        kind,
        OperationKind::Restore(_)
            | OperationKind::Put(NewObject {
                kind: NodeKind::Copy { .. },
                ..
            })
    )
}

/// Returns the original that is copied, and the mode and owner that a file of another owner had before machinist
/// changed them.
fn attributes(
    root: &Root,
    journal: &Journal,
    operation: &Operation,
    keep: BackupPolicy,
) -> Result<(Option<AbsPath>, Option<Attributes>), TransactionError> {
    if let OperationKind::Put(NewObject {
        kind: NodeKind::Copy { place, .. },
        ..
    }) = &operation.kind
    {
        let stat = root.stat(place)?;
        let attributes = stat.map(|stat| Attributes {
            mode: stat.mode,
            uid: stat.uid,
            gid: stat.gid,
        });
        return Ok((Some(place.clone()), attributes));
    }
    let before = modes(journal).remove(&operation.target);
    Ok((None, before.filter(|_| keep == BackupPolicy::Original)))
}

/// Creates the record for entries of a user database. The database is read only when the operation runs.
fn entries(
    target: AbsPath,
    edits: &[Edit],
    staging: &AbsPath,
    index: usize,
) -> Result<OperationRecord, TransactionError> {
    let slot = staging.join(&index.to_string())?;
    let edits = edits.to_vec();
    Ok(plain(target, OperationRecordKind::Entries { slot, edits }))
}

/// Creates a record without optional fields.
const fn plain(target: AbsPath, kind: OperationRecordKind) -> OperationRecord {
    OperationRecord {
        target,
        asked: None,
        parent: None,
        kind,
        below: Vec::new(),
        ours_before: Vec::new(),
        held: None,
        brought: None,
        stays: false,
        attributes: None,
        lists: BTreeMap::new(),
        copy_of: None,
        content_before: None,
    }
}

/// Returns whether the path is a new user's home, or is in it and not named by the config.
fn belongs_to_user(operation: &Operation, named: &BTreeSet<AbsPath>, path: &AbsPath) -> bool {
    let mut homes = operation.homes.iter();
    let holds_named = || {
        let below = |named: &AbsPath| named.is_under(path);
        named.iter().any(below)
    };
    homes.any(|home| path == home || (path.is_under(home) && !holds_named()))
}

/// Creates the record for a directory or file whose mode or owner changes in place.
fn metadata(
    root: &Root,
    journal: &Journal,
    chown: bool,
    (target, wanted): (AbsPath, Attributes),
    index: usize,
    places: &mut StagingDirs<'_>,
) -> Result<OperationRecord, TransactionError> {
    let either =
        |stat: &machinist_rootfs::Stat| matches!(stat.kind, FileKind::Directory | FileKind::File);
    let Some(stat) = root.stat(&target)?.filter(either) else {
        return Err(TransactionError::Changed { target });
    };
    let owner = if chown {
        (wanted.uid, wanted.gid)
    } else {
        (stat.uid, stat.gid)
    };
    let file = stat.kind == FileKind::File;
    // A file needs no staging, but its file system must be synced.
    let staging = match file {
        true => places.staging_for(&target)?,
        false => places.staging_in(&target)?,
    };
    let slot = staging.join(&index.to_string())?;
    let kind = OperationRecordKind::Metadata {
        before: (stat.mode, stat.uid, stat.gid),
        after: (wanted.mode, owner.0, owner.1),
        chown,
        original: (!file && !is_ours(journal, &target)).then_some(slot),
        file,
        object: Some(stat.identity),
        exposed: false,
    };
    let lists = match loses_lists(&kind) {
        true => root.access_lists(&target)?,
        false => BTreeMap::new(),
    };
    let record = plain(target, kind);
    Ok(OperationRecord { lists, ..record })
}

/// Marks a change of mode and owner of an object that other users than root could exchange for another one. The plan
/// has judged the object that it saw; another one may be there now.
fn judge_exposed(
    journal: &Journal,
    control: &DirectoryControl,
    mut record: OperationRecord,
) -> Result<OperationRecord, TransactionError> {
    let OperationRecordKind::Metadata {
        before,
        after,
        file,
        object,
        exposed,
        ..
    } = &mut record.kind
    else {
        return Ok(record);
    };
    *exposed = *control != DirectoryControl::Root;
    let owner = before.1;
    let own = matches!(control, DirectoryControl::User { uid: Some(user), .. } if owner != 0 && *user == owner);
    let gives = discloses(attributes_of(*before), attributes_of(*after), !*file);
    if *exposed && !own && gives && changed_object(journal, &record.target) != *object {
        return Err(TransactionError::Changed {
            target: record.target,
        });
    }
    Ok(record)
}

/// Returns the requested owner if it cannot be set. A hard link has the owner of its file.
fn owner_to_record(node: &NewObject, chown: bool) -> Option<(u32, u32)> {
    let own = !matches!(node.kind, NodeKind::Hard { .. });
    (!chown && own).then_some((node.uid, node.gid))
}

fn list_below(
    at: &AbsPath,
    node: &NewObject,
    chown: bool,
    into: &mut Vec<NestedObject>,
) -> Result<(), TransactionError> {
    let NodeKind::Directory(children) = &node.kind else {
        return Ok(());
    };
    for (name, child) in children {
        let path = at.join(name)?;
        let directory = matches!(child.kind, NodeKind::Directory(_));
        let owner = owner_to_record(child, chown);
        into.push(NestedObject {
            path: path.clone(),
            directory,
            owner,
        });
        list_below(&path, child, chown, into)?;
    }
    Ok(())
}
