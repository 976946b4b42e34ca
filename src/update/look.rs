//! Looking at the machine and planning: the one way, for the driver, `plan` and `verify`.

mod base;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    journal::{ConfigName, Journal},
    observe::{self, Known, ObserveError},
    ports::{ServiceError, Services},
    remembered::Remembered,
    store::{self, StoreError},
    transaction,
};
use crate::{
    machine_config::{self, MachineConfig, Refusal},
    path::AbsPath,
    plan::{self, Capabilities, Drift, OsFacts, Plan, Policies, UnitFacts},
    reason::Reason,
    root::Root,
};

/// Why the machine could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// The tree.
    #[error("cannot look at the machine")]
    Observe(#[source] ObserveError),
    /// What was applied last.
    #[error("cannot read the config the machine is on")]
    Store(#[source] StoreError),
    /// The units.
    #[error("cannot read the state of the units")]
    Services(#[source] ServiceError),
}

impl LookError {
    /// Whether the same may succeed later.
    pub fn again(&self) -> bool {
        match self {
            Self::Observe(error) => error.again(),
            Self::Store(error) => error.again(),
            Self::Services(error) => error.again,
        }
    }

    /// The code that status and metrics carry.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Observe(error) => error.reason(),
            Self::Store(error) => error.reason(),
            Self::Services(error) => error.reason,
        }
    }
}

/// A plan, or every reason against it; with the config the machine is on.
#[derive(Debug)]
pub struct Looked {
    /// What would happen.
    pub plan: Result<Plan, Vec<Refusal>>,
    /// The config the plan starts from.
    pub from: Arc<MachineConfig>,
    /// The canonical paths that the config to reach speaks of; none where it is refused.
    pub named: BTreeSet<AbsPath>,
    /// Where paths of both configs really lie that lie elsewhere than they say.
    pub moved: BTreeMap<AbsPath, AbsPath>,
}

/// The config the disk is on: that of the newest open transaction, else the verified one.
pub fn current(journal: &Journal) -> Option<&ConfigName> {
    journal.top().map(|tx| &tx.to).or(journal.base.as_ref())
}

/// Every unit that a config names or a policy acts on. Blocking.
pub fn unit_names(
    root: &Root,
    journal: &Journal,
    to: &MachineConfig,
    policies: &Policies,
    remembered: &Remembered,
) -> Result<Vec<String>, LookError> {
    let from = match remembered.config(root, current(journal)) {
        // Planning will say so, or find that it does not matter.
        Err(StoreError::Config { .. }) => Arc::default(),
        from => from.map_err(LookError::Store)?,
    };
    let named = from
        .units
        .keys()
        .chain(to.units.keys())
        .map(ToString::to_string);
    let mut names: BTreeSet<String> = named.collect();
    let named = |config| plan::named_in(config, &BTreeMap::new());
    names.extend([&*from, to].into_iter().flat_map(named));
    let behind = observe::behind_aliases(root, &names, &transaction::originals(journal));
    names.extend(behind.map_err(|error| LookError::Observe(error.into()))?);
    names.extend(policies.unit_names());
    // A template is no unit that could be asked about.
    let no_template = |name: &String| !name.contains("@.");
    Ok(names.into_iter().filter(no_template).collect())
}

/// What the manager says of them.
pub async fn units<S: Services>(
    services: &S,
    names: &[String],
) -> Result<BTreeMap<String, UnitFacts>, LookError> {
    let asked = services.unit_facts(names).await;
    asked.map_err(LookError::Services)
}

/// How a plan is made.
#[derive(Clone, Copy, Debug)]
pub struct How<'a> {
    /// Which change causes which action.
    pub policies: &'a Policies,
    /// What this root and this process can do.
    pub capabilities: Capabilities,
    /// What the manager says of the units; none offline.
    pub units: Option<&'a BTreeMap<String, UnitFacts>>,
    /// The only path that is looked at, as the config spells it; what else differs stays.
    pub only: Option<&'a AbsPath>,
    /// What need not be read again.
    pub remembered: &'a Remembered,
}

/// Observes once and plans. Blocking.
pub fn look(
    root: &Root,
    journal: &Journal,
    to: &MachineConfig,
    how: How<'_>,
) -> Result<Looked, LookError> {
    let from = match how.remembered.config(root, current(journal)) {
        Err(lost @ StoreError::Config { .. }) => match current(journal) {
            // The very config whose copy is lost.
            Some(name) if name.digest == machine_config::digest(to) => Arc::new(to.clone()),
            _ => {
                let looked = look_from(root, journal, Arc::default(), to, how, Writes::All)?;
                return match is_all_there(journal, &looked) {
                    true => Ok(looked),
                    false => Err(LookError::Store(lost)),
                };
            }
        },
        from => from.map_err(LookError::Store)?,
    };
    look_from(root, journal, from, to, how, Writes::All)
}

/// As [`look`], for a config that the disk is said to be on already by somebody else: all that it names is
/// taken for its own. Blocking.
pub fn standing(
    root: &Root,
    journal: &Journal,
    config: &Arc<MachineConfig>,
    how: How<'_>,
) -> Result<Looked, LookError> {
    let (from, nothing) = (Arc::clone(config), Writes::Nothing);
    look_from(root, journal, from, config, how, nothing)
}

/// Whether the disk holds what is asked for, and nothing of ours beside it: then it does not matter that
/// nobody knows the config before.
fn is_all_there(journal: &Journal, looked: &Looked) -> bool {
    let asked = |path| looked.named.contains(path);
    let same = looked.plan.as_ref().is_ok_and(Plan::is_empty);
    same && journal.transactions.is_empty() && journal.owned.keys().all(asked)
}

/// Whether what is planned is carried out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writes {
    All,
    /// It is only looked at: nobody need be there to settle it.
    Nothing,
}

fn look_from(
    root: &Root,
    journal: &Journal,
    from: Arc<MachineConfig>,
    to: &MachineConfig,
    how: How<'_>,
    writes: Writes,
) -> Result<Looked, LookError> {
    let to = &*as_stored(current(journal), to);
    let How {
        policies,
        capabilities,
        units,
        only,
        remembered,
    } = how;
    let labels = transaction::labels(journal);
    let known = Known {
        live_units: units,
        originals: transaction::originals(journal),
        adopted: adopted(journal),
        modes: transaction::modes(journal),
        entries: transaction::kept_entries(journal),
        // Without a provider nobody can say what is booted.
        os: OsFacts::default(),
        base: base::of(root, journal, to),
        digests: Some(remembered.digests()),
        labels: labels.given,
        labels_pending: labels.pending.into_keys().collect(),
    };
    let observed = observe::observe(root, &from, to, policies, known);
    let mut observed = observed.map_err(LookError::Observe)?;
    if writes == Writes::Nothing {
        observed.recovery_missing = None;
    }
    let mut plan = match only {
        Some(only) => plan::only(&from, to, &observed, policies, capabilities, only),
        None => plan::between(&from, to, &observed, policies, capabilities),
    };
    let named = plan
        .as_mut()
        .map(|plan| std::mem::take(&mut plan.named))
        .unwrap_or_default();
    Ok(Looked {
        plan,
        from,
        named,
        moved: observed.moved(),
    })
}

/// The config to reach, as the version before meant it where that stored it: absent contents were empty, and
/// absent modes and owners the usual ones. Unchanged, it stays so.
fn as_stored<'c>(current: Option<&ConfigName>, to: &'c MachineConfig) -> Cow<'c, MachineConfig> {
    let before = current.filter(|name| !name.tells_absent);
    match (before, to.with_defaults()) {
        (Some(name), Cow::Owned(filled)) if name.digest == machine_config::digest(&filled) => {
            Cow::Owned(filled)
        }
        _ => Cow::Borrowed(to),
    }
}

/// What stood as asked when a config first named it, open transactions included, less what they wrote.
fn adopted(journal: &Journal) -> BTreeSet<AbsPath> {
    let mut all = journal.adopted.clone();
    for tx in &journal.transactions {
        for record in &tx.operations {
            all.remove(&record.target);
        }
        all.extend(tx.adopted.iter().cloned());
    }
    all
}

/// As [`drift`], for paths that were touched and the hard links to them, which were parted then; with all
/// that was looked at. Blocking.
pub fn drift_around(
    root: &Root,
    name: Option<&ConfigName>,
    touched: BTreeSet<AbsPath>,
    capabilities: Capabilities,
    remembered: &Remembered,
) -> Result<(BTreeSet<AbsPath>, Vec<Drift>), LookError> {
    let config = remembered.config(root, name).map_err(LookError::Store)?;
    let all = config.with_hard_links(touched);
    let known = Known {
        labels: given_labels(root)?,
        digests: Some(remembered.digests()),
        ..Known::default()
    };
    let found = observe::drift(root, &config, Some(&all), capabilities.chown, known);
    Ok((all, found.map_err(LookError::Observe)?))
}

/// What is not as the config asks that the machine is on. Blocking. A fresh `remembered` makes sure that every
/// file is read.
pub fn drift(
    root: &Root,
    name: Option<&ConfigName>,
    only: Option<&BTreeSet<AbsPath>>,
    capabilities: Capabilities,
    remembered: &Remembered,
) -> Result<Vec<Drift>, LookError> {
    let config = remembered.config(root, name).map_err(LookError::Store)?;
    let known = Known {
        labels: given_labels(root)?,
        digests: Some(remembered.digests()),
        ..Known::default()
    };
    observe::drift(root, &config, only, capabilities.chown, known).map_err(LookError::Observe)
}

/// The labels that the journal says were given; none where no policy asks for any.
fn given_labels(root: &Root) -> Result<BTreeMap<AbsPath, String>, LookError> {
    match observe::has_policy(root).map_err(LookError::Observe)? {
        true => {
            let journal = store::peek(root).map_err(LookError::Store)?;
            Ok(transaction::labels(&journal).given)
        }
        false => Ok(BTreeMap::new()),
    }
}
