//! Passes a vendor's offers to the registry.

use super::{
    ActiveList, BTreeMap, DeviceSpec, Instant, OfferOutcome, ProxyVendorTask, RegistryError,
    Resource, ResourceName, ServeMode, SessionEnd, Share,
};

impl ProxyVendorTask {
    /// Offers the resources that changed.
    pub(super) async fn offer(&mut self) -> Result<(), SessionEnd> {
        while let Some(name) = self.dirty.pop_first() {
            let now = Instant::now();
            if self
                .lines
                .get(&name)
                .is_some_and(|line| line.is_expired(now))
            {
                self.lines.remove(&name);
                self.read_crowded();
            }
            let line = self.lines.get(&name);
            let offer = line.and_then(|line| line.offer(now, self.vendor.grace));
            match offer {
                Some(offer) if self.offered.get(&name) == Some(&offer) => {}
                Some(offer) => self.offer_one(&name, offer).await?,
                None if !self.offered.contains_key(&name) => {}
                None => self.withdraw_one(&name).await?,
            }
        }
        Ok(())
    }

    async fn offer_one(
        &mut self,
        name: &ResourceName,
        offer: ActiveList,
    ) -> Result<(), RegistryError> {
        let resource = Resource {
            name: name.clone(),
            source: self.source(),
            serve: ServeMode::DevicePlugin,
            share: Share::EXCLUSIVE,
            recipe: DeviceSpec::default(),
            devices: BTreeMap::clone(&offer.devices),
            asks: offer.asks,
        };
        let standing = self.shared.registry.offer(resource).await?;
        self.offered.insert(name.clone(), offer);
        match standing {
            OfferOutcome::InForce => drop(self.told.taken.remove(name)),
            OfferOutcome::Taken { by } => {
                let news = self.told.taken.get(name) != Some(&by);
                if news {
                    let vendor = &self.vendor.name;
                    tracing::warn!(vendor = %vendor, resource = %name, "{name} is already offered by {by}; the plugin of {vendor} takes over when that offer is withdrawn");
                    self.told.taken.insert(name.clone(), by);
                }
            }
        }
        Ok(())
    }

    async fn withdraw_one(&mut self, name: &ResourceName) -> Result<(), RegistryError> {
        let registry = &self.shared.registry;
        registry.withdraw(self.source(), Some(name.clone())).await?;
        tracing::info!(vendor = %self.vendor.name, resource = %name, "{name} is withdrawn: no plugin is registered for it");
        self.offered.remove(name);
        self.told.cut.remove(name);
        self.shared.board.set(&self.vendor.name, Some(name), None);
        Ok(())
    }
}
