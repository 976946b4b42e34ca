//! Asks the kubelet which container has which device: on request and after allocations, never on a
//! timer.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{
    sync::{Mutex, watch},
    time::{Instant, sleep, sleep_until},
};

use crate::kubelet::{Allocations, MIN_CALL_INTERVAL, PodResources, PodResourcesError};
use machinist_base::{error_chain::chain, rate_limit::LogRates};
use machinist_device::{
    Inventory, Resource, ResourceName,
    dra::{
        device_names::names,
        traits::{CallFuture, DraCallError, InUseDevices},
    },
    holders::HolderSnapshot,
};
use machinist_rootfs::Root;

/// How long after an allocation the kubelet needs to write its checkpoint and to report it. A pod
/// with several containers and resources makes several allocations, which are followed by one
/// request.
pub const KUBELET_CHECKPOINT_DELAY: Duration = Duration::from_secs(1);

/// A shared client for the kubelet's pod resources, with the last answer. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct HolderQuery {
    kubelet: PodResources,
    /// The inventory, which maps names in the pool to resources and ids.
    inventory: watch::Receiver<Arc<Inventory>>,
    known: Arc<watch::Sender<Arc<HolderSnapshot>>>,
    /// When the last completed request started.
    asked: Arc<Mutex<Option<Instant>>>,
}

impl HolderQuery {
    pub(super) fn new(root: Root, inventory: watch::Receiver<Arc<Inventory>>) -> Self {
        Self {
            kubelet: PodResources::new(root),
            inventory,
            known: Arc::default(),
            asked: Arc::default(),
        }
    }

    pub(super) fn known(&self) -> watch::Receiver<Arc<HolderSnapshot>> {
        self.known.subscribe()
    }

    /// Asks the kubelet, or waits for the answer to a request that another caller started after this
    /// call.
    pub(super) async fn shared(&self) {
        let called = Instant::now();
        let mut asked = self.asked.lock().await;
        if let Some(before) = *asked {
            if before >= called {
                return;
            }
            // Callers that arrive until then share the answer.
            sleep_until(before + MIN_CALL_INTERVAL).await;
        }
        let began = Instant::now();
        // The error is part of the published state.
        let _ = self.ask(None).await;
        *asked = Some(began);
    }

    pub(super) async fn now(&self) -> Result<Arc<HolderSnapshot>, PodResourcesError> {
        let mut asked = self.asked.lock().await;
        let began = Instant::now();
        let answer = self.ask(None).await;
        *asked = Some(began);
        answer
    }

    pub(super) async fn allocatable(&self) -> Result<BTreeMap<String, usize>, PodResourcesError> {
        let all = self.kubelet.allocatable().await?.into_iter();
        Ok(all.map(|(name, ids)| (name, ids.len())).collect())
    }

    /// Asks the kubelet. Also resolves claimed devices that only the inventory `before` has.
    async fn ask(
        &self,
        before: Option<&Inventory>,
    ) -> Result<Arc<HolderSnapshot>, PodResourcesError> {
        let answer = self.kubelet.list().await;
        let known = match &answer {
            Ok(holders) => {
                let mut names = names(&self.inventory.borrow());
                names.extend(before.map(self::names).unwrap_or_default());
                HolderSnapshot::Known(holders.clone().resolve_claimed(&names))
            }
            Err(error) => HolderSnapshot::Unknown(chain(error)),
        };
        let known = Arc::new(known);
        let before = self.known.send_replace(Arc::clone(&known));
        if let (Err(error), true) = (&answer, *before != *known) {
            // Log each error once. An absent kubelet is reported elsewhere.
            match error {
                PodResourcesError::Absent => tracing::debug!("{error}"),
                error => tracing::info!("{}", chain(error)),
            }
        }
        answer.map(|_| known)
    }

    /// Asks the kubelet when devices are removed from the inventory, and logs those that a container
    /// still has, since no other event would reveal them.
    pub(super) async fn log_removed_held_devices(self) {
        let mut inventory = self.inventory.clone();
        let log_rates = LogRates::default();
        let mut before = inventory.borrow_and_update().clone();
        while inventory.changed().await.is_ok() {
            let now = inventory.borrow_and_update().clone();
            let before = std::mem::replace(&mut before, Arc::clone(&now));
            let withdrawn = withdrawn(&before, &now);
            if withdrawn.is_empty() {
                continue;
            }
            // An unreachable kubelet is reported in the status.
            let Ok(known) = self.ask(Some(&before)).await else {
                continue;
            };
            for name in withdrawn {
                let left = now.resources.get(&name);
                let held = known.of_resource(name.as_str());
                for (id, holder) in
                    held.filter(|(id, _)| left.is_none_or(|it| it.find_with_missing(id).is_none()))
                {
                    if let Some(suppressed) = log_rates.take(name.as_str()) {
                        tracing::warn!(resource = %name, suppressed, "{id} of {name} is no longer offered, but still in use by {holder}");
                    }
                }
            }
        }
    }

    /// Asks the kubelet after each allocation, or once after several in a row.
    pub(super) async fn query_after_allocations(
        self,
        mut allocations: watch::Receiver<Allocations>,
    ) {
        let mut answered = allocations.borrow_and_update().answered;
        while allocations.changed().await.is_ok() {
            let now = allocations.borrow_and_update().answered;
            if now == answered {
                continue;
            }
            sleep(KUBELET_CHECKPOINT_DELAY).await;
            answered = allocations.borrow_and_update().answered;
            let _ = self.now().await;
        }
    }
}

/// Resources that were removed, or that lost devices.
fn withdrawn(before: &Inventory, now: &Inventory) -> Vec<ResourceName> {
    let less = |(name, before): (&ResourceName, &Arc<Resource>)| {
        let stays = now.resources.get(name).is_some_and(|now| {
            let mut ids = before.devices.keys();
            Arc::ptr_eq(before, now) || ids.all(|id| now.devices.contains_key(id))
        });
        (!stays).then(|| name.clone())
    };
    before.resources.iter().filter_map(less).collect()
}

impl InUseDevices for HolderQuery {
    fn holders(&self) -> CallFuture<'_, machinist_device::holders::DeviceHolders> {
        Box::pin(async {
            let listed = self.kubelet.list().await;
            listed.map_err(|error| DraCallError::Unreachable(chain(&error)))
        })
    }
}
