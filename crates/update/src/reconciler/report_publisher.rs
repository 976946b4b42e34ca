//! Publishes the reconciler's report, for status, gates, and metrics.

use std::sync::Arc;

use jiff::Timestamp;

use super::{
    BlockedUpdate, DesiredConfig, Reconciler, ReconcilerHooks, UpdateConfigState, UpdateReport,
};
use crate::{
    journal::{ConfigName, UpdateFailure},
    phase::Phase,
    service_port::Services,
    transaction,
};
use machinist_ignition::Refusal;

/// Why a config that was read is refused.
fn refusals(desired: DesiredConfig) -> Arc<Vec<Refusal>> {
    match desired {
        DesiredConfig::Refused(refusals) => refusals,
        _ => Arc::default(),
    }
}

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Publishes the current state.
    pub(super) fn publish(&self) {
        let boot = self.boot_id();
        let top = self.journal.top();
        let desired = self.desired.current();
        let (phase, since) = self.reported_phase(&desired);
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
            blocked: desired.block_reason().map(|reason| BlockedUpdate {
                cause: Arc::clone(reason),
                stands: self.is_blocked(),
            }),
            failure: self.failure(),
            unknown: self.state.is_journal_unknown(),
            refused: refusals(desired),
            drift: self.drift.entries(),
            suspended_repairs: self.drift.suspended_repairs(),
            labels_pending: transaction::labels(&self.journal)
                .pending
                .into_keys()
                .collect(),
            unverified: !self.journal.transactions.is_empty(),
            repairs_users_path: self
                .plan
                .repair_path()
                .is_some_and(|path| self.drift.is_by_user(path)),
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
            blockers: self.node.blockers().to_vec(),
            cordoned: self.journal.cordon.as_ref().map(|cordon| cordon.since),
            device_users: self.device_users(),
            opens: self
                .closed_until()
                .filter(|_| self.progress.phase() == Phase::Waiting),
            opens_for_the_cluster: self.progress.phase() == Phase::Waiting
                && self.waits_for_cluster(),
            download: self.progress.download().cloned(),
            requested: self.desired.last_request(),
            updates: self.journal.history.iter().rev().cloned().collect(),
        };
        self.report.send_replace(Arc::new(report));
    }

    /// Returns the phase and its start. A process that starts during a drain stays in `Idle` until the desired
    /// config is known, which may take as long as the API server does not answer; until then it shows the phase of
    /// the cordon in the journal.
    fn reported_phase(&self, desired: &DesiredConfig) -> (Phase, Timestamp) {
        let is_idle = self.progress.phase() == Phase::Idle && self.node.is_connected();
        let is_unread = matches!(desired, DesiredConfig::Unknown | DesiredConfig::Refused(_));
        let cordon = self.journal.cordon.as_ref();
        let open = cordon.filter(|_| is_idle && is_unread && self.journal.transactions.is_empty());
        let last = open.and_then(|cordon| cordon.phases.last());
        let named = last.and_then(|last| Some((Phase::named(&last.name)?, last.started)));
        named.unwrap_or((self.progress.phase(), self.progress.since()))
    }

    /// Returns the warnings of the pending update's plan. They end with the update; `machinist plan`
    /// shows those that still apply to a verified config.
    fn plan_warnings(&self, desired: &DesiredConfig) -> Vec<String> {
        let Some((config, digest)) = desired.config() else {
            return Vec::new();
        };
        let base = self.journal.base_digest();
        if base == Some(digest) && self.journal.transactions.is_empty() {
            return Vec::new();
        }
        let is_new = |warning: &&String| !config.notes.0.contains(warning);
        let warnings = self.plan.warnings_for(digest).iter();
        warnings.filter(is_new).cloned().collect()
    }

    /// Returns why no work proceeds, or why the last update failed.
    fn failure(&self) -> Option<UpdateFailure> {
        let failure = self.state.failure();
        failure.or(self.journal.failure.as_ref()).cloned()
    }
}
