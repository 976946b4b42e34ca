//! The table of plugins that currently serve each resource.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{sync::watch, time::timeout};

use super::plugin_client::PluginConnection;
use machinist_device::{ResourceName, registry::PathChecker, vendor_declaration::Vendor};

/// A plugin that can be called, and its limits.
#[derive(Clone, Debug)]
pub(super) struct PluginRoute {
    pub(super) connection: PluginConnection,
    pub(super) vendor: Arc<Vendor>,
    /// Runs the vendor's path checks.
    pub(super) path_checker: PathChecker,
}

type RouteTable = BTreeMap<(String, ResourceName), PluginRoute>;

/// The routes of all vendors. Cheap to clone; clones share the state.
#[derive(Clone, Debug, Default)]
pub(super) struct Routes(Arc<watch::Sender<RouteTable>>);

impl Routes {
    /// Sets the plugin that serves a resource; `None` removes it.
    pub(super) fn set(
        &self,
        (vendor, path_checker): (&Arc<Vendor>, &PathChecker),
        resource: &ResourceName,
        connection: Option<PluginConnection>,
    ) {
        let key = (vendor.name.clone(), resource.clone());
        self.0.send_if_modified(|table| match connection {
            None => table.remove(&key).is_some(),
            Some(connection) => {
                let same = |route: &PluginRoute| {
                    route.connection.number == connection.number && route.vendor == *vendor
                };
                let is_changed = !table.get(&key).is_some_and(same);
                let route = PluginRoute {
                    connection,
                    vendor: Arc::clone(vendor),
                    path_checker: path_checker.clone(),
                };
                table.insert(key, route);
                is_changed
            }
        });
    }

    /// Removes all routes of a vendor.
    pub(super) fn clear(&self, vendor: &str) {
        self.0.send_if_modified(|table| {
            let before = table.len();
            table.retain(|(name, _), _| name != vendor);
            table.len() != before
        });
    }

    /// The current route.
    pub(super) fn get(&self, vendor: &str, resource: &ResourceName) -> Option<PluginRoute> {
        let key = (vendor.to_owned(), resource.clone());
        self.0.borrow().get(&key).cloned()
    }

    /// Whether this connection stops being the route within `patience`.
    pub(super) async fn ends(
        &self,
        vendor: &str,
        resource: &ResourceName,
        connection: u64,
        patience: Duration,
    ) -> bool {
        let key = (vendor.to_owned(), resource.clone());
        let other = |table: &RouteTable| {
            let route = table.get(&key);
            route.is_none_or(|route| route.connection.number != connection)
        };
        let mut table = self.0.subscribe();
        timeout(patience, table.wait_for(other)).await.is_ok()
    }

    /// Waits up to `patience` for a route other than the `ended` one.
    pub(super) async fn wait(
        &self,
        vendor: &str,
        resource: &ResourceName,
        ended: Option<u64>,
        patience: Duration,
    ) -> Option<PluginRoute> {
        let key = (vendor.to_owned(), resource.clone());
        let answers = |table: &RouteTable| {
            let route = table.get(&key);
            route.is_some_and(|route| Some(route.connection.number) != ended)
        };
        let mut table = self.0.subscribe();
        let found = timeout(patience, table.wait_for(answers));
        found.await.ok()?.ok()?.get(&key).cloned()
    }
}
