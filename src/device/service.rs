//! Devices as one service: the registry, the kubelet's plugins, and what is said of both.

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;

use super::{
    Allowances,
    registry::{AskError, Registry, RegistrySettings},
    status::DevicesStatus,
};
use crate::{
    kubelet::{self, KubeletState},
    root::Root,
    shutdown::Tasks,
};

/// What the service needs to know.
#[derive(Clone, Debug)]
pub struct DevicesSettings {
    /// What declarations may do beyond the defaults.
    pub allowances: Allowances,
    /// Whether the kernel's device events are listened to; when not said, on a live root only.
    pub uevents: Option<bool>,
    /// How often hardware is looked at without an event.
    pub rescan: Duration,
}

/// The service; see [`DevicesService::start`].
#[derive(Debug)]
pub struct DevicesService;

/// Everyone else's view of the service. Cheap to clone.
#[derive(Clone, Debug)]
pub struct DevicesHandle {
    registry: Registry,
    status: watch::Receiver<Arc<DevicesStatus>>,
}

impl DevicesService {
    /// Starts everything. Ends with `tasks`, without withdrawing anything from the kubelet.
    pub fn start(root: Root, settings: DevicesSettings, tasks: &Tasks) -> DevicesHandle {
        let uevents = settings.uevents.unwrap_or_else(|| root.is_live());
        let settings = RegistrySettings {
            allowances: settings.allowances,
            uevents,
            rescan: settings.rescan,
        };
        let registry = Registry::start(root.clone(), settings, tasks);
        let kubelet = kubelet::start(root, registry.inventory(), tasks);
        let joined = Joined {
            inventory: registry.inventory(),
            kubelet,
        };
        let (publish, status) = watch::channel(Arc::new(joined.now()));
        let stop = tasks.token();
        tasks.spawn("device status", async move {
            tokio::select! {
                // Safe to drop: nothing is kept between two changes.
                () = stop.cancelled() => {}
                () = joined.follow(publish) => {}
            }
        });
        DevicesHandle { registry, status }
    }
}

impl DevicesHandle {
    /// All resources, their devices and registrations, now and whenever something changes.
    pub fn status(&self) -> watch::Receiver<Arc<DevicesStatus>> {
        self.status.clone()
    }

    /// Lends nothing any more: every device is listed as unhealthy, and `Allocate` is refused.
    pub async fn withhold(&self, reason: impl Into<String>) -> Result<(), AskError> {
        self.registry.withhold(reason).await
    }

    /// Ends withholding.
    pub async fn release(&self) -> Result<(), AskError> {
        self.registry.release().await
    }

    /// Reads all declarations and looks at all devices now.
    pub async fn rescan(&self) -> Result<(), AskError> {
        self.registry.rescan().await
    }
}

struct Joined {
    inventory: watch::Receiver<Arc<super::Inventory>>,
    kubelet: watch::Receiver<KubeletState>,
}

impl Joined {
    fn now(&self) -> DevicesStatus {
        let kubelet = self.kubelet.borrow().clone();
        let inventory = self.inventory.borrow().clone();
        let registration = |name: &super::ResourceName| kubelet.registrations.get(name).cloned();
        DevicesStatus::of(
            &inventory,
            &kubelet.presence,
            kubelet.attempts,
            registration,
        )
    }

    async fn follow(mut self, publish: watch::Sender<Arc<DevicesStatus>>) {
        loop {
            self.inventory.mark_unchanged();
            self.kubelet.mark_unchanged();
            let now = self.now();
            publish.send_if_modified(|known| {
                let news = **known != now;
                if news {
                    *known = Arc::new(now);
                }
                news
            });
            tokio::select! {
                // Safe to drop: a change stays marked as unseen.
                changed = self.inventory.changed() => if changed.is_err() { return },
                changed = self.kubelet.changed() => if changed.is_err() { return },
            }
        }
    }
}
