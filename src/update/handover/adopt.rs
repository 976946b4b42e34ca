//! Taking over: what that daemon manages becomes ours as it stands.

use std::collections::{BTreeMap, BTreeSet};

use super::{Found, HandoverError, found};
use crate::{
    path::AbsPath,
    plan::{Database, Plan},
    root::{Kind, Root},
    update::{
        journal::{ConfigName, Journal},
        look::{self, How},
        store::Store,
        transaction,
    },
};

/// What taking over would mean.
#[derive(Debug)]
pub struct Adoption {
    /// The config that the daemon says the disk is on.
    pub found: Found,
    /// What stands otherwise on the disk, as a plan that would put it back.
    pub plan: Plan,
    /// What stood before the config at paths that it names, and where the daemon keeps it.
    pub originals: BTreeMap<AbsPath, AbsPath>,
    /// What it keeps of paths that its config does not name: nobody brings that back.
    pub left: Vec<AbsPath>,
    /// Paths that become ours.
    owned: BTreeSet<AbsPath>,
}

/// Refuses where something of ours is there already.
fn not_ours(journal: &Journal) -> Result<(), HandoverError> {
    if let Some(open) = journal.top() {
        return Err(HandoverError::Open(open.to.name.clone()));
    }
    match &journal.base {
        Some(base) => Err(HandoverError::Owned(base.name.clone())),
        None => Ok(()),
    }
}

/// Compares the disk with the config that it is said to be on. Nothing is changed. Blocks.
pub fn look_before_adoption(
    root: &Root,
    journal: &Journal,
    found: Found,
    how: How<'_>,
) -> Result<Adoption, HandoverError> {
    not_ours(journal)?;
    let looked = look::standing(root, journal, &found.config, how)?;
    let plan = looked.plan.map_err(HandoverError::Refused)?;
    let databases = Database::ALL.map(Database::path);
    let mut owned = BTreeSet::new();
    for path in looked.named {
        // Databases of users are everybody's, and directories were there before or are made by all.
        let kind = root.stat(&path)?.map(|stat| stat.kind);
        if matches!(kind, Some(Kind::File | Kind::Link)) && !databases.contains(&path) {
            owned.insert(path);
        }
    }
    let (originals, left): (BTreeMap<_, _>, BTreeMap<_, _>) = found::originals(root)?
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

/// Makes the machine ours as it stands. The journal comes last, in one piece: before it nothing has changed
/// that anybody sees, and the same again does the same.
pub fn adopt(
    store: &Store,
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
