//! Determines which containers hold our devices, and whether the drain evicts them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::NodeContext;
use machinist_base::{clock::Clock, reason::Reason};
use machinist_device::{
    ServeMode,
    holders::{Holder, HolderSnapshot},
    status::{DevicesStatus, ResourceStatus},
};
use machinist_device_plugins::device_service::DevicesHandle;
use machinist_drain::PodId;
use machinist_update::node_port::{Blocker, DeviceHolderCounts};

/// How long to wait for an unresponsive kubelet after the pods were evicted. Their containers had
/// ended by its own report, and a stopped kubelet will not respond until it is started; a restart
/// takes seconds.
const UNRESPONSIVE_KUBELET_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the kubelet may take to apply re-enabled devices; it takes milliseconds.
const REENABLE_TIMEOUT: Duration = Duration::from_secs(5);
const HOLDER_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Whether the drain evicts a pod that holds a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HolderDisposition {
    /// It is evicted.
    Evicted,
    /// It stays, as pods of DaemonSets and static pods do, or it has already ended.
    Remains,
}

/// State kept between two checks.
#[derive(Debug, Default)]
pub(super) struct HolderWait(Mutex<HolderLogState>);

#[derive(Debug, Default)]
struct HolderLogState {
    /// Since when the kubelet has not responded.
    unreported_since: Option<Instant>,
    /// The pods that keep devices, as last logged.
    named: BTreeSet<Holder>,
}

impl HolderWait {
    fn with<T>(&self, what: impl FnOnce(&mut HolderLogState) -> T) -> T {
        what(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl NodeContext {
    /// The containers that hold our devices, with counts, for the record.
    pub(super) async fn holders(&self) -> Option<DeviceHolderCounts> {
        let Some(devices) = &self.devices else {
            return Some(DeviceHolderCounts::new());
        };
        let lends = advertised_resources(&devices.status().borrow());
        if lends.is_empty() {
            return Some(DeviceHolderCounts::new());
        }
        let known = devices.holders_now().await.ok()?;
        let counted = held(&known, &lends).counted();
        Some(
            counted
                .into_iter()
                .map(|(holder, counts)| (holder.to_string(), counts))
                .collect(),
        )
    }

    /// Containers that hold a device of ours, or the reason why that is unknown. Empty if there is
    /// nothing to wait for.
    pub(super) async fn current_holders(
        &self,
        waiting: &HolderWait,
    ) -> Result<Vec<Holder>, Vec<Blocker>> {
        let Some(devices) = &self.devices else {
            return Ok(Vec::new());
        };
        let lends = advertised_resources(&devices.status().borrow());
        if lends.is_empty() {
            return Ok(Vec::new());
        }
        if devices.is_allocating() {
            let message = "a device allocation is in progress for an admitted pod";
            return Err(vec![self.blocker(Reason::DeviceHeld, message.to_owned())]);
        }
        match devices.holders_now().await {
            Ok(known) => {
                waiting.with(|memory| memory.unreported_since = None);
                Ok(held(&known, &lends).counted().into_keys().collect())
            }
            Err(error) => {
                let now = Instant::now();
                let since = waiting.with(|memory| *memory.unreported_since.get_or_insert(now));
                let message = machinist_base::error_chain::chain(&error);
                if now.duration_since(since) < UNRESPONSIVE_KUBELET_TIMEOUT {
                    return Err(vec![self.blocker(Reason::HoldersUnknown, message)]);
                }
                tracing::warn!(
                    "{message}; node is drained: assuming that the devices are free after {} s",
                    UNRESPONSIVE_KUBELET_TIMEOUT.as_secs()
                );
                waiting.with(|memory| memory.unreported_since = None);
                Ok(Vec::new())
            }
        }
    }

    /// The holders that the update waits for. Holders that stay are logged once.
    pub(super) fn awaited_holders(
        &self,
        waiting: &HolderWait,
        holders: Vec<Holder>,
        fates: &BTreeMap<(String, String), HolderDisposition>,
    ) -> Vec<Blocker> {
        let fate = |holder: &Holder| {
            let pod = (holder.namespace.clone(), holder.pod.clone());
            // A pod without an API object that still holds a device is being cleaned up.
            fates
                .get(&pod)
                .copied()
                .unwrap_or(HolderDisposition::Evicted)
        };
        let (goes, stays): (Vec<_>, BTreeSet<_>) = {
            let (goes, stays): (Vec<_>, Vec<_>) = holders
                .into_iter()
                .partition(|it| fate(it) == HolderDisposition::Evicted);
            (goes, stays.into_iter().collect())
        };
        waiting.with(|memory| {
            if memory.named != stays && !stays.is_empty() {
                let names: Vec<_> = stays.iter().map(ToString::to_string).collect();
                tracing::info!(
                    "pods exempt from the drain still hold devices: {}",
                    names.join(", ")
                );
            }
            memory.named = stays;
        });
        let blocker = |holder: Holder| Blocker {
            kind: "Pod".to_owned(),
            namespace: holder.namespace,
            name: holder.pod,
            reason: Reason::DeviceHeld,
            message: format!("container {} still holds a device", holder.container),
            since: Clock::system().now(),
        };
        goes.into_iter().map(blocker).collect()
    }

    fn blocker(&self, reason: Reason, message: String) -> Blocker {
        Blocker {
            kind: "Node".to_owned(),
            namespace: String::new(),
            name: self.name().to_owned(),
            reason,
            message,
            since: Clock::system().now(),
        }
    }
}

/// What the drain does with each pod of the node. `left` are those that it stopped waiting for.
pub(super) fn dispositions(
    judged: Vec<(PodId, bool)>,
    left: &[PodId],
) -> BTreeMap<(String, String), HolderDisposition> {
    let fate = |(pod, goes): (PodId, bool)| {
        let fate = match goes && !left.contains(&pod) {
            true => HolderDisposition::Evicted,
            false => HolderDisposition::Remains,
        };
        ((pod.namespace, pod.name), fate)
    };
    judged.into_iter().map(fate).collect()
}

/// Resources of which a device was ever advertised to the kubelet.
fn advertised_resources(status: &DevicesStatus) -> BTreeSet<String> {
    let heard = status.devices.iter().filter(|resource| {
        let mut devices = resource.devices.iter();
        devices.any(|device| device.health != "Missing")
    });
    heard.map(|one| one.resource.to_string()).collect()
}

fn held(
    known: &HolderSnapshot,
    lends: &BTreeSet<String>,
) -> machinist_device::holders::DeviceHolders {
    let lends = lends.iter().map(String::as_str).collect();
    match known {
        HolderSnapshot::Known(holders) => holders.clone().only(&lends),
        HolderSnapshot::NotQueried | HolderSnapshot::Unknown(_) => {
            machinist_device::holders::DeviceHolders::default()
        }
    }
}

/// The number of devices of each resource that the kubelet may allocate, as advertised. Devices
/// allocated through claims are not included, since neither the kubelet nor the Node counts them.
pub(super) fn advertised_counts(status: &DevicesStatus) -> Vec<(String, usize)> {
    let counted = |one: &&ResourceStatus| one.registered && one.serve == ServeMode::DevicePlugin;
    let registered = status.devices.iter().filter(counted);
    registered
        .map(|one| {
            let healthy = one.devices.iter().filter(|it| it.health == "Healthy");
            (one.resource.to_string(), healthy.count())
        })
        .filter(|(_, healthy)| *healthy > 0)
        .collect()
}

/// Waits until the kubelet counts the re-enabled devices: a pod admitted before that would fail
/// permanently. An unresponsive kubelet is not waited for; the gates cover that.
pub(super) async fn wait_for_allocatable(devices: &DevicesHandle) {
    let until = Instant::now() + REENABLE_TIMEOUT;
    while Instant::now() < until {
        let wanted = advertised_counts(&devices.status_now());
        if wanted.is_empty() {
            return;
        }
        let Ok(counted) = devices.allocatable().await else {
            return;
        };
        let back =
            |(name, healthy): &(String, usize)| counted.get(name).copied().unwrap_or(0) >= *healthy;
        if wanted.iter().all(back) {
            return;
        }
        sleep(HOLDER_POLL_INTERVAL).await;
    }
    tracing::warn!("the kubelet does not report every re-enabled device as allocatable yet");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> PodId {
        PodId {
            namespace: "lab".into(),
            name: name.into(),
            uid: format!("uid-{name}"),
        }
    }

    #[test]
    fn pods_skipped_by_the_drain_are_not_waited_for_as_device_holders() {
        let judged = vec![
            (pod("goes"), true),
            (pod("stays"), false),
            (pod("stuck"), true),
        ];
        let fates = dispositions(judged, &[pod("stuck")]);
        let of = |name: &str| fates[&("lab".to_owned(), name.to_owned())];
        assert_eq!(of("goes"), HolderDisposition::Evicted);
        assert_eq!(of("stays"), HolderDisposition::Remains);
        assert_eq!(of("stuck"), HolderDisposition::Remains);
    }
}
