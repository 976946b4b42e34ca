//! Specs written anew whose nodes are others by now: a container that starts again finds the device where it is.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{granting::Granting, prepare::PrepareError, shelf::Shelf};
use crate::{
    device::{
        Health, Inventory,
        dra::{
            claim::Allocated,
            prepared::{Book, Chosen, Prepared},
        },
    },
    telemetry::chain,
};

/// For all looks at one claim's paths; a file system that takes longer hangs.
const LOOK: Duration = Duration::from_secs(10);
/// After a spec could not be written.
const RETRY: Duration = Duration::from_secs(60);

/// The task that does it.
pub(super) struct Refresh {
    pub(super) granting: Granting,
    pub(super) shelf: Shelf,
    pub(super) inventory: watch::Receiver<Arc<Inventory>>,
}

impl Refresh {
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut failed = false;
        loop {
            if failed {
                self.write_again().await;
            }
            let inventory = self.inventory.borrow_and_update().clone();
            failed = !self.refresh(&inventory, &stop).await;
            tokio::select! {
                () = stop.cancelled() => return,
                // Safe to drop, all of them: a change stays marked as unseen.
                changed = self.inventory.changed() => if changed.is_err() { return },
                () = self.shelf.kept() => {}
                () = sleep(RETRY), if failed => {}
            }
        }
    }

    /// What stands in the book may not have reached the runtime's directory.
    async fn write_again(&self) {
        for claim in self.shelf.claims().await {
            if let Err(error) = self.shelf.again(&claim.claim.uid).await {
                tracing::debug!(claim = %claim.claim, "{}", chain(&error));
            }
        }
    }

    /// Says whether everything is as it should be.
    async fn refresh(&self, inventory: &Inventory, stop: &CancellationToken) -> bool {
        let mut whole = true;
        for before in self.shelf.claims().await {
            let looking = self.anew(inventory, &before);
            let anew = tokio::select! {
                // Safe to drop: it only looks.
                () = stop.cancelled() => return true,
                anew = looking => anew,
            };
            if let Some(anew) = anew.filter(|anew| anew.spec != before.spec) {
                whole &= self.replace(&before, &anew).await;
            }
        }
        whole
    }

    async fn replace(&self, before: &Prepared, anew: &Prepared) -> bool {
        let claim = &anew.claim;
        let mut over = false;
        let still = |book: &Book| {
            over = book.claims.get(&claim.uid) != Some(before);
            match over {
                true => Err(PrepareError::Over(claim.clone())),
                false => Ok(()),
            }
        };
        match self.shelf.keep(anew, still).await {
            Ok(()) => {
                tracing::info!(claim = %claim, "claim {claim}: its devices have other nodes now");
            }
            Err(_) if over => {}
            Err(error) => {
                tracing::warn!(claim = %claim, "claim {claim} keeps its old nodes: {}", chain(&error));
                return false;
            }
        }
        true
    }

    /// The same claim as it would be prepared now; none where a device is away, or only its source can tell.
    async fn anew(&self, inventory: &Inventory, prepared: &Prepared) -> Option<Prepared> {
        let mut chosen = Vec::new();
        for held in &prepared.devices {
            let resource = inventory.resources.get(&held.resource)?;
            let (_, device) = resource.find(&held.share)?;
            if resource.asks.allocate || device.health != Health::Healthy {
                return None;
            }
            chosen.push(Chosen {
                given: Allocated {
                    request: held.request.clone(),
                    pool: held.pool.clone(),
                    device: held.device.clone(),
                    admin: held.admin,
                    tolerations: Vec::new(),
                },
                resource: Arc::clone(resource),
                share: held.share.clone(),
            });
        }
        let until = Instant::now() + LOOK;
        let prepared = self
            .granting
            .prepared(&prepared.claim, &chosen, until)
            .await;
        prepared.ok()
    }
}
