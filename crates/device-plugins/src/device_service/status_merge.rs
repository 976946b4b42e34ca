//! Computes the device status from the inventory, the kubelet's registrations and the published pool.

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;

use crate::{dra::DriverState, kubelet::KubeletState, plugin_proxy};
use machinist_device::{
    Inventory, Resource, ServeMode,
    holders::HolderSnapshot,
    status::{DevicesStatus, Registration},
    vendor_declaration::Vendors,
};

/// The minimum interval between updates: a restart of the kubelet changes the status once or twice
/// for each resource, at a time when the kubelet needs the CPU itself.
const MIN_STATUS_INTERVAL: Duration = Duration::from_millis(20);

/// All inputs of the status.
#[derive(Clone, Debug)]
pub(super) struct StatusMerge {
    pub(super) inventory: watch::Receiver<Arc<Inventory>>,
    pub(super) kubelet: watch::Receiver<KubeletState>,
    pub(super) driver: watch::Receiver<DriverState>,
    pub(super) holders: watch::Receiver<Arc<HolderSnapshot>>,
    pub(super) declared: watch::Receiver<Arc<Vendors>>,
    pub(super) plugin_problems: watch::Receiver<plugin_proxy::PluginProblems>,
}

impl StatusMerge {
    pub(super) fn now(&self) -> DevicesStatus {
        let kubelet = self.kubelet.borrow().clone();
        let inventory = self.inventory.borrow().clone();
        let holders = self.holders.borrow().clone();
        let driver = self.driver.borrow().clone();
        let registration = |resource: &Resource| {
            let as_plugin = kubelet.registrations.get(&resource.name);
            match resource.serve {
                ServeMode::DevicePlugin => {
                    as_plugin.cloned().or_else(|| held_back(&driver, resource))
                }
                ServeMode::Dra => Some(by_claim(&driver, resource, as_plugin.is_some())),
            }
        };
        let mut status = DevicesStatus::of(
            &inventory,
            &kubelet.presence,
            kubelet.attempts,
            &holders,
            registration,
        );
        let declared = self.declared.borrow();
        status.problems.extend(declared.problems.iter().cloned());
        let plugin_problems = self.plugin_problems.borrow();
        for problem in plugin_problems.values() {
            match problem {
                plugin_proxy::PluginProblem::Refused(why) => status.refused(why),
                plugin_proxy::PluginProblem::Unreachable(why) => status.add_unreachable_source(why),
            }
        }
        status
    }

    pub(super) async fn follow(mut self, publish: watch::Sender<Arc<DevicesStatus>>) {
        loop {
            self.inventory.mark_unchanged();
            self.kubelet.mark_unchanged();
            self.driver.mark_unchanged();
            self.holders.mark_unchanged();
            self.declared.mark_unchanged();
            self.plugin_problems.mark_unchanged();
            let (now, worked_out) = (self.now(), tokio::time::Instant::now());
            publish.send_if_modified(|known| {
                let is_changed = **known != now;
                if is_changed {
                    *known = Arc::new(now);
                }
                is_changed
            });
            tokio::select! {
                // All are cancel-safe: a change stays marked as unseen. The senders of these two end
                // only with the agent, when the status is not needed any more.
                changed = self.inventory.changed() => if changed.is_err() { return },
                changed = self.kubelet.changed() => if changed.is_err() { return },
                Ok(()) = self.driver.changed() => {}
                // If a sender has ended, its last value stays, and the other branches go on.
                Ok(()) = self.holders.changed() => {}
                Ok(()) = self.declared.changed() => {}
                Ok(()) = self.plugin_problems.changed() => {}
            }
            tokio::time::sleep_until(worked_out + MIN_STATUS_INTERVAL).await;
        }
    }
}

/// The registration of a device plugin that has to wait until claims end.
fn held_back(driver: &DriverState, resource: &Resource) -> Option<Registration> {
    driver.holding.contains(&resource.name).then(|| {
        let why = "its devices are allocated to claims, or may be";
        unregistered(driver, why)
    })
}

fn unregistered(driver: &DriverState, why: &str) -> Registration {
    Registration {
        registered: false,
        since: driver.since,
        reason: Some(why.to_owned()),
    }
}

/// The registration of a resource that is served by claims: whether its devices can be allocated by
/// the cluster and prepared by the kubelet.
fn by_claim(driver: &DriverState, resource: &Resource, plugin: bool) -> Registration {
    let published = &driver.published;
    let known = published.resources.as_ref();
    let offered = known.is_some_and(|known| known.contains(&resource.name));
    let why = if let Some(why) = resource.claim_incompatibility() {
        why
    } else if resource.advertised().next().is_none() {
        "it has no device yet"
    } else if plugin {
        "it is still registered as a device plugin"
    } else if let Some(why) = driver.reason.as_deref().or(published.problem.as_deref()) {
        why
    } else if !offered {
        "it is not published in a ResourceSlice yet"
    } else {
        return Registration {
            registered: true,
            since: driver.since,
            reason: None,
        };
    };
    unregistered(driver, why)
}
