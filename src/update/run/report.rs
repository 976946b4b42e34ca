//! What the driver says of itself, for status, gates and metrics.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;

use super::{Audience, Bar, Desired, UpdateError, Updater, plan};
use crate::{
    machine_config::Refusal,
    path::AbsPath,
    plan::Drift,
    update::{
        journal::{ConfigName, Failure, Lending, UpdateRecord},
        node::Blocker,
        phase::Phase,
        ports::Services,
        store, transaction,
    },
};

/// Where the machine stands. Published on every change, never on a timer.
#[derive(Clone, Debug, Default)]
pub struct UpdateReport {
    /// The phase, and since when.
    pub phase: Phase,
    /// When the phase began.
    pub since: Timestamp,
    /// The configs.
    pub config: ConfigState,
    /// Why nothing is begun for what is desired.
    pub barred: Option<Barred>,
    /// Why the last update did not succeed.
    pub failure: Option<Failure>,
    /// Refusals of what was read last; the machine keeps the last good config.
    pub refused: Arc<Vec<Refusal>>,
    /// What is odd in the desired config and does not keep it from being accepted.
    pub warnings: Vec<String>,
    /// What is not as the config asks.
    pub drift: Vec<Drift>,
    /// Files in place whose labels could not be set.
    pub labels_pending: Vec<AbsPath>,
    /// The journal cannot be read: nobody can tell which config the machine is on.
    pub unknown: bool,
    /// Effects are on the disk that are not verified yet.
    pub unverified: bool,
    /// The running boot; none offline.
    pub boot: Option<String>,
    /// The boot in which a reboot became necessary, until the boot after it is verified.
    pub reboot_needed_in: Option<String>,
    /// Allocatable devices by resource before the last update that rebooted, and when that was.
    pub devices_before: Option<(BTreeMap<String, usize>, Timestamp)>,
    /// Units that had failed before the last update, or at the first start where there was none.
    pub failed_units_before: Vec<String>,
    /// What an update waits for in the cluster.
    pub blockers: Vec<Blocker>,
    /// Since when pods are kept away for an update.
    pub cordoned: Option<Timestamp>,
    /// To whom devices are lent.
    pub lending: Lending,
    /// When the maintenance window opens that an update waits for.
    pub opens: Option<Timestamp>,
    /// It is no window that it waits for, but the time that the cluster named.
    pub opens_for_the_cluster: bool,
    /// The last word of a person that was taken up.
    pub asked: u64,
    /// Finished updates, newest first.
    pub updates: Vec<UpdateRecord>,
}

/// What keeps the desired config from being begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Barred {
    /// Why.
    pub bar: Arc<Bar>,
    /// Nothing of the machine has changed for that config: without it, the update has begun and goes to
    /// its end.
    pub stands: bool,
}

/// Which config the machine is on, and which it should be on.
#[derive(Clone, Debug, Default)]
pub struct ConfigState {
    /// The verified one.
    pub current: Option<ConfigName>,
    /// The one asked for.
    pub desired: Option<ConfigName>,
}

impl UpdateReport {
    /// What keeps the machine from its config, in one failure: the update's own, or that what was read
    /// last is refused. The latter is no part of any update, and gone with the next config that is read.
    pub fn hindrance(&self) -> Option<Failure> {
        let refused = || {
            let first = self.refused.first()?;
            Some(Failure {
                code: first.reason,
                message: super::super::bounded(plan::Refused(self.refused.to_vec()).to_string()),
                again: false,
                digest: None,
            })
        };
        self.failure.clone().or_else(refused)
    }
}

impl<S: Services, A: Audience> Updater<S, A> {
    pub(super) fn publish(&self) {
        let boot = self.boot_id();
        let top = self.journal.top();
        let desired = self.desired.borrow().clone();
        let (phase, since) = self.shown_phase(&desired);
        let report = UpdateReport {
            phase,
            since,
            config: ConfigState {
                current: self.journal.base.clone(),
                desired: desired
                    .config()
                    .map(|(config, digest)| ConfigName::new(config.name.clone(), digest)),
            },
            warnings: desired
                .config()
                .map(|(config, _)| config.notes.0.clone())
                .unwrap_or_default(),
            barred: desired.bar().map(|bar| Barred {
                bar: Arc::clone(bar),
                stands: self.bar_stands(),
            }),
            failure: self.failure(),
            unknown: self.trouble.as_ref().is_some_and(|trouble| trouble.unknown),
            refused: match desired {
                Desired::Refused(refusals) => refusals,
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
                    // A soft reboot is not the one that it needs.
                    Some(boot) if !tx.rebooted_since(boot) => Some(boot.clone()),
                    _ => tx.committed_boot.clone(),
                }),
            boot,
            devices_before: self.journal.devices_before.clone(),
            failed_units_before: self.journal.failed_units.clone(),
            blockers: self.draining.blockers.clone(),
            cordoned: self.journal.cordon.as_ref().map(|cordon| cordon.since),
            lending: self.lending(),
            opens: self.closed_until().filter(|_| self.phase == Phase::Waiting),
            opens_for_the_cluster: self.phase == Phase::Waiting && self.waits_for_the_cluster(),
            asked: self.heard,
            updates: self.journal.history.iter().rev().cloned().collect(),
        };
        self.report.send_replace(Arc::new(report));
    }

    /// The phase, and since when. A start in the midst of a drain rests until it is known what is desired,
    /// which may take as long as nobody answers: what the journal says of the node is true meanwhile.
    fn shown_phase(&self, desired: &Desired) -> (Phase, Timestamp) {
        let rests = self.phase == Phase::Idle && self.node.is_some();
        let unread = matches!(desired, Desired::Unknown | Desired::Refused(_));
        let cordon = self.journal.cordon.as_ref();
        let open = cordon.filter(|_| rests && unread && self.journal.transactions.is_empty());
        let last = open.and_then(|cordon| cordon.phases.last());
        let named = last.and_then(|last| Some((Phase::named(&last.name)?, last.started)));
        named.unwrap_or((self.phase, self.since))
    }

    /// Why nothing goes on, or why the last update did not succeed.
    fn failure(&self) -> Option<Failure> {
        let trouble = self.trouble.as_ref().map(|trouble| &trouble.failure);
        trouble.or(self.journal.failure.as_ref()).cloned()
    }

    /// The boot id below the root; none where no kernel runs for it or it cannot be read.
    pub(super) fn boot_id(&self) -> Option<String> {
        if !self.conduct.capabilities.live {
            return None;
        }
        store::boot_id(&self.root).ok().flatten()
    }

    /// The config being worked on, for people.
    pub(super) fn config_name(&self) -> String {
        let name = self
            .journal
            .top()
            .map(|tx| &tx.to)
            .or(self.journal.base.as_ref());
        name.map(|config| config.name.clone()).unwrap_or_default()
    }

    /// What the source asks for, for people.
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

    /// On a machine that no update has touched, what has failed by now is no fault of one.
    pub(super) async fn know_failed_units(&mut self) -> Result<(), UpdateError> {
        let touched = self.journal.base.is_some() || !self.journal.transactions.is_empty();
        if touched || self.trouble.is_some() || !self.journal.failed_units.is_empty() {
            return Ok(());
        }
        match self.failed_units().await {
            Ok(units) if !units.is_empty() => {
                self.journal.failed_units = units;
                self.publish();
                match self.save().await {
                    Err(error) => self.troubled(error),
                    Ok(()) => Ok(()),
                }
            }
            Ok(_) => Ok(()),
            Err(error) => {
                tracing::debug!("{}", crate::telemetry::chain(&error));
                Ok(())
            }
        }
    }

    /// Units that have failed by now; none where nobody can tell.
    pub(super) async fn failed_units(
        &self,
    ) -> Result<Vec<String>, super::super::ports::ServiceError> {
        match &self.services {
            Some(services) => self.while_turning(services.failed_units()).await,
            None => Ok(Vec::new()),
        }
    }
}
