//! What one vendor offers, and how sure that is. Pure: it is told what happened.
//!
//! Generations rise within an instance and begin anew with the next. What an earlier instance, or an
//! earlier agent, left is *unconfirmed* until the vendor says it again, and lapses after the grace.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    api::v1::{Kept, Reason},
    snapshot::{self, Besides, Refused},
};
use crate::device::{Resource, ResourceName, source::Source};

/// One resource of the vendor's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    /// As the vendor said it last; the registry has the same one.
    pub(super) resource: Arc<Resource>,
    /// The generation of that; none when another instance or another agent heard it.
    pub(super) generation: Option<u64>,
    /// How many bytes it had.
    pub(super) bytes: usize,
    /// Who has the name instead.
    pub(super) taken_by: Option<Source>,
    /// Its devices are listed as unhealthy, since the vendor is away.
    pub(super) lapsed: bool,
}

/// All that one vendor offers.
#[derive(Debug, Default)]
pub(super) struct Offers {
    /// The instance that the generations are of.
    instance: Option<String>,
    pub(super) all: BTreeMap<ResourceName, Offer>,
}

impl Offers {
    /// What an earlier agent left.
    pub(super) fn restored(resources: impl IntoIterator<Item = Arc<Resource>>) -> Self {
        let offer = |resource: Arc<Resource>| Offer {
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

    /// Whether generations are those of this instance.
    pub(super) fn is_of(&self, instance: &str) -> bool {
        self.instance.as_deref() == Some(instance)
    }

    /// An instance has the session. Another one than before begins anew: nothing is confirmed.
    pub(super) fn begin(&mut self, instance: &str) {
        if !self.is_of(instance) {
            self.instance = Some(instance.to_owned());
            for offer in self.all.values_mut() {
                offer.generation = None;
            }
        }
    }

    /// What the instance need not say again.
    pub(super) fn kept(&self) -> Vec<Kept> {
        let kept = self.all.iter().filter_map(|(name, offer)| {
            Some(Kept {
                resource: name.to_string(),
                generation: offer.generation?,
            })
        });
        kept.collect()
    }

    /// What there is besides `name`.
    pub(super) fn besides(&self, name: &ResourceName) -> Besides {
        let others = self.all.iter().filter(|(other, _)| *other != name);
        others.fold(Besides::default(), |sum, (_, offer)| Besides {
            devices: sum.devices + offer.resource.devices.len(),
            bytes: sum.bytes + offer.bytes,
            parts: sum.parts + snapshot::parts(&offer.resource),
        })
    }

    /// Whether this generation may follow; one that is equal may only repeat the same content.
    pub(super) fn may_follow(&self, resource: &Resource, generation: u64) -> Result<(), Refused> {
        let known = self.all.get(&resource.name);
        let last = known.and_then(|offer| offer.generation);
        let same = || known.is_some_and(|offer| *offer.resource == *resource);
        let why = match last {
            _ if generation == 0 => "generations begin with 1".to_owned(),
            Some(last) if generation < last => {
                format!("generation {generation} is older than {last}, which was accepted")
            }
            Some(last) if generation == last && !same() => {
                format!("generation {generation} was accepted with other content")
            }
            _ => return Ok(()),
        };
        Err(Refused {
            reason: Reason::GenerationOld,
            message: why,
            device: String::new(),
        })
    }

    /// The vendor said this, and it was offered.
    pub(super) fn accept(
        &mut self,
        resource: Arc<Resource>,
        generation: u64,
        bytes: usize,
        taken_by: Option<Source>,
    ) {
        let name = resource.name.clone();
        let offer = Offer {
            resource,
            generation: Some(generation),
            bytes,
            taken_by,
            lapsed: false,
        };
        self.all.insert(name, offer);
    }

    /// Takes out what `keep` does not want; gives its names, with the generations that the instance said.
    pub(super) fn drop_unless(
        &mut self,
        keep: impl Fn(&ResourceName) -> bool,
    ) -> Vec<(ResourceName, Option<u64>)> {
        let gone = self.all.extract_if(.., |name, _| !keep(name));
        gone.map(|(name, offer)| (name, offer.generation)).collect()
    }

    /// Whether something has not been said by whoever has, or had, the session last.
    pub(super) fn has_unconfirmed(&self) -> bool {
        self.all.values().any(|offer| offer.generation.is_none())
    }
}

/// The resource with all its healthy devices listed as unhealthy.
pub(super) fn lapsed(resource: &Resource, why: &str) -> Resource {
    let mut resource = resource.clone();
    for device in resource.devices.values_mut() {
        device.abandon(why);
    }
    resource
}

#[cfg(test)]
mod tests;
