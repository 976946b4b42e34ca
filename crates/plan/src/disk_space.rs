//! Checks that there is enough free space for an update: for staging, and for the copies kept for a
//! rollback.

use std::collections::{BTreeMap, BTreeSet};

use super::{MachineFacts, Operation, OperationKind};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::Refusal;

/// The directory of machinist's own state, where copies for a rollback are kept.
pub(super) const STATE_DIR: &str = "/var/lib/machinist";

/// Free bytes to leave on every file system used for staging: for the journal, the directories of
/// the staging tree, and writes of other programs during the update.
const RESERVE_BYTES: u64 = 1 << 20;

/// Free inodes to leave on every file system, for the staging tree's own directories.
const RESERVE_INODES: u64 = 32;

/// The bytes and inodes that each mount must have free.
type SpaceNeeds<'a> = BTreeMap<&'a AbsPath, (u64, u64)>;

/// The mounts that lack bytes or inodes for what is staged on them.
pub(super) fn full_mounts(operations: &[Operation], observed: &MachineFacts) -> BTreeSet<AbsPath> {
    let reserve = (RESERVE_BYTES, RESERVE_INODES);
    let needs = staged(operations, observed).into_iter();
    let full = needs.filter(|(mount, need)| !short(mount, *need, observed, reserve).is_empty());
    full.map(|(mount, _)| mount.clone()).collect()
}

/// A refusal for each mount that lacks bytes or inodes.
pub(super) fn refusals(operations: &[Operation], observed: &MachineFacts) -> Vec<Refusal> {
    let staged = staged(operations, observed);
    let copies = copies(operations, observed, &staged);
    let mut messages: Vec<String> = Vec::new();
    for (mount, need) in &staged {
        messages.extend(short(
            mount,
            *need,
            observed,
            (RESERVE_BYTES, RESERVE_INODES),
        ));
    }
    // The copies alone may fill a file system that is dedicated to the state, so no reserve is
    // left.
    for (mount, need) in &copies {
        if messages.is_empty() {
            messages.extend(short(mount, *need, observed, (0, 0)));
        }
    }
    let refusal = |message| Refusal::new(Reason::NoSpace, message);
    messages.into_iter().map(refusal).collect()
}

/// Every new object is staged on the same mount as the old one, and nothing is freed before the
/// update is verified.
fn staged<'a>(operations: &[Operation], observed: &'a MachineFacts) -> SpaceNeeds<'a> {
    let mut needs = SpaceNeeds::new();
    for operation in operations {
        if let Some((_, facts)) = observed.nearest(&operation.target) {
            let (bytes, objects) = match &operation.kind {
                OperationKind::Put(node) => node.weight(),
                // The file is rewritten next to the old one, with a line or two more.
                OperationKind::Entries(_) => (facts.size.saturating_add(8192), 1),
                _ => continue,
            };
            let need = needs.entry(&facts.mount).or_default();
            need.0 = need.0.saturating_add(bytes);
            need.1 = need.1.saturating_add(objects);
        }
    }
    needs
}

/// File contents are stored a second time, without duplicates, in one file on the mount of the
/// state, in addition to objects staged on the same mount.
fn copies<'a>(
    operations: &[Operation],
    observed: &'a MachineFacts,
    staged: &SpaceNeeds<'a>,
) -> SpaceNeeds<'a> {
    let mut contents = BTreeMap::new();
    for operation in operations {
        if let OperationKind::Put(node) = &operation.kind {
            node.contents(&mut contents);
        }
    }
    let state = AbsPath::new(STATE_DIR).ok();
    let state = state.and_then(|state| observed.nearest(&state));
    let need = |(_, facts): (AbsPath, &'a super::FileFacts)| {
        let beside = staged.get(&facts.mount).copied().unwrap_or_default();
        let bytes = contents
            .values()
            .fold(beside.0, |sum, size| sum.saturating_add(*size));
        (&facts.mount, (bytes, beside.1.saturating_add(1)))
    };
    state
        .filter(|_| !contents.is_empty())
        .map(need)
        .into_iter()
        .collect()
}

fn short(
    mount: &AbsPath,
    (bytes, objects): (u64, u64),
    observed: &MachineFacts,
    reserve: (u64, u64),
) -> Vec<String> {
    let Some(facts) = observed.mounts.get(mount) else {
        return Vec::new();
    };
    let free = facts.free_bytes.saturating_sub(reserve.0);
    let inodes = facts.free_inodes;
    let inodes = inodes.map(|inodes| inodes.saturating_sub(reserve.1));
    let bytes = (bytes > free).then(|| {
        format!(
            "not enough space on {mount}: the update needs {bytes} bytes, {free} \
             bytes are available"
        )
    });
    let objects = inodes.filter(|inodes| objects > *inodes).map(|inodes| {
        format!(
            "not enough inodes on {mount}: the update needs {objects} inodes, {inodes} inodes \
             are available"
        )
    });
    bytes.into_iter().chain(objects).collect()
}
