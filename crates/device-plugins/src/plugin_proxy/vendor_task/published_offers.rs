//! The offers of a vendor in the registry, and which of them may have to change.

use std::collections::{BTreeMap, BTreeSet};

use crate::plugin_proxy::resource_instances::ActiveList;
use machinist_device::ResourceName;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct PublishedOffers {
    in_registry: BTreeMap<ResourceName, ActiveList>,
    /// Resources whose offer is compared with the registry next.
    changed: BTreeSet<ResourceName>,
}

impl PublishedOffers {
    pub(super) fn mark_changed(&mut self, name: ResourceName) {
        self.changed.insert(name);
    }

    pub(super) fn mark_all_changed<'a>(&mut self, names: impl Iterator<Item = &'a ResourceName>) {
        self.changed.extend(names.cloned());
    }

    pub(super) fn pop_changed(&mut self) -> Option<ResourceName> {
        self.changed.pop_first()
    }

    pub(super) fn get(&self, name: &ResourceName) -> Option<&ActiveList> {
        self.in_registry.get(name)
    }

    /// The resources that are in the registry.
    pub(super) fn names(&self) -> BTreeSet<ResourceName> {
        self.in_registry.keys().cloned().collect()
    }

    pub(super) fn record_published(&mut self, name: ResourceName, list: ActiveList) {
        self.in_registry.insert(name, list);
    }

    pub(super) fn record_withdrawn(&mut self, name: &ResourceName) {
        self.in_registry.remove(name);
    }
}
