//! Passes a vendor's offers to the registry.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::{ProxyVendorTask, SessionEnd};
use crate::plugin_proxy::resource_instances::ActiveList;
use machinist_device::{
    Resource, ResourceName,
    inventory::{DeviceSpec, ServeMode, Share},
    registry::{OfferOutcome, RegistryError},
};

impl ProxyVendorTask {
    /// Offers the resources that changed.
    pub(super) async fn update_registry(&mut self) -> Result<(), SessionEnd> {
        while let Some(name) = self.offers.pop_changed() {
            let now = Instant::now();
            if self
                .resources
                .get(&name)
                .is_some_and(|instances| instances.is_expired(now))
            {
                self.resources.remove(&name);
                self.restart_truncated_lists();
            }
            let instances = self.resources.get(&name);
            let list =
                instances.and_then(|instances| instances.active_list(now, self.vendor.grace));
            match (list, self.offers.get(&name)) {
                (Some(list), Some(published)) if list == *published => {}
                (Some(list), _) => self.publish(&name, list).await?,
                (None, None) => {}
                (None, Some(_)) => self.withdraw(&name).await?,
            }
        }
        Ok(())
    }

    async fn publish(
        &mut self,
        name: &ResourceName,
        list: ActiveList,
    ) -> Result<(), RegistryError> {
        let resource = Resource {
            name: name.clone(),
            source: self.source(),
            serve: ServeMode::DevicePlugin,
            share: Share::EXCLUSIVE,
            recipe: DeviceSpec::default(),
            devices: BTreeMap::clone(&list.devices),
            asks: list.options,
        };
        let outcome = self.deps.registry.offer(resource).await?;
        self.offers.record_published(name.clone(), list);
        match outcome {
            OfferOutcome::InForce => self.log.clear_owner(name),
            OfferOutcome::Taken { by } => {
                if self.log.record_owner(name, &by) && self.log.take_connection_line() {
                    let vendor = &self.vendor.name;
                    tracing::warn!(vendor = %vendor, resource = %name, "{name} is already offered by {by}; the plugin of {vendor} takes over when that offer is withdrawn");
                }
            }
        }
        Ok(())
    }

    async fn withdraw(&mut self, name: &ResourceName) -> Result<(), RegistryError> {
        let registry = &self.deps.registry;
        registry.withdraw(self.source(), Some(name.clone())).await?;
        if self.log.take_connection_line() {
            tracing::info!(vendor = %self.vendor.name, resource = %name, "{name} is withdrawn: no plugin is registered for it");
        }
        self.offers.record_withdrawn(name);
        self.log.clear_ignored(name);
        self.deps.problems.set(&self.vendor.name, Some(name), None);
        Ok(())
    }
}
