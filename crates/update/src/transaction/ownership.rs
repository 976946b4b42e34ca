//! Decides from the journal which objects machinist owns.

use std::collections::BTreeSet;

use crate::journal::{Journal, OperationRecordKind};
use machinist_base::abs_path::AbsPath;

/// Returns whether machinist owns the object at this path: the previous object is kept elsewhere, or there was
/// none. The newest open transaction with this path decides, then the base.
pub(super) fn is_ours(journal: &Journal, target: &AbsPath) -> bool {
    for tx in journal.transactions.iter().rev() {
        for record in tx.operations.iter().rev() {
            if matches!(
                record.kind,
                OperationRecordKind::Entries { .. }
                    | OperationRecordKind::Metadata { file: true, .. }
            ) {
                continue;
            }
            if record.target == *target {
                return match &record.kind {
                    OperationRecordKind::Exchange {
                        removal, foreign, ..
                    } => !removal && !foreign,
                    OperationRecordKind::Metadata { .. } => true,
                    OperationRecordKind::Entries { .. } => false,
                };
            }
            if record.below.iter().any(|below| below.path == *target) {
                return true;
            }
            let exchanged = matches!(record.kind, OperationRecordKind::Exchange { .. });
            if exchanged && target.is_under(&record.target) {
                // Its directory was replaced as a whole.
                return false;
            }
        }
    }
    let kept = journal.originals.contains_key(target);
    kept || journal.owned.contains_key(target) || journal.made.contains(target)
}

/// Returns all owned paths below a directory, the deepest first.
pub(super) fn ours_below(journal: &Journal, target: &AbsPath) -> Vec<AbsPath> {
    let operations = journal.transactions.iter().flat_map(|tx| &tx.operations);
    let open = operations.flat_map(|record| {
        let below = record.below.iter().map(|below| &below.path);
        below.chain(std::iter::once(&record.target))
    });
    let known = journal.owned.keys().chain(&journal.made).chain(open);
    let inside: BTreeSet<_> = known
        .filter(|path| path.is_under(target) && *path != target && is_ours(journal, path))
        .collect();
    inside.into_iter().rev().cloned().collect()
}

/// Returns the files with such a path that machinist owns, including those of open transactions.
pub fn owned_files(journal: &Journal, named: fn(&AbsPath) -> bool) -> BTreeSet<AbsPath> {
    let operations = journal.transactions.iter().flat_map(|tx| &tx.operations);
    let open = operations.flat_map(|record| {
        let below = record.below.iter().map(|below| &below.path);
        below.chain(std::iter::once(&record.target))
    });
    let known = journal.owned.keys().chain(open);
    let named = known.filter(|path| named(path) && is_ours(journal, path));
    named.cloned().collect()
}

/// Returns the paths that previous configs owned and the new one does not name.
pub(super) fn released(journal: &Journal, named: &BTreeSet<AbsPath>) -> BTreeSet<AbsPath> {
    let kept = journal.owned.keys().chain(journal.originals.keys());
    let kept = kept.chain(journal.modes.keys());
    let mut all: BTreeSet<AbsPath> = kept.chain(&journal.adopted).cloned().collect();
    for tx in &journal.transactions {
        all.extend(tx.adopted.iter().cloned());
        for record in &tx.operations {
            all.insert(record.target.clone());
            all.extend(record.below.iter().map(|below| below.path.clone()));
        }
    }
    let above: BTreeSet<AbsPath> = named.iter().flat_map(AbsPath::ancestors).collect();
    // The original of a path that is now a parent directory is restored only when that directory is not needed any
    // more.
    let needed = |path: &AbsPath| above.contains(path) && journal.originals.contains_key(path);
    all.retain(|path| !named.contains(path) && !needed(path));
    all
}
