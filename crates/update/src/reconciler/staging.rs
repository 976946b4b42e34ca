//! Records the intent and stages the new objects: the last step that does not change the machine.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::{Reconciler, ReconcilerHooks, UpdateError, plan_state::PlannedUpdate};
use crate::{
    journal::{Journal, OsTrial, TransactionState},
    observe_and_plan::{self, PlanResult},
    phase::{Phase, PhaseEvent},
    service_port::Services,
    store::StateStore,
    transaction::{self, AbortFlag, TransactionError, TransactionIntent},
};
use machinist_base::{abs_path::AbsPath, digest::Digest, reason::Reason};
use machinist_ignition::{MachineConfig, UnitName};
use machinist_plan::{Action, Capabilities, Cost, MAX_TOTAL_FILE_BYTES, Operation, Plan, UNIT_DIR};
use machinist_rootfs::{FileKind, Root, Stat};

#[derive(Debug, thiserror::Error)]
#[error("the machine changed three times between planning and staging")]
struct ReplanLimitError;

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Stages the plan if the machine still matches it.
    pub(super) async fn stage(
        &mut self,
        stop: &CancellationToken,
    ) -> Result<PhaseEvent, UpdateError> {
        let (planned, failed_units) = match self.revalidate_plan().await? {
            Ok(current) => current,
            Err(event) => return Ok(event),
        };
        let trial = match self.stage_deployment(planned.plan.os.as_ref()).await {
            Ok(trial) => trial,
            Err(event) => {
                self.plan.set(planned);
                return Ok(event);
            }
        };
        let devices = self.allocatable_before_update();
        let devices_disabled = self.has_disabled_devices();
        // The state that an unverified update has left is no reference for the next one.
        let before = match self.journal.transactions.is_empty() {
            true => Some((self.observe_machine().await, failed_units)),
            false => None,
        };
        let Capabilities { live, chown, .. } = self.options.current().capabilities;
        let abort = Arc::new(AbortFlag::new(false));
        let aborter = tokio::spawn(abort_on_stop(Arc::clone(&abort), stop.clone()));
        let (staged, planned) = self
            .blocking(move |store, journal| {
                if let Some((machine, failed_units)) = before {
                    journal.machine_before = machine;
                    journal.failed_units = failed_units;
                }
                if devices_disabled || planned.plan.cost >= Cost::SoftReboot {
                    journal.devices_before = Some((devices, Timestamp::now()));
                }
                let options = StageOptions {
                    offline: !live,
                    chown,
                    abort: &abort,
                    trial,
                };
                (stage(store, journal, &planned, options), planned)
            })
            .await?;
        aborter.abort();
        if staged.is_err() && self.journal.os_trial.is_none() {
            self.discard_leftover().await?;
        }
        self.plan.set(planned);
        Ok(self.event_for_staged(staged))
    }

    /// Returns the devices that were allocatable before the update. While allocation is disabled, none counts as
    /// allocatable.
    fn allocatable_before_update(&self) -> BTreeMap<String, usize> {
        let cordon = self.journal.cordon.as_ref();
        match cordon.and_then(|cordon| cordon.devices_before.as_ref()) {
            Some(before) => before.counts.clone(),
            None => self.hooks.allocatable(),
        }
    }

    fn has_disabled_devices(&self) -> bool {
        let cordon = self.journal.cordon.as_ref();
        cordon.is_some_and(|cordon| cordon.devices_before.is_some())
    }

    fn event_for_staged(&mut self, staged: Result<(), TransactionError>) -> PhaseEvent {
        match staged {
            Ok(()) => {
                self.plan.reset_replans();
                // Its copy was just written; reading it again would cost as much as the update.
                let stored = self.journal.top().map(|tx| tx.to.digest);
                self.state.set_stored(stored);
                PhaseEvent::Staged
            }
            Err(TransactionError::Stopped) => {
                tracing::info!("stopped before any change; the next start begins the update again");
                PhaseEvent::StepFailed
            }
            Err(error) => {
                self.note_changed_target(&error);
                self.record_failure(&error, error.reason(), error.is_retryable());
                PhaseEvent::StepFailed
            }
        }
    }

    /// Returns the plan and the failed units, or an event if the machine no longer matches the plan or cannot be
    /// observed.
    pub(super) async fn revalidate_plan(
        &mut self,
    ) -> Result<Result<(PlannedUpdate, Vec<String>), PhaseEvent>, UpdateError> {
        let Some(to) = self.plan.planned().map(|planned| Arc::clone(&planned.to)) else {
            return Ok(Err(PhaseEvent::StepFailed));
        };
        let Some(mut current) = self.observe_and_plan(&to).await? else {
            return Ok(Err(PhaseEvent::StepFailed));
        };
        let failed_units = match self.failed_units().await {
            Ok(units) => units,
            Err(error) => {
                self.record_failure(&error, error.reason, error.retryable);
                return Ok(Err(PhaseEvent::StepFailed));
            }
        };
        let plan = std::mem::replace(&mut current.plan, Err(Vec::new()));
        let Ok(mut plan) = plan else {
            return Ok(Err(self.replan()));
        };
        self.plan.limit_to_repair(&mut plan);
        let planned = self.plan.take();
        let Some(planned) = planned.filter(|planned| is_covered(&plan, &planned.plan, &current))
        else {
            return Ok(Err(self.replan()));
        };
        let planned = PlannedUpdate {
            plan,
            named: current.named,
            moved: current.moved,
            adopted_os: current.adopted_os,
            ..planned
        };
        Ok(Ok((planned, failed_units)))
    }

    /// Plans again, unless the machine changes too often.
    fn replan(&mut self) -> PhaseEvent {
        if self.plan.count_replan() {
            tracing::info!("the machine changed since it was scanned; planning again");
            return PhaseEvent::Replan;
        }
        self.record_failure(&ReplanLimitError, Reason::ObservedChanged, true);
        PhaseEvent::StepFailed
    }
}

/// Returns whether the current plan may be carried out in place of the approved one: it does the same, except for
/// objects and account fields that a user may change, and needs no further action. A user who changes them all the
/// time delays no update.
fn is_covered(current: &Plan, approved: &Plan, observed: &PlanResult) -> bool {
    let is_approved = |action: &Action| {
        let mut actions = approved.actions.iter();
        actions.any(|other| (other.kind, &other.unit) == (action.kind, &action.unit))
    };
    current.actions.iter().all(is_approved)
        && (!current.drain || approved.drain)
        && current.os == approved.os
        && root_operations(current, observed).eq(root_operations(approved, observed))
}

/// Returns the operations on objects and account fields that only root may change.
fn root_operations<'p>(
    plan: &'p Plan,
    observed: &'p PlanResult,
) -> impl Iterator<Item = Cow<'p, Operation>> {
    let of_root = plan.operations.iter();
    let of_root = of_root.filter(|operation| !observed.users.contains(&operation.target));
    of_root.filter_map(|operation| operation.without_user_values(&observed.administered_groups))
}

/// Sets the flag that staging checks between two objects.
async fn abort_on_stop(flag: Arc<AbortFlag>, stop: CancellationToken) {
    stop.cancelled().await;
    flag.store(true, Ordering::Relaxed);
}

struct StageOptions<'a> {
    offline: bool,
    chown: bool,
    abort: &'a AbortFlag,
    /// The deployment that is staged for the config.
    trial: Option<OsTrial>,
}

/// Writes the intent, stages, and marks the transaction `Staged`; each step is durable before the next begins.
fn stage(
    store: &StateStore,
    journal: &mut Journal,
    planned: &PlannedUpdate,
    options: StageOptions<'_>,
) -> Result<(), TransactionError> {
    let root = store.root();
    let drifted = |path: &AbsPath, content| is_drifted(root, planned, path, content);
    let mut tx = transaction::begin(
        root,
        journal,
        &TransactionIntent {
            plan: &planned.plan,
            from: observe_and_plan::current(journal).cloned(),
            to: store.keep_config(&planned.to)?,
            drifted: &drifted,
            named: &planned.named,
            moved: &planned.moved,
            offline: options.offline,
            chown: options.chown,
            now: Timestamp::now(),
        },
    )?;
    if let Some(cordon) = &mut journal.cordon {
        tx.phases = std::mem::take(&mut cordon.phases);
    }
    tx.warnings = planned.kept_warnings();
    tx.enter(Phase::Staging.name(), tx.started);
    let (to, changes, cost) = (&tx.to.name, planned.changes, planned.plan.cost);
    tracing::info!(
        transaction = tx.id,
        phase = Phase::Staging.name(),
        "starting update to {to}: {changes} change(s), cost: {cost:?}"
    );
    // A failure of another config no longer concerns the machine.
    let failure = &mut journal.failure;
    failure.take_if(|it| it.code != Reason::RollbackFailed && it.digest != Some(planned.digest));
    if let Some(adopted) = &planned.adopted_os {
        adopted.record(journal);
    }
    journal.transactions.push(tx);
    if let Err(error) = store.save(journal) {
        // Nothing was begun, so nothing needs to be rolled back.
        journal.transactions.pop();
        return Err(error.into());
    }
    if let Some(tx) = journal.top_mut() {
        transaction::stage(
            root,
            tx,
            &planned.plan.operations,
            options.chown,
            options.abort,
        )?;
        tx.mark = TransactionState::Staged;
        // Not earlier: recovery drops a transaction that is not staged, and the deployment would belong to none.
        journal.os_trial = options.trial;
    }
    Ok(store.save(journal)?)
}

/// Returns whether a file or link differs from the previous config. `content` is the digest of the file's content.
fn is_drifted(
    root: &Root,
    planned: &PlannedUpdate,
    path: &AbsPath,
    content: Option<Digest>,
) -> bool {
    let (kind, size) = match root.stat(path) {
        Ok(Some(stat)) => (stat.kind, stat.size),
        _ => return false,
    };
    let from = &planned.from;
    if let Some(link) = from.links.get(path) {
        if link.hard {
            return is_detached_link(root, path, &link.target);
        }
        return root.read_link(path).ok().as_ref() != Some(&link.target);
    }
    let file = from.files.get(path);
    if file.is_some_and(|file| file.content.is_none()) {
        return kind != FileKind::File || size > 0;
    }
    let wanted = file.and_then(|file| file.content.as_ref());
    let expected = match wanted.map(|wanted| wanted.digest()) {
        Some(expected) => expected,
        None => match unit_text(from, path) {
            Some(text) => Digest::of(text.as_bytes()),
            None => return false,
        },
    };
    content != Some(expected)
}

/// Returns whether a hard link of the previous config is separate from its file and has other content.
fn is_detached_link(root: &Root, path: &AbsPath, file: &str) -> bool {
    let Ok(file) = AbsPath::new(file) else {
        return false;
    };
    let stat = |path: &AbsPath| root.stat(path).ok().flatten();
    let (link, target) = (stat(path), stat(&file));
    let size = |stat: &Option<Stat>| stat.as_ref().map(|stat| stat.size);
    let inode = |stat: &Option<Stat>| stat.as_ref().map(|stat| stat.identity);
    // Contents of a config are never longer.
    let digest = |path: &AbsPath| {
        root.digest_within(path, MAX_TOTAL_FILE_BYTES)
            .ok()
            .flatten()
    };
    let same = || digest(path).is_some_and(|found| digest(&file) == Some(found));
    inode(&link) != inode(&target) && (size(&link) != size(&target) || !same())
}

/// Returns the config's text of the unit file or drop-in at this path. An enablement link has the unit's name too,
/// but is in another directory.
fn unit_text<'a>(config: &'a MachineConfig, path: &AbsPath) -> Option<&'a str> {
    let below = path.as_str().strip_prefix(UNIT_DIR)?.strip_prefix('/')?;
    let unit = |name: &str| config.units.get(&UnitName::new(name).ok()?);
    match below.split_once('/') {
        Some((dir, name)) => unit(dir.strip_suffix(".d")?)?.dropins.get(name),
        None => unit(below).filter(|unit| !unit.mask)?.contents.as_ref(),
    }
    .map(String::as_str)
}
