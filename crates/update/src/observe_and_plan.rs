//! Observes the machine and plans; the update, `plan`, and `verify` all use this module.

mod base_config;
mod own_os_changes;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;

pub(crate) use self::own_os_changes::AdoptedOsChanges;
use self::own_os_changes::{adopted_packages, own_arguments};
use super::{
    cache::ObservationCache,
    journal::{ConfigName, Journal, UpdateRecord},
    observe::{self, CallerFacts, ObserveError},
    os,
    service_port::{ServiceError, Services},
    store::{self, StoreError},
    transaction,
};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::{MachineConfig, Refusal};
use machinist_plan::{Capabilities, DriftEntry, OsFacts, Plan, Policies, UnitFacts, Verified};
use machinist_rootfs::Root;

/// Reasons why the machine could not be observed.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// Reading the tree failed.
    #[error("cannot scan the machine")]
    Observe(#[source] ObserveError),
    /// Reading the config that was applied last failed.
    #[error("cannot read the machine's current config")]
    Store(#[source] StoreError),
    /// Querying the units failed.
    #[error("cannot read the state of the units")]
    Services(#[source] ServiceError),
}

impl LookError {
    /// Returns whether a retry may succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Observe(error) => error.is_retryable(),
            Self::Store(error) => error.is_retryable(),
            Self::Services(error) => error.retryable,
        }
    }

    /// Returns the reason code for status and metrics.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Observe(error) => error.reason(),
            Self::Store(error) => error.reason(),
            Self::Services(error) => error.reason,
        }
    }
}

/// A plan, or all reasons for its refusal, with the config that the machine is on.
#[derive(Debug)]
pub struct PlanResult {
    /// The plan, or the refusals.
    pub plan: Result<Plan, Vec<Refusal>>,
    /// The config from which the plan starts.
    pub from: Arc<MachineConfig>,
    /// The canonical paths that the new config names; empty if the config is refused.
    pub named: BTreeSet<AbsPath>,
    /// The canonical paths of those paths in both configs that differ from them.
    pub moved: BTreeMap<AbsPath, AbsPath>,
    /// The paths in directories that a user controls, and of objects that a user may write.
    pub users: BTreeSet<AbsPath>,
    /// The groups whose members a user may change.
    pub administered_groups: BTreeSet<String>,
    /// What another daemon has added to the operating system, whose config is the base of the plan.
    pub(crate) adopted_os: Option<AdoptedOsChanges>,
}

/// Returns the config that the disk is on: that of the newest open transaction, else the verified one.
pub fn current(journal: &Journal) -> Option<&ConfigName> {
    journal.top().map(|tx| &tx.to).or(journal.base.as_ref())
}

/// Returns every unit that a config names or a policy acts on. Blocks.
pub fn unit_names(
    root: &Root,
    journal: &Journal,
    to: &MachineConfig,
    policies: &Policies,
    remembered: &ObservationCache,
) -> Result<Vec<String>, LookError> {
    let from = match store::cached_config(root, current(journal), remembered) {
        // Planning reports this error, unless it does not matter there.
        Err(StoreError::Config { .. }) => Arc::default(),
        from => from.map_err(LookError::Store)?,
    };
    let named = from
        .units
        .keys()
        .chain(to.units.keys())
        .map(ToString::to_string);
    let mut names: BTreeSet<String> = named.collect();
    let named = |config| machinist_plan::named_in(config, &BTreeMap::new());
    names.extend([&*from, to].into_iter().flat_map(named));
    let behind = observe::behind_aliases(root, &names, &transaction::originals(journal));
    names.extend(behind.map_err(|error| LookError::Observe(error.into()))?);
    names.extend(policies.unit_names());
    // The service manager cannot be queried about a template.
    let no_template = |name: &String| !name.contains("@.");
    Ok(names.into_iter().filter(no_template).collect())
}

/// Queries the service manager about these units.
pub async fn units<S: Services>(
    services: &S,
    names: &[String],
) -> Result<BTreeMap<String, UnitFacts>, LookError> {
    let asked = services.unit_facts(names).await;
    asked.map_err(LookError::Services)
}

/// The parameters of a plan.
#[derive(Clone, Copy, Debug)]
pub struct PlanOptions<'a> {
    /// The policies that map changes to actions.
    pub policies: &'a Policies,
    /// The capabilities of this root and this process.
    pub capabilities: Capabilities,
    /// The units' states from the service manager; `None` for an offline root.
    pub units: Option<&'a BTreeMap<String, UnitFacts>>,
    /// Limits the plan to this path, as the config spells it; other differences are ignored.
    pub only: Option<&'a AbsPath>,
    /// The cache of stored configs and digests.
    pub remembered: &'a ObservationCache,
}

/// Observes the machine once and plans. Blocks.
pub fn observe_and_plan(
    root: &Root,
    journal: &Journal,
    to: &MachineConfig,
    how: PlanOptions<'_>,
) -> Result<PlanResult, LookError> {
    let from = match store::cached_config(root, current(journal), how.remembered) {
        Err(lost @ StoreError::Config { .. }) => match current(journal) {
            // The new config is the one whose stored copy is lost.
            Some(name) if name.digest == machinist_ignition::digest(to) => Arc::new(to.clone()),
            _ => {
                let looked = plan_from(root, journal, Arc::default(), to, how, PlanPurpose::All)?;
                return match is_fully_applied(journal, &looked) {
                    true => Ok(looked),
                    false => Err(LookError::Store(lost)),
                };
            }
        },
        from => from.map_err(LookError::Store)?,
    };
    plan_from(root, journal, from, to, how, PlanPurpose::All)
}

/// Works like [`observe_and_plan`], for a config that another daemon has already put on the disk: the plan treats
/// everything that it names as owned. Blocks.
pub fn plan_adopted(
    root: &Root,
    journal: &Journal,
    config: &Arc<MachineConfig>,
    how: PlanOptions<'_>,
) -> Result<PlanResult, LookError> {
    let (from, nothing) = (Arc::clone(config), PlanPurpose::Nothing);
    plan_from(root, journal, from, config, how, nothing)
}

/// Returns whether the disk already matches the new config and contains no other owned objects. Then the lost copy
/// of the previous config does not matter.
fn is_fully_applied(journal: &Journal, looked: &PlanResult) -> bool {
    let asked = |path| looked.named.contains(path);
    let same = looked.plan.as_ref().is_ok_and(Plan::is_empty);
    same && journal.transactions.is_empty() && journal.owned.keys().all(asked)
}

/// Whether the plan is carried out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PlanPurpose {
    All,
    /// It is only displayed, so the recovery units need not be installed.
    Nothing,
}

/// Returns what the journal and the caller know beside the tree.
fn caller_facts<'a>(
    root: &Root,
    journal: &Journal,
    to: &MachineConfig,
    how: &PlanOptions<'a>,
) -> CallerFacts<'a> {
    let labels = transaction::labels(journal);
    let (base, base_unreadable) = base_config::of(root, journal, to);
    let adopted_os = AdoptedOsChanges::of(&base);
    let adopted_packages = adopted_packages(journal, adopted_os.as_ref());
    let desired_image = to.os_image_url.as_deref();
    CallerFacts {
        live_units: how.units,
        originals: transaction::originals(journal),
        adopted: adopted(journal),
        made: transaction::made(journal),
        modes: transaction::modes(journal),
        user_written: transaction::user_written(journal),
        changed_targets: match how.only {
            // A repair changes nothing else.
            Some(_) => BTreeMap::new(),
            None => journal.recently_changed_targets(Timestamp::now()),
        },
        skipped: journal
            .skipped
            .union(&journal.skipped_by_open())
            .cloned()
            .collect(),
        is_return: is_return(journal, to),
        changed_objects: transaction::changed_objects(journal),
        key_files: transaction::owned_files(journal, machinist_plan::is_keys_file),
        entries: transaction::kept_entries(journal),
        os: OsFacts {
            own_arguments: own_arguments(journal, adopted_os.as_ref()),
            ..os::facts(root, how.capabilities.os, desired_image, adopted_packages)
        },
        base,
        base_unreadable,
        digests: Some(how.remembered.digests()),
        labels: labels.given,
        labels_pending: labels.pending.into_keys().collect(),
    }
}

fn plan_from(
    root: &Root,
    journal: &Journal,
    from: Arc<MachineConfig>,
    to: &MachineConfig,
    how: PlanOptions<'_>,
    writes: PlanPurpose,
) -> Result<PlanResult, LookError> {
    let to = &*as_stored(current(journal), to);
    let PlanOptions {
        policies,
        capabilities,
        only,
        ..
    } = how;
    let known = caller_facts(root, journal, to, &how);
    let adopted_os = AdoptedOsChanges::of(&known.base);
    let observed = observe::observe(root, &from, to, policies, known);
    let mut observed = observed.map_err(LookError::Observe)?;
    if writes == PlanPurpose::Nothing {
        observed.recovery_missing = None;
    }
    let mut plan = match only {
        Some(only) => machinist_plan::only(&from, to, &observed, policies, capabilities, only),
        None => machinist_plan::between(&from, to, &observed, policies, capabilities),
    };
    if let Some(refusal) = os_refusal(root, capabilities, &plan) {
        plan = Err(vec![refusal]);
    }
    let named = plan
        .as_mut()
        .map(|plan| std::mem::take(&mut plan.named))
        .unwrap_or_default();
    Ok(PlanResult {
        plan,
        from,
        named,
        users: observed.user_targets(),
        administered_groups: observed.accounts.administered_groups(),
        moved: observed.moved(),
        adopted_os,
    })
}

/// Returns why the deployment of a plan cannot be staged.
fn os_refusal(
    root: &Root,
    capabilities: Capabilities,
    plan: &Result<Plan, Vec<Refusal>>,
) -> Option<Refusal> {
    let update = plan.as_ref().ok()?.os.as_ref()?;
    os::refusal(root, capabilities.os, update)
}

/// Returns whether the machine has been on this config before and is on another one. Names are compared first, because
/// the digest of a large config takes time.
fn is_return(journal: &Journal, to: &MachineConfig) -> bool {
    let done = |update: &&UpdateRecord| update.outcome.is_done() && update.to == to.name;
    let mut earlier = journal.history.iter().filter(done).peekable();
    earlier.peek().is_some() && {
        let digest = machinist_ignition::digest(to);
        let is_current = current(journal).is_some_and(|name| name.digest == digest);
        !is_current && earlier.any(|update| update.digest == digest)
    }
}

/// Returns the new config as an older version would have stored it, if the current config was stored by such a
/// version: with empty contents and default modes and owners in place of absent ones. This way an unchanged config
/// stays unchanged.
fn as_stored<'c>(current: Option<&ConfigName>, to: &'c MachineConfig) -> Cow<'c, MachineConfig> {
    let before = current.filter(|name| !name.tells_absent);
    match (before, to.with_defaults()) {
        (Some(name), Cow::Owned(filled)) if name.digest == machinist_ignition::digest(&filled) => {
            Cow::Owned(filled)
        }
        _ => Cow::Borrowed(to),
    }
}

/// Returns the paths that already matched when a config first named them, including open transactions, without
/// those that a transaction has written since.
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

/// Works like [`drift`], for modified paths and the hard links to them, which the modification may have separated.
/// Also returns all paths that it checked. Blocks.
pub fn drift_around(
    root: &Root,
    name: Option<&ConfigName>,
    touched: BTreeSet<AbsPath>,
    capabilities: Capabilities,
    remembered: &ObservationCache,
) -> Result<(BTreeSet<AbsPath>, Vec<DriftEntry>), LookError> {
    let config = store::cached_config(root, name, remembered).map_err(LookError::Store)?;
    let touched = observe::with_names_of_config(root, &config, touched);
    let mut all = config.with_hard_links(touched);
    let known = CallerFacts {
        labels: given_labels(root)?,
        digests: Some(remembered.digests()),
        ..CallerFacts::default()
    };
    let found = observe::drift(root, &config, Some(&all), capabilities.chown, known);
    let found = found.map_err(LookError::Observe)?;
    all.extend(found.iter().map(|drift| drift.path.clone()));
    Ok((all, found))
}

/// Returns the drift of the machine from the config that it is on. Blocks. With a new `remembered`, every file is
/// read.
pub fn drift(
    root: &Root,
    name: Option<&ConfigName>,
    only: Option<&BTreeSet<AbsPath>>,
    capabilities: Capabilities,
    remembered: &ObservationCache,
) -> Result<Vec<DriftEntry>, LookError> {
    let config = store::cached_config(root, name, remembered).map_err(LookError::Store)?;
    let known = CallerFacts {
        labels: given_labels(root)?,
        digests: Some(remembered.digests()),
        ..CallerFacts::default()
    };
    observe::drift(root, &config, only, capabilities.chown, known).map_err(LookError::Observe)
}

/// Works like [`drift`] for all paths, reads every file, and also returns what cannot be compared. Blocks.
pub fn verify(
    root: &Root,
    name: Option<&ConfigName>,
    capabilities: Capabilities,
) -> Result<Verified, LookError> {
    let remembered = ObservationCache::default();
    let config = store::cached_config(root, name, &remembered).map_err(LookError::Store)?;
    let known = CallerFacts {
        labels: given_labels(root)?,
        ..CallerFacts::default()
    };
    observe::verify(root, &config, capabilities.chown, known).map_err(LookError::Observe)
}

/// Returns the labels that the journal records; empty if the root has no SELinux policy.
fn given_labels(root: &Root) -> Result<BTreeMap<AbsPath, String>, LookError> {
    match observe::has_policy(root).map_err(LookError::Observe)? {
        true => {
            let journal = store::peek(root).map_err(LookError::Store)?;
            Ok(transaction::labels(&journal).given)
        }
        false => Ok(BTreeMap::new()),
    }
}
