//! Publishes the reconciler's report, for status, gates, and metrics.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;

use super::{BlockReason, DesiredConfig, Reconciler, ReconcilerHooks, UpdateError, planning};
use crate::{
    journal::{ConfigName, DeviceUsers, UpdateFailure, UpdateRecord},
    node_port::Blocker,
    phase::Phase,
    service_port::Services,
    store, transaction,
};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::Refusal;
use machinist_plan::DriftEntry;

/// The state of the machine's updates. Published on every change, never on a timer.
#[derive(Clone, Debug, Default)]
pub struct UpdateReport {
    /// The phase.
    pub phase: Phase,
    /// When the phase began.
    pub since: Timestamp,
    /// The configs.
    pub config: UpdateConfigState,
    /// Why no update may begin for the desired config.
    pub barred: Option<BlockedUpdate>,
    /// Why the last update failed.
    pub failure: Option<UpdateFailure>,
    /// Refusals of the last config that was read; the machine keeps the last accepted config.
    pub refused: Arc<Vec<Refusal>>,
    /// Warnings about the desired config that do not prevent its use.
    pub warnings: Vec<String>,
    /// Warnings of the plan for the desired config, until the machine is on it.
    pub plan_warnings: Vec<String>,
    /// Drift from the config.
    pub drift: Vec<DriftEntry>,
    /// Paths whose labels could not be set.
    pub labels_pending: Vec<AbsPath>,
    /// The journal cannot be read, so the machine's config is unknown.
    pub unknown: bool,
    /// There are unverified changes on the disk.
    pub unverified: bool,
    /// The running boot; `None` for an offline root.
    pub boot: Option<String>,
    /// The boot in which a reboot became necessary, until the boot after it is verified.
    pub reboot_needed_in: Option<String>,
    /// Allocatable devices by resource before the last update that rebooted, and the time of that count.
    pub devices_before: Option<(BTreeMap<String, usize>, Timestamp)>,
    /// Units that had already failed before the last update, or at the first start if there was no update.
    pub failed_units_before: Vec<String>,
    /// What blocks an update in the cluster.
    pub blockers: Vec<Blocker>,
    /// Since when the node is cordoned for an update.
    pub cordoned: Option<Timestamp>,
    /// The state of device allocation.
    pub lending: DeviceUsers,
    /// When the maintenance window opens for which an update waits.
    pub opens: Option<Timestamp>,
    /// The update waits for the time that the cluster has set, not for a window.
    pub opens_for_the_cluster: bool,
    /// The last operator request that was received.
    pub requested: u64,
    /// Finished updates, newest first.
    pub updates: Vec<UpdateRecord>,
}

/// Why no update may begin for the desired config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedUpdate {
    /// The cause.
    pub bar: Arc<BlockReason>,
    /// The machine is unchanged by this config. If false, the update has begun and continues to its end.
    pub stands: bool,
}

/// The current and the desired config of the machine.
#[derive(Clone, Debug, Default)]
pub struct UpdateConfigState {
    /// The verified config.
    pub current: Option<ConfigName>,
    /// The desired config.
    pub desired: Option<ConfigName>,
}

impl UpdateReport {
    /// Returns whether a boot is being judged: a machine that is not healthy yet may become so, or
    /// the config is rolled back.
    pub const fn is_boot_judged(&self) -> bool {
        matches!(self.phase, Phase::Booted | Phase::Verifying)
    }

    /// Returns what prevents the machine from reaching its config: the update's failure, or else the refusal of the
    /// config that was read last. A refusal belongs to no update and disappears with the next config that is read.
    pub fn blocking_failure(&self) -> Option<UpdateFailure> {
        let refused = || {
            let first = self.refused.first()?;
            Some(UpdateFailure {
                code: first.reason,
                message: super::super::bounded(
                    planning::PlanRefusedError(self.refused.to_vec()).to_string(),
                ),
                retryable: false,
                digest: None,
                refusals: crate::bounded_refusals(&self.refused),
            })
        };
        self.failure.clone().or_else(refused)
    }
}

impl<S: Services, A: ReconcilerHooks> Reconciler<S, A> {
    pub(super) fn publish(&self) {
        let boot = self.boot_id();
        let top = self.journal.top();
        let desired = self.desired.borrow().clone();
        let (phase, since) = self.shown_phase(&desired);
        let report = UpdateReport {
            phase,
            since,
            config: UpdateConfigState {
                current: self.journal.base.clone(),
                desired: desired
                    .config()
                    .map(|(config, digest)| ConfigName::new(config.name.clone(), digest)),
            },
            warnings: desired
                .config()
                .map(|(config, _)| config.notes.0.clone())
                .unwrap_or_default(),
            plan_warnings: self.plan_warnings(&desired),
            barred: desired.block_reason().map(|bar| BlockedUpdate {
                bar: Arc::clone(bar),
                stands: self.is_blocked(),
            }),
            failure: self.failure(),
            unknown: self.trouble.as_ref().is_some_and(|trouble| trouble.unknown),
            refused: match desired {
                DesiredConfig::Refused(refusals) => refusals,
                _ => Arc::default(),
            },
            drift: self.drift.found.values().cloned().collect(),
            labels_pending: transaction::labels(&self.journal)
                .pending
                .into_keys()
                .collect(),
            unverified: !self.journal.transactions.is_empty(),
            reboot_needed_in: top
                .filter(|tx| !tx.offline && (tx.wants_reboot() || tx.booted_into))
                .and_then(|tx| match &boot {
                    // A soft reboot is not sufficient here.
                    Some(boot) if !tx.rebooted_since(boot) => Some(boot.clone()),
                    _ => tx.committed_boot.clone(),
                }),
            boot,
            devices_before: self.journal.devices_before.clone(),
            failed_units_before: self.journal.failed_units.clone(),
            blockers: self.draining.blockers.clone(),
            cordoned: self.journal.cordon.as_ref().map(|cordon| cordon.since),
            lending: self.initial_device_users(),
            opens: self.closed_until().filter(|_| self.phase == Phase::Waiting),
            opens_for_the_cluster: self.phase == Phase::Waiting && self.waits_for_the_cluster(),
            requested: self.heard,
            updates: self.journal.history.iter().rev().cloned().collect(),
        };
        self.report.send_replace(Arc::new(report));
    }

    /// Returns the phase and its start. A process that starts during a drain stays in `Idle` until the desired
    /// config is known, which may take as long as the API server does not answer; until then it shows the phase of
    /// the cordon in the journal.
    fn shown_phase(&self, desired: &DesiredConfig) -> (Phase, Timestamp) {
        let rests = self.phase == Phase::Idle && self.node.is_some();
        let unread = matches!(desired, DesiredConfig::Unknown | DesiredConfig::Refused(_));
        let cordon = self.journal.cordon.as_ref();
        let open = cordon.filter(|_| rests && unread && self.journal.transactions.is_empty());
        let last = open.and_then(|cordon| cordon.phases.last());
        let named = last.and_then(|last| Some((Phase::named(&last.name)?, last.started)));
        named.unwrap_or((self.phase, self.since))
    }

    /// Returns the warnings of the pending update's plan. They end with the update; `machinist plan`
    /// shows those that still apply to a verified config.
    fn plan_warnings(&self, desired: &DesiredConfig) -> Vec<String> {
        let Some((config, digest)) = desired.config() else {
            return Vec::new();
        };
        let base = self.journal.base.as_ref().map(|base| base.digest);
        let is_done = base == Some(digest) && self.journal.transactions.is_empty();
        let of_this = self.cautions.as_ref().filter(|(of, _)| *of == digest);
        let all = of_this.filter(|_| !is_done).map(|(_, all)| all);
        let known = |warning: &&String| !config.notes.0.contains(warning);
        all.into_iter().flatten().filter(known).cloned().collect()
    }

    /// Returns why no work proceeds, or why the last update failed.
    fn failure(&self) -> Option<UpdateFailure> {
        let trouble = self.trouble.as_ref().map(|trouble| &trouble.failure);
        trouble.or(self.journal.failure.as_ref()).cloned()
    }

    /// Returns the boot ID; `None` for an offline root, or if it cannot be read.
    pub(super) fn boot_id(&self) -> Option<String> {
        if !self.conduct.capabilities.live {
            return None;
        }
        store::boot_id(&self.root).ok().flatten()
    }

    /// Returns the name of the config in progress, for messages.
    pub(super) fn config_name(&self) -> String {
        let name = self
            .journal
            .top()
            .map(|tx| &tx.to)
            .or(self.journal.base.as_ref());
        name.map(|config| config.name.clone()).unwrap_or_default()
    }

    /// Returns the name of the desired config, for messages.
    pub(super) fn desired_name(&self) -> String {
        let desired = self.desired.borrow();
        let config = desired.config();
        config.map_or_else(String::new, |(config, _)| config.name.clone())
    }

    pub(super) fn desired_is_base(&self) -> bool {
        let base = self.journal.base.as_ref().map(|base| base.digest);
        let desired = self.desired.borrow();
        base.is_some() && desired.config().map(|(_, digest)| digest) == base
    }

    pub(super) async fn save(&mut self) -> Result<(), UpdateError> {
        Ok(self
            .blocking(|store, journal| store.save(journal))
            .await??)
    }

    /// Records the failed units of a machine that no update has changed yet, because no update can be their cause.
    pub(super) async fn record_failed_units(&mut self) -> Result<(), UpdateError> {
        let touched = self.journal.base.is_some() || !self.journal.transactions.is_empty();
        if touched || self.trouble.is_some() || !self.journal.failed_units.is_empty() {
            return Ok(());
        }
        match self.failed_units().await {
            Ok(units) if !units.is_empty() => {
                self.journal.failed_units = units;
                self.publish();
                match self.save().await {
                    Err(error) => self.record_state_error(error),
                    Ok(()) => Ok(()),
                }
            }
            Ok(_) => Ok(()),
            Err(error) => {
                tracing::debug!("{}", machinist_base::error_chain::chain(&error));
                Ok(())
            }
        }
    }

    /// Returns the failed units; empty without a service manager.
    pub(super) async fn failed_units(
        &self,
    ) -> Result<Vec<String>, super::super::service_port::ServiceError> {
        match &self.services {
            Some(services) => self.run_responsive(services.failed_units()).await,
            None => Ok(Vec::new()),
        }
    }
}
