//! Specs written anew whose nodes are others by now: a container that starts again finds the device where it is, or
//! does not start while it is nowhere.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{book::BookError, granting::Granting, prepare::PrepareError, shelf::Shelf};
use crate::{
    device::{
        Health, Inventory,
        dra::{
            claim::Allocated,
            prepared::{Book, Chosen, Prepared},
        },
        registry::{Depth, DirWatch, changed_or_late, watch_for},
    },
    path::AbsPath,
    root::Root,
    telemetry::chain,
};

/// For all looks at one claim's paths; a file system that takes longer hangs.
const LOOK: Duration = Duration::from_secs(10);
/// After a spec could not be written, and where nobody tells of links that change.
const RETRY: Duration = Duration::from_secs(60);
/// The least time between two looks at all claims: devices change in bursts, and a container that ended is not
/// started again any sooner.
const APART: Duration = Duration::from_secs(1);

/// The task that does it.
pub(super) struct Refresh {
    pub(super) root: Root,
    pub(super) granting: Granting,
    pub(super) shelf: Shelf,
    pub(super) inventory: watch::Receiver<Arc<Inventory>>,
    /// Claims whose specs are taken away, by UID.
    pub(super) moved: BTreeSet<String>,
}

impl Refresh {
    pub(super) async fn run(mut self, stop: CancellationToken) {
        tokio::select! {
            // Safe to drop: what is being written goes on, and the next agent looks at all of it.
            () = stop.cancelled() => {}
            () = self.keep() => {}
        }
    }

    async fn keep(&mut self) {
        let mut links = DirWatch::new(&self.root).ok();
        loop {
            // Links that change from now on are told.
            let claims = self.shelf.claims().await;
            if let Some(watch) = &mut links {
                watch.set(&directories(&self.root, &claims));
            }
            let inventory = self.inventory.borrow_and_update().clone();
            let failed = !self.refresh(&inventory, claims).await;
            sleep(APART).await;
            tokio::select! {
                // Safe to drop, all of them: a change stays marked as unseen, or in the kernel's queue.
                changed = self.inventory.changed() => if changed.is_err() { return },
                () = self.shelf.kept() => {}
                _ = changed_or_late(&mut links, RETRY) => {}
                () = sleep(RETRY), if failed => {}
            }
        }
    }

    /// Says whether everything is as it should be.
    async fn refresh(&mut self, inventory: &Inventory, claims: Vec<Prepared>) -> bool {
        let mut whole = true;
        self.moved
            .retain(|uid| claims.iter().any(|one| one.claim.uid == *uid));
        for before in claims {
            let anew = self.anew(inventory, &before).await;
            whole &= match anew.filter(|anew| *anew != before) {
                Some(anew) => self.replace(&before, &anew).await,
                None => self.lay_out(&before).await,
            };
        }
        whole
    }

    /// What stands in the book may not have reached the runtime's directory, or be wrong there by now.
    async fn lay_out(&mut self, claim: &Prepared) -> bool {
        let (uid, name) = (&claim.claim.uid, &claim.claim);
        match self.shelf.again(uid).await {
            Ok(_) => {
                if self.moved.remove(uid) {
                    tracing::info!(claim = %name, "claim {name}: its devices are where they were; its containers may start");
                }
                true
            }
            Err(error @ BookError::Moved { .. }) => {
                if self.moved.insert(uid.clone()) {
                    tracing::warn!(claim = %name, "claim {name}: no container of it starts: {}", chain(&error));
                }
                true
            }
            Err(error) => {
                tracing::debug!(claim = %name, "{}", chain(&error));
                false
            }
        }
    }

    async fn replace(&mut self, before: &Prepared, anew: &Prepared) -> bool {
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
                self.moved.remove(&claim.uid);
                if before.spec != anew.spec {
                    tracing::info!(claim = %claim, "claim {claim}: its devices have other nodes now");
                }
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

/// Where the links are by which claims' devices are known; while a directory is missing, the nearest one above.
fn directories(root: &Root, claims: &[Prepared]) -> BTreeMap<AbsPath, Depth> {
    let links = claims.iter().flat_map(|one| one.links.keys());
    let dirs = links.filter_map(AbsPath::parent);
    dirs.map(|dir| (watch_for(root, &dir).0, Depth::Names))
        .collect()
}
