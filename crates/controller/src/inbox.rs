//! Collects reports of the watches until the leader takes them. Several changes of one object become one.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

use crate::{
    config_object::ConfigObject, policy_object::PolicyObject, watched_budget::WatchedBudget,
    watched_upgrade::WatchedUpgradeConfig,
};
use machinist_kube_api::{NodeView, PoolView};

/// The reports about one kind.
#[derive(Debug)]
pub(crate) struct ReportedChanges<V> {
    /// All objects, if they were listed since the last time.
    pub(crate) listed: Option<Vec<V>>,
    /// Later changes by name; `None` for a deletion.
    pub(crate) changes: BTreeMap<String, Option<V>>,
}

impl<V> Default for ReportedChanges<V> {
    fn default() -> Self {
        Self {
            listed: None,
            changes: BTreeMap::new(),
        }
    }
}

/// The reports about one kind that the leader has not taken yet.
#[derive(Debug)]
pub(crate) struct Mailbox<V>(Mutex<ReportedChanges<V>>);

impl<V> Default for Mailbox<V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<V> Mailbox<V> {
    pub(crate) fn put_list(&self, objects: Vec<V>) {
        *self.lock() = ReportedChanges {
            listed: Some(objects),
            changes: BTreeMap::new(),
        };
    }

    pub(crate) fn put(&self, name: String, object: Option<V>) {
        self.lock().changes.insert(name, object);
    }

    pub(crate) fn take(&self) -> ReportedChanges<V> {
        std::mem::take(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, ReportedChanges<V>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reports of all watches.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pub(crate) nodes: Mailbox<NodeView>,
    pub(crate) pools: Mailbox<PoolView>,
    pub(crate) configs: Mailbox<ConfigObject>,
    pub(crate) budgets: Mailbox<WatchedBudget>,
    /// Names of objects that show that another controller grants updates.
    pub(crate) grantors: Mailbox<String>,
    /// MachineConfiguration `cluster`.
    pub(crate) policies: Mailbox<PolicyObject>,
    pub(crate) upgrades: Mailbox<WatchedUpgradeConfig>,
    /// Wakes the leader after a report.
    pub(crate) arrived: Notify,
}
