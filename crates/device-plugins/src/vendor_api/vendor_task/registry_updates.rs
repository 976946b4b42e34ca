//! Passes a vendor's snapshots on to the registry.

use std::sync::Arc;

use super::VendorTask;
use crate::vendor_api::{
    api::v1::{self as api, FromAgent, Reason, from_agent},
    lazy_messages, offered_resources,
    snapshot::{self, SnapshotRejection},
    task_messages::{message, rejected},
};
use machinist_device::{Resource, ResourceName, inventory::ServeMode, registry::OfferOutcome};

impl VendorTask {
    /// Accepts a snapshot or returns the reason why not.
    pub(super) async fn snapshot(
        &mut self,
        given: lazy_messages::LazySnapshot,
        bytes: usize,
    ) -> Option<FromAgent> {
        let generation = given.generation;
        let name = match self.claimed(&given) {
            Ok(name) => name,
            Err(why) => return Some(*why),
        };
        let vendor = self.vendor.borrow().clone();
        let (root, besides, of) = (
            self.root.clone(),
            self.offers.other_totals(&name),
            name.clone(),
        );
        let read = move || snapshot::read(Some(&root), &vendor, &of, (given, bytes), besides);
        let looked = tokio::select! {
            // Safe to drop: the blocking check runs to its end and its result is discarded.
            () = self.gone.cancelled() => return None,
            looked = self.looks.check_path(read) => looked,
        };
        let resource = match looked {
            Ok(Ok(resource)) => Arc::new(resource),
            Ok(Err(why)) => return Some(self.refused(&name, generation, why)),
            Err(why) => {
                let why = whole(Reason::Busy, why.to_string());
                return Some(self.refused(&name, generation, why));
            }
        };
        if let Err(why) = self.offers.may_follow(&resource, generation) {
            return Some(self.refused(&name, generation, why));
        }
        match self.registry.offer(resource.clone()).await {
            Ok(OfferOutcome::InForce) => {
                self.vain.remove(&name);
                self.offers.accept(resource, generation, bytes, None);
                Some(accepted(&name, generation))
            }
            Ok(OfferOutcome::Taken { by }) => {
                let message = format!("{name} is already offered by {by}");
                self.offers.accept(resource, generation, bytes, Some(by));
                let why = whole(Reason::ResourceTaken, message);
                Some(self.refused(&name, generation, why))
            }
            // The agent is stopping, so no answer is needed.
            Err(_) => None,
        }
    }

    /// The resource name of a snapshot, if this vendor may offer it.
    fn claimed(
        &mut self,
        given: &lazy_messages::LazySnapshot,
    ) -> Result<ResourceName, Box<FromAgent>> {
        let name = match ResourceName::new(given.resource.clone()) {
            Ok(name) if self.named_in_hello(&given.resource) => name,
            _ => {
                let shown: String = given.resource.chars().take(320).collect();
                let message = format!("{shown:?} was not named in Hello");
                self.complain(format!("snapshot rejected: {message}"));
                let why = whole(Reason::ResourceUnknown, message);
                return Err(rejected(&shown, given.generation, why).into());
            }
        };
        let vendor = self.vendor.borrow().clone();
        if vendor.may_claim(&name) {
            return Ok(name);
        }
        self.forbidden.insert(name.clone());
        let message = format!("vendor {} may not offer {name}", vendor.name);
        let why = whole(Reason::ResourceForbidden, message);
        Err(self.refused(&name, given.generation, why).into())
    }

    /// Applies a change of `serve` in the vendor's file (the vendor cannot choose it). Offers stay
    /// in force, except those that cannot be served through claims.
    pub(super) async fn change_serve_mode(&mut self, serve: ServeMode) {
        let mut unfit = Vec::new();
        for (name, offer) in &mut self.offers.all {
            if offer.resource.serve == serve {
                continue;
            }
            Arc::make_mut(&mut offer.resource).serve = serve;
            let why = offer.resource.unfit_for_claims();
            if let (ServeMode::Dra, Some(why)) = (serve, why) {
                unfit.push((name.clone(), offer.generation, why));
                continue;
            }
            let resource = match offer.lapsed {
                true => {
                    offered_resources::lapsed(&offer.resource, "the vendor is disconnected").into()
                }
                false => Arc::clone(&offer.resource),
            };
            if let Err(error) = self.registry.offer(resource).await {
                tracing::warn!("failed to change how {name} is served: {error}");
            }
        }
        for (name, generation, why) in unfit {
            self.offers.drop_unless(|kept| *kept != name);
            self.vain.insert(name.clone(), why.to_owned());
            self.withdraw_disallowed(name, generation, (Reason::RecipeInvalid, why.to_owned()))
                .await;
        }
    }

    /// Withdraws a resource that the vendor's file no longer allows, and sends the vendor a
    /// Rejected, since it received an Accepted before.
    pub(super) async fn withdraw_disallowed(
        &mut self,
        name: ResourceName,
        generation: Option<u64>,
        (reason, why): (Reason, String),
    ) {
        let vendor = self.name();
        self.complain(format!("{name} of vendor {vendor} is withdrawn: {why}"));
        if let Some(generation) = generation {
            self.send(rejected(name.as_str(), generation, whole(reason, why)));
        }
        self.withdraw(Some(name)).await;
    }

    fn refused(
        &mut self,
        name: &ResourceName,
        generation: u64,
        why: SnapshotRejection,
    ) -> FromAgent {
        let vain = format!(
            "vendor {}: offer of {name} rejected: {}",
            self.name(),
            why.message
        );
        self.vain.insert(name.clone(), vain.clone());
        self.complain(vain);
        rejected(name.as_str(), generation, why)
    }

    fn named_in_hello(&self, resource: &str) -> bool {
        let live = self.live.as_ref();
        live.is_some_and(|live| live.resources.iter().any(|named| named == resource))
    }

    /// Withdraws one resource, or all with `None`.
    pub(super) async fn withdraw(&mut self, name: Option<ResourceName>) {
        // The registry ends only with the agent, and then offers are meant to stay.
        let _ = self.registry.withdraw(self.source(), name).await;
    }

    /// The same instance reconnected, so its earlier snapshots are valid again without being
    /// resent.
    pub(super) async fn revive(&mut self) {
        let again = self
            .offers
            .all
            .values()
            .filter(|offer| offer.lapsed && offer.generation.is_some());
        let again: Vec<Arc<Resource>> = again.map(|offer| offer.resource.clone()).collect();
        for resource in again {
            let name = resource.name.clone();
            if let (Ok(_), Some(offer)) = (
                self.registry.offer(resource).await,
                self.offers.all.get_mut(&name),
            ) {
                offer.lapsed = false;
            }
        }
    }

    /// The grace period is over: marks devices that no session has confirmed as unhealthy.
    pub(super) async fn lapsed(&mut self) {
        let Some(lapse) = self.lapse.take() else {
            return;
        };
        let vendor = self.name();
        let connected = self.live.is_some();
        let gone = |offer: &&offered_resources::VendorResource| {
            !(offer.lapsed || connected && offer.generation.is_some())
        };
        let gone: Vec<Arc<Resource>> = self
            .offers
            .all
            .values()
            .filter(gone)
            .map(|offer| offer.resource.clone())
            .collect();
        let why = match connected {
            true => format!("vendor {vendor} has not offered it again since it reconnected"),
            false => format!("vendor {vendor} is disconnected: {}", lapse.why),
        };
        if !gone.is_empty() {
            tracing::warn!(vendor = %vendor, "{why}; its devices are unhealthy");
            self.lapsed = Some(why.clone());
        }
        for resource in gone {
            let name = resource.name.clone();
            let vain = self.vain.get(&name).filter(|_| connected);
            let lapsed = offered_resources::lapsed(&resource, vain.unwrap_or(&why));
            if let (Ok(_), Some(offer)) = (
                self.registry.offer(lapsed).await,
                self.offers.all.get_mut(&name),
            ) {
                offer.lapsed = true;
            }
        }
    }

    /// Replaces the reason shown for lapsed devices after a new snapshot of them was refused.
    pub(super) async fn still_lapsed(&mut self, resource: &str) {
        let mut vain = self.vain.iter();
        let Some((name, why)) = vain.find(|(name, _)| name.as_str() == resource) else {
            return;
        };
        let offer = self.offers.all.get(name).filter(|offer| offer.lapsed);
        if let Some(offer) = offer {
            // The registry ends only with the agent.
            let _ = self
                .registry
                .offer(offered_resources::lapsed(&offer.resource, why))
                .await;
        }
    }

    /// Whether one of our resources waits for another owner to give up its name.
    pub(super) fn is_waiting_for_a_name(&self) -> bool {
        self.offers
            .all
            .values()
            .any(|offer| offer.taken_by.is_some())
    }

    /// Sends Accepted for resources whose name another owner has given up.
    pub(super) fn accept_freed_names(&mut self) {
        let (source, inventory) = (self.source(), self.inventory.borrow_and_update().clone());
        let mut free = Vec::new();
        for (name, offer) in &mut self.offers.all {
            let owner = inventory.resources.get(name).map(|one| &one.source);
            if offer.taken_by.is_some() && owner == Some(&source) {
                offer.taken_by = None;
                self.vain.remove(name);
                free.extend(
                    offer
                        .generation
                        .map(|generation| accepted(name, generation)),
                );
            }
        }
        for message in free {
            self.send(message);
        }
    }

    /// Withdraws resources that the vendor did not name in its Hello.
    pub(super) async fn retain_named(&mut self, resources: &[String]) {
        let gone = self
            .offers
            .drop_unless(|name| resources.iter().any(|named| named == name.as_str()));
        for (name, _) in gone {
            self.withdraw(Some(name)).await;
        }
    }
}

/// A refusal of a whole snapshot.
fn whole(reason: Reason, message: String) -> SnapshotRejection {
    SnapshotRejection {
        reason,
        message,
        device: String::new(),
    }
}

fn accepted(name: &ResourceName, generation: u64) -> FromAgent {
    message(from_agent::Said::Accepted(api::Accepted {
        resource: name.to_string(),
        generation,
    }))
}
