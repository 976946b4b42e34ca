//! State of one vendor's offers. Pure: events are passed in.
//!
//! Generations rise within an instance and start again with the next one. Offers from an earlier
//! instance or an earlier agent are *unconfirmed* until the vendor sends them again, and lapse
//! after the grace period.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    api::v1::{Kept, Reason},
    snapshot::{self, OtherResources, SnapshotRejection},
};
use machinist_device::{Resource, ResourceName, source::ResourceSource};

/// One offered resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VendorResource {
    /// The resource as last received; the registry has the same one.
    pub(super) resource: Arc<Resource>,
    /// Its generation; `None` when it came from another instance or was restored.
    pub(super) generation: Option<u64>,
    /// Its encoded size in bytes.
    pub(super) bytes: usize,
    /// The source that owns the name instead.
    pub(super) taken_by: Option<ResourceSource>,
    /// Its devices are listed as unhealthy because the vendor has not confirmed them in time.
    pub(super) lapsed: bool,
}

/// All offers of one vendor.
#[derive(Debug, Default)]
pub(super) struct VendorResources {
    /// The instance that the generations belong to.
    instance: Option<String>,
    pub(super) all: BTreeMap<ResourceName, VendorResource>,
}

impl VendorResources {
    /// Restores the offers of an earlier agent.
    pub(super) fn restored(resources: impl IntoIterator<Item = Arc<Resource>>) -> Self {
        let offer = |resource: Arc<Resource>| VendorResource {
            resource,
            generation: None,
            bytes: 0,
            taken_by: None,
            lapsed: false,
        };
        let each = resources.into_iter();
        Self {
            instance: None,
            all: each.map(|one| (one.name.clone(), offer(one))).collect(),
        }
    }

    /// Whether the generations belong to this instance.
    pub(super) fn belongs_to(&self, instance: &str) -> bool {
        self.instance.as_deref() == Some(instance)
    }

    /// Begins a session. For an instance other than the last one all offers become unconfirmed.
    pub(super) fn begin_session(&mut self, instance: &str) {
        if !self.belongs_to(instance) {
            self.instance = Some(instance.to_owned());
            for offer in self.all.values_mut() {
                offer.generation = None;
            }
        }
    }

    /// The offers that the instance need not send again.
    pub(super) fn confirmed_offers(&self) -> Vec<Kept> {
        let kept = self.all.iter().filter_map(|(name, offer)| {
            Some(Kept {
                resource: name.to_string(),
                generation: offer.generation?,
            })
        });
        kept.collect()
    }

    /// The totals of all offers except `name`.
    pub(super) fn other_totals(&self, name: &ResourceName) -> OtherResources {
        let others = self.all.iter().filter(|(other, _)| *other != name);
        others.fold(OtherResources::default(), |sum, (_, offer)| {
            OtherResources {
                devices: sum.devices + offer.resource.devices.len(),
                bytes: sum.bytes + offer.bytes,
                parts: sum.parts + snapshot::parts(&offer.resource),
            }
        })
    }

    /// Whether this generation may follow; an equal one may only repeat the same content.
    pub(super) fn check_generation(
        &self,
        resource: &Resource,
        generation: u64,
    ) -> Result<(), SnapshotRejection> {
        let known = self.all.get(&resource.name);
        let last = known.and_then(|offer| offer.generation);
        let same = || known.is_some_and(|offer| *offer.resource == *resource);
        let why = match last {
            _ if generation == 0 => "generations start at 1".to_owned(),
            Some(last) if generation < last => {
                format!("generation {generation} is older than {last}, which was accepted")
            }
            Some(last) if generation == last && !same() => {
                format!("generation {generation} was accepted with other content")
            }
            _ => return Ok(()),
        };
        Err(SnapshotRejection {
            reason: Reason::GenerationOld,
            message: why,
            device: String::new(),
        })
    }

    /// Records a snapshot that the registry has accepted.
    pub(super) fn accept(
        &mut self,
        resource: Arc<Resource>,
        generation: u64,
        bytes: usize,
        taken_by: Option<ResourceSource>,
    ) {
        let name = resource.name.clone();
        let offer = VendorResource {
            resource,
            generation: Some(generation),
            bytes,
            taken_by,
            lapsed: false,
        };
        self.all.insert(name, offer);
    }

    /// Removes the offers for which `keep` returns false; returns their names and, if this instance
    /// sent them, their generations.
    pub(super) fn remove_unless(
        &mut self,
        keep: impl Fn(&ResourceName) -> bool,
    ) -> Vec<(ResourceName, Option<u64>)> {
        let removed = self.all.extract_if(.., |name, _| !keep(name));
        removed
            .map(|(name, offer)| (name, offer.generation))
            .collect()
    }

    /// Whether an offer has not been confirmed by the current or last instance.
    pub(super) fn has_unconfirmed(&self) -> bool {
        self.all.values().any(|offer| offer.generation.is_none())
    }
}

/// A copy of the resource with all healthy devices marked unhealthy.
pub(super) fn lapsed(resource: &Resource, why: &str) -> Resource {
    let mut resource = resource.clone();
    for device in resource.devices.values_mut() {
        device.mark_unreachable(why);
    }
    resource
}

#[cfg(test)]
mod tests;
