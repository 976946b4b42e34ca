//! Adopts a machine: what machine-config-daemon manages becomes machinist's, unchanged.

use std::collections::{BTreeMap, BTreeSet};

use super::{HandoverError, McdConfigState, mcd_state};
use crate::{
    journal::{ConfigName, Journal},
    observe_and_plan::{self, PlanOptions},
    store::StateStore,
    transaction,
};
use machinist_base::abs_path::AbsPath;
use machinist_plan::{Database, Plan};
use machinist_rootfs::{FileKind, Root};

/// The result of a check before adoption.
#[derive(Debug)]
pub struct Adoption {
    /// The daemon's config of the disk.
    pub found: McdConfigState,
    /// The drift of the disk, as a plan that would repair it.
    pub plan: Plan,
    /// Originals of paths that the config names, with the paths where the daemon keeps them.
    pub originals: BTreeMap<AbsPath, AbsPath>,
    /// Originals that the daemon keeps for paths that its config does not name. They are not restored.
    pub left: Vec<AbsPath>,
    /// Paths that machinist will own.
    owned: BTreeSet<AbsPath>,
}

/// Returns an error if machinist already owns the machine or has an open transaction.
fn not_ours(journal: &Journal) -> Result<(), HandoverError> {
    if let Some(open) = journal.top() {
        return Err(HandoverError::Open(open.to.name.clone()));
    }
    match &journal.base {
        Some(base) => Err(HandoverError::Owned(base.name.clone())),
        None => Ok(()),
    }
}

/// Compares the disk with the daemon's config. Changes nothing. Blocks.
pub fn check_adoption(
    root: &Root,
    journal: &Journal,
    found: McdConfigState,
    how: PlanOptions<'_>,
) -> Result<Adoption, HandoverError> {
    not_ours(journal)?;
    let looked = observe_and_plan::plan_adopted(root, journal, &found.config, how)?;
    let plan = looked.plan.map_err(HandoverError::Refused)?;
    let databases = Database::ALL.map(Database::path);
    let mut owned = BTreeSet::new();
    for path in looked.named {
        // User databases are shared with other programs. Directories existed before, or any program may create
        // them.
        let kind = root.stat(&path)?.map(|stat| stat.kind);
        if matches!(kind, Some(FileKind::File | FileKind::Link)) && !databases.contains(&path) {
            owned.insert(path);
        }
    }
    let (originals, left): (BTreeMap<_, _>, BTreeMap<_, _>) = mcd_state::originals(root)?
        .into_iter()
        .partition(|(path, _)| owned.contains(path));
    Ok(Adoption {
        found,
        plan,
        originals,
        left: left.into_values().collect(),
        owned,
    })
}

/// Adopts the machine unchanged. The journal is written last and atomically: before that, nothing visible has
/// changed, and a repetition has the same result.
pub fn adopt(
    store: &StateStore,
    adoption: &Adoption,
    failed_units: Vec<String>,
) -> Result<ConfigName, HandoverError> {
    let mut journal = store.load()?;
    not_ours(&journal)?;
    let base = store.keep_config(&adoption.found.config)?;
    let id = format!("adopted-{}", base.digest.short(8));
    for (number, (path, kept)) in adoption.originals.iter().enumerate() {
        let id = format!("{id}-{number}");
        let taken = transaction::take_original(store.root(), &mut journal, &id, path, kept);
        let place = taken.map_err(|source| HandoverError::Original {
            path: path.clone(),
            source,
        })?;
        journal.originals.insert(path.clone(), place);
    }
    let owned = adoption.owned.iter().map(|path| (path.clone(), None));
    journal.owned.extend(owned);
    journal.failed_units = failed_units;
    journal.failure = None;
    journal.base = Some(base.clone());
    store.save(&journal)?;
    Ok(base)
}
