//! Passes a vendor's snapshots on to the registry.

use std::sync::Arc;

use super::VendorTask;
use crate::vendor_api::{
    api::v1::{self as api, FromAgent, Reason, from_agent},
    lazy_messages, offered_resources,
    snapshot::SnapshotRejection,
    task_messages::{message, rejected},
};
use machinist_device::{Resource, ResourceName, inventory::ServeMode, registry::OfferOutcome};

impl VendorTask {
    /// Accepts a snapshot or returns the reason why not.
    pub(super) async fn apply_snapshot(
        &mut self,
        snapshot: lazy_messages::LazySnapshot,
        bytes: usize,
    ) -> Option<FromAgent> {
        let generation = snapshot.generation;
        let name = match self.claimed_resource(&snapshot) {
            Ok(name) => name,
            Err(rejected) => return Some(*rejected),
        };
        let others = self.resources.other_totals(&name);
        let read = self
            .deps
            .snapshots
            .read(self.vendor(), name.clone(), (snapshot, bytes), others);
        let result = tokio::select! {
            // Safe to drop: the blocking check runs to its end and its result is discarded.
            () = self.inputs.removed.cancelled() => return None,
            result = read => result,
        };
        let resource = match result {
            Ok(Ok(resource)) => Arc::new(resource),
            Ok(Err(rejection)) => return Some(self.reject(&name, generation, rejection)),
            Err(error) => {
                let rejection = whole_snapshot(Reason::Busy, error.to_string());
                return Some(self.reject(&name, generation, rejection));
            }
        };
        if let Err(rejection) = self.resources.check_generation(&resource, generation) {
            return Some(self.reject(&name, generation, rejection));
        }
        match self.deps.registry.offer(resource.clone()).await {
            Ok(OfferOutcome::InForce) => {
                self.rejections.record_accepted(&name);
                self.resources.accept(resource, generation, bytes, None);
                Some(accepted(&name, generation))
            }
            Ok(OfferOutcome::Taken { by }) => {
                let message = format!("{name} is already offered by {by}");
                self.resources.accept(resource, generation, bytes, Some(by));
                let rejection = whole_snapshot(Reason::ResourceTaken, message);
                Some(self.reject(&name, generation, rejection))
            }
            // The agent is stopping, so no answer is needed.
            Err(_) => None,
        }
    }

    /// The resource name of a snapshot, if this vendor may offer it.
    fn claimed_resource(
        &mut self,
        snapshot: &lazy_messages::LazySnapshot,
    ) -> Result<ResourceName, Box<FromAgent>> {
        let name = match ResourceName::new(snapshot.resource.clone()) {
            Ok(name) if self.session.named_in_hello(&snapshot.resource) => name,
            _ => {
                let shown: String = snapshot.resource.chars().take(320).collect();
                let message = format!("{shown:?} was not named in Hello");
                self.record_fault(format!("snapshot rejected: {message}"));
                let rejection = whole_snapshot(Reason::ResourceUnknown, message);
                return Err(rejected(&shown, snapshot.generation, rejection).into());
            }
        };
        let vendor = self.vendor();
        if vendor.may_claim(&name) {
            return Ok(name);
        }
        self.rejections.record_forbidden(name.clone());
        let message = format!("vendor {} may not offer {name}", vendor.name);
        let rejection = whole_snapshot(Reason::ResourceForbidden, message);
        Err(self.reject(&name, snapshot.generation, rejection).into())
    }

    /// Applies a change of `serve` in the vendor's file (the vendor cannot choose it). Offers stay
    /// in force, except those that cannot be served through claims.
    pub(super) async fn change_serve_mode(&mut self, serve: ServeMode) {
        let mut unfit = Vec::new();
        for (name, offer) in &mut self.resources.all {
            if offer.resource.serve == serve {
                continue;
            }
            Arc::make_mut(&mut offer.resource).serve = serve;
            let why = offer.resource.claim_incompatibility();
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
            if let Err(error) = self.deps.registry.offer(resource).await {
                tracing::warn!("failed to change how {name} is served: {error}");
            }
        }
        for (name, generation, why) in unfit {
            self.resources.remove_unless(|kept| *kept != name);
            self.rejections.record(name.clone(), why.to_owned());
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
        self.record_fault(format!("{name} of vendor {vendor} is withdrawn: {why}"));
        if let Some(generation) = generation {
            self.send(rejected(
                name.as_str(),
                generation,
                whole_snapshot(reason, why),
            ));
        }
        self.withdraw(Some(name)).await;
    }

    fn reject(
        &mut self,
        name: &ResourceName,
        generation: u64,
        rejection: SnapshotRejection,
    ) -> FromAgent {
        let fault = format!(
            "vendor {}: offer of {name} rejected: {}",
            self.name(),
            rejection.message
        );
        self.rejections.record(name.clone(), fault.clone());
        self.record_fault(fault);
        rejected(name.as_str(), generation, rejection)
    }

    /// Withdraws one resource, or all with `None`.
    pub(super) async fn withdraw(&mut self, name: Option<ResourceName>) {
        // The registry ends only with the agent, and then offers are meant to stay.
        let _ = self.deps.registry.withdraw(self.source(), name).await;
    }

    /// The same instance reconnected, so its earlier snapshots are valid again without being
    /// resent.
    pub(super) async fn restore_lapsed(&mut self) {
        let lapsed = self
            .resources
            .all
            .values()
            .filter(|offer| offer.lapsed && offer.generation.is_some());
        let lapsed: Vec<Arc<Resource>> = lapsed.map(|offer| offer.resource.clone()).collect();
        for resource in lapsed {
            let name = resource.name.clone();
            if let (Ok(_), Some(offer)) = (
                self.deps.registry.offer(resource).await,
                self.resources.all.get_mut(&name),
            ) {
                offer.lapsed = false;
            }
        }
    }

    /// The grace period is over: marks devices that no session has confirmed as unhealthy.
    pub(super) async fn expire_unconfirmed(&mut self) {
        let Some(grace_reason) = self.grace.take_reason() else {
            return;
        };
        let vendor = self.name();
        let connected = self.session.is_connected();
        let is_unconfirmed = |offer: &&offered_resources::VendorResource| {
            !(offer.lapsed || connected && offer.generation.is_some())
        };
        let unconfirmed: Vec<Arc<Resource>> = self
            .resources
            .all
            .values()
            .filter(is_unconfirmed)
            .map(|offer| offer.resource.clone())
            .collect();
        let reason = match connected {
            true => format!("vendor {vendor} has not offered it again since it reconnected"),
            false => format!("vendor {vendor} is disconnected: {grace_reason}"),
        };
        if !unconfirmed.is_empty() {
            if self.log.take_session_line() {
                tracing::warn!(vendor = %vendor, "{reason}; its devices are unhealthy");
            }
            self.grace.record_lapsed(reason.clone());
        }
        for resource in unconfirmed {
            let name = resource.name.clone();
            let rejection = self.rejections.reason(&name).filter(|_| connected);
            let lapsed = offered_resources::lapsed(&resource, rejection.unwrap_or(&reason));
            if let (Ok(_), Some(offer)) = (
                self.deps.registry.offer(lapsed).await,
                self.resources.all.get_mut(&name),
            ) {
                offer.lapsed = true;
            }
        }
    }

    /// Replaces the reason shown for lapsed devices after a new snapshot of them was refused.
    pub(super) async fn update_lapsed_reason(&mut self, resource: &str) {
        let Some((name, reason)) = self.rejections.find(resource) else {
            return;
        };
        let offer = self.resources.all.get(name).filter(|offer| offer.lapsed);
        if let Some(offer) = offer {
            // The registry ends only with the agent.
            let _ = self
                .deps
                .registry
                .offer(offered_resources::lapsed(&offer.resource, reason))
                .await;
        }
    }

    /// Whether one of our resources waits for another owner to give up its name.
    pub(super) fn is_waiting_for_a_name(&self) -> bool {
        self.resources
            .all
            .values()
            .any(|offer| offer.taken_by.is_some())
    }

    /// Sends Accepted for resources whose name another owner has given up.
    pub(super) fn accept_freed_names(&mut self) {
        let (source, inventory) = (
            self.source(),
            self.inputs.inventory.borrow_and_update().clone(),
        );
        let mut freed = Vec::new();
        for (name, offer) in &mut self.resources.all {
            let owner = inventory.resources.get(name).map(|one| &one.source);
            if offer.taken_by.is_some() && owner == Some(&source) {
                offer.taken_by = None;
                self.rejections.record_accepted(name);
                freed.extend(
                    offer
                        .generation
                        .map(|generation| accepted(name, generation)),
                );
            }
        }
        for message in freed {
            self.send(message);
        }
    }

    /// Withdraws resources that the vendor did not name in its Hello.
    pub(super) async fn retain_named(&mut self, resources: &[String]) {
        let unnamed = self
            .resources
            .remove_unless(|name| resources.iter().any(|named| named == name.as_str()));
        for (name, _) in unnamed {
            self.withdraw(Some(name)).await;
        }
    }
}

/// A rejection of a whole snapshot.
fn whole_snapshot(reason: Reason, message: String) -> SnapshotRejection {
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
