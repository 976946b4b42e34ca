//! The UpgradeConfig of OpenShift's managed upgrades, as the leader knows it.

use crate::{
    inbox::ReportedChanges,
    watched_upgrade::{WatchedUpgradeConfig, key},
};
use machinist_kube_api::keys;
use machinist_pool::RolloutStart;

/// When the UpgradeConfig lets nodes begin.
#[derive(Debug, Default)]
pub(crate) struct UpgradeSchedule(RolloutStart);

impl UpgradeSchedule {
    pub(crate) const fn start(&self) -> &RolloutStart {
        &self.0
    }

    /// Takes the reports of the watch.
    pub(crate) fn take(&mut self, mut reports: ReportedChanges<WatchedUpgradeConfig>) {
        let change = reports.changes.remove(&key(keys::UPGRADE_NAMESPACE));
        let listed = reports
            .listed
            .map(|all| all.into_iter().find(|it| it.is_used));
        let Some(newest) = change.or(listed) else {
            return;
        };
        let start = newest.map(|it| it.start).unwrap_or_default();
        if start == self.0 {
            return;
        }
        match &start {
            RolloutStart::Anytime => tracing::info!("no UpgradeConfig sets a time any more"),
            RolloutStart::NotBefore(time) => {
                tracing::info!("the UpgradeConfig lets nodes begin at {time}");
            }
            RolloutStart::Invalid(message) => tracing::warn!("{message}; no node begins"),
        }
        self.0 = start;
    }
}
