//! The device service: starts the registry, the kubelet's device plugins, the vendor API and claims,
//! and gives access to their combined state.

mod holder_query;
mod serve_mode;
mod status_merge;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::watch;

pub use self::holder_query::KUBELET_CHECKPOINT_DELAY;

use self::{holder_query::HolderQuery, status_merge::StatusMerge};
use crate::{
    dra::{DraDriver, DriverDeps},
    kubelet::{self, Allocations, PodResourcesError, RegistrationMode},
    plugin_proxy,
    vendor_api::{self, OrderOutcome, VendorsHandle},
};
use machinist_base::shutdown::Tasks;
use machinist_device::{
    AllocationDisabled, Allowances,
    allocator::Allocators,
    dra::traits::{ClaimReader, DesiredPool, PublishedPool},
    holders::HolderSnapshot,
    registry::{DeclarationAllocator, Registry, RegistryError, RegistrySettings, UnitStates},
    status::DevicesStatus,
};
use machinist_rootfs::Root;

/// How long vendors may take to release their hardware: firmware may have to be parked.
const VENDOR_RELEASE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long allocation stays disabled while vendors take their hardware into use again.
pub const VENDOR_RESUME_TIMEOUT: Duration = Duration::from_secs(10);

/// The settings of the device service.
#[derive(Clone, Debug)]
pub struct DevicesSettings {
    /// What declarations may do beyond the defaults.
    pub allowances: Allowances,
    /// Whether to receive the kernel's uevents; if not set, only on a live root.
    pub uevents: Option<bool>,
    /// The interval between full rescans without an event.
    pub rescan: Duration,
    /// How long a stop waits for the last save of the device list.
    pub save_timeout: Duration,
    /// How resources are registered with the kubelet.
    pub registering: RegistrationMode,
    /// The state of the systemd units that declarations name.
    pub units: watch::Receiver<UnitStates>,
    /// Set if the previous agent had disabled allocation: it then stays disabled from the start.
    pub allocation_disabled: Option<AllocationDisabled>,
}

/// The device service; see [`DevicesService::start`].
#[derive(Debug)]
pub struct DevicesService;

/// A handle to the device service. Cheap to clone.
#[derive(Clone, Debug)]
pub struct DevicesHandle {
    registry: Registry,
    status: watch::Receiver<Arc<DevicesStatus>>,
    status_merge: StatusMerge,
    holder_query: HolderQuery,
    /// Allocations in progress: those by device plugins, then those for claims.
    giving: [watch::Receiver<Allocations>; 2],
    vendors: VendorsHandle,
    /// The inventory that the device plugins advertise to the kubelet.
    plugins: watch::Receiver<Arc<machinist_device::Inventory>>,
    claims: ClaimsSide,
}

/// The state of the DRA driver before it is started.
#[derive(Clone, Debug)]
struct ClaimsSide {
    /// The driver, until it is started or given up.
    driver: Arc<Mutex<Option<DraDriver>>>,
    inventory: watch::Receiver<Arc<machinist_device::Inventory>>,
    allocators: Allocators,
}

impl DevicesService {
    /// Starts all tasks. They end with `tasks`; resources stay registered with the kubelet.
    pub fn start(root: Root, settings: DevicesSettings, tasks: &Tasks) -> DevicesHandle {
        let uevents = settings.uevents.unwrap_or_else(|| root.is_live());
        let refused = settings.allocation_disabled.as_ref();
        let quiesced = refused.filter(|it| it.refuses).map(|it| it.why.to_string());
        let registering = settings.registering;
        let declared_paths =
            DeclarationAllocator::new(root.clone(), settings.allowances.mounts.clone());
        let settings = RegistrySettings {
            allowances: settings.allowances,
            uevents,
            rescan: settings.rescan,
            save_timeout: settings.save_timeout,
            units: settings.units,
            allocation_disabled: settings.allocation_disabled,
        };
        let registry = Registry::start(root.clone(), settings, tasks);
        let holder_query = HolderQuery::new(root.clone(), registry.inventory());
        let driver = DraDriver::load(root.clone());
        let declared = vendor_api::follow(root.clone(), tasks);
        let offers = registry.clone();
        let vendors = vendor_api::start(root.clone(), offers, declared.clone(), quiesced, tasks);
        let plugins = plugin_proxy::start(root.clone(), declared.clone(), registry.clone(), tasks);
        let plugin_problems = plugins.problems();
        let allocators = allocators(declared_paths, &vendors, plugins);
        let plugins = serve_mode::plugins(registry.inventory(), driver.state(), tasks);
        let offered = plugins.clone();
        let (kubelet, allocations) =
            kubelet::start(root, offered, allocators.clone(), registering, tasks);
        let status_merge = StatusMerge {
            inventory: registry.inventory(),
            kubelet: kubelet.clone(),
            driver: driver.state(),
            holders: holder_query.known(),
            declared,
            plugin_problems,
        };
        let current_status = status_merge.clone();
        let (publish, status) = watch::channel(Arc::new(status_merge.now()));
        // All three are cancel-safe: they keep no state between two changes, and the holders are
        // requested again.
        until_stopped("device status", status_merge.follow(publish), tasks);
        let removed = holder_query.clone().log_removed_held_devices();
        until_stopped("removed devices", removed, tasks);
        let after = holder_query
            .clone()
            .query_after_allocations(allocations.clone());
        until_stopped("device holders", after, tasks);
        let preparing = driver.preparing();
        let claims = ClaimsSide {
            driver: Arc::new(Mutex::new(Some(driver))),
            inventory: serve_mode::claims(registry.inventory(), kubelet, tasks),
            allocators,
        };
        DevicesHandle {
            registry,
            status,
            status_merge: current_status,
            holder_query,
            giving: [allocations, preparing],
            vendors,
            plugins,
            claims,
        }
    }
}

fn allocators(
    files: DeclarationAllocator,
    vendors: &VendorsHandle,
    plugins: Arc<plugin_proxy::PluginProxy>,
) -> Allocators {
    Allocators {
        file: Some(Arc::new(files)),
        vendor: Some(Arc::new(vendors.clone())),
        plugin: Some(plugins),
    }
}

/// Spawns a task that may be cancelled at any await point.
fn until_stopped(
    name: &'static str,
    work: impl Future<Output = ()> + Send + 'static,
    tasks: &Tasks,
) {
    let stop = tasks.token();
    tasks.spawn(name, async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = work => {}
        }
    });
}

impl DevicesHandle {
    /// A watch of the status: all resources, their devices and registrations.
    pub fn status(&self) -> watch::Receiver<Arc<DevicesStatus>> {
        self.status.clone()
    }

    /// The status, computed from the current state.
    pub fn status_now(&self) -> DevicesStatus {
        self.status_merge.now()
    }

    /// Disables new allocations: every device is advertised as unhealthy. A pod that the kubelet has
    /// admitted already still gets its devices.
    pub async fn disable_allocation(&self, reason: impl AsRef<str>) -> Result<(), RegistryError> {
        let disabled = allocation_disabled(reason.as_ref(), false);
        self.registry.disable_allocation(disabled).await?;
        self.wait_for_allocation_state().await;
        Ok(())
    }

    /// Waits until the device plugins and the DRA driver have the registry's current `allocation_disabled`
    /// state.
    async fn wait_for_allocation_state(&self) {
        let registry = self.registry.inventory();
        for mut side in [self.plugins.clone(), self.claims.inventory.clone()] {
            let heeds = |side: &Arc<machinist_device::Inventory>| {
                side.allocation_disabled == registry.borrow().allocation_disabled
            };
            // If one of them has ended, it allocates nothing any more.
            let _ = side.wait_for(heeds).await;
        }
    }

    /// Disables all allocations: vendors are asked to release their hardware, then `Allocate` is
    /// refused too. A vendor that does not release its hardware in time is logged, and the call goes
    /// on.
    pub async fn quiesce(&self, reason: impl AsRef<str>) -> Result<(), RegistryError> {
        let reason = reason.as_ref();
        log_noncompliant(
            "release its hardware",
            self.vendors.quiesce(reason, VENDOR_RELEASE_TIMEOUT).await,
        );
        self.registry
            .disable_allocation(allocation_disabled(reason, true))
            .await?;
        self.wait_for_allocation_state().await;
        Ok(())
    }

    /// A watch of the inventory, which includes the units that declarations want stopped before the
    /// machine is changed or goes down.
    pub fn inventory(&self) -> watch::Receiver<Arc<machinist_device::Inventory>> {
        self.registry.inventory()
    }

    /// Enables allocation again, after vendors had time to take their hardware into use again.
    pub async fn enable_allocation(&self) -> Result<(), RegistryError> {
        if self.vendors.are_quiesced() {
            log_noncompliant(
                "resume its hardware",
                self.vendors.resume(VENDOR_RESUME_TIMEOUT).await,
            );
        }
        self.registry.enable_allocation().await?;
        self.wait_for_allocation_state().await;
        Ok(())
    }

    /// Asks the kubelet which container has which device, at most ten times a second; concurrent
    /// callers share one answer. The answer is then available from [`DevicesHandle::status_now`] and
    /// [`DevicesHandle::holders`].
    pub async fn ask_holders(&self) {
        self.holder_query.shared().await;
    }

    /// A watch of the last known holders.
    pub fn holders(&self) -> watch::Receiver<Arc<HolderSnapshot>> {
        self.holder_query.known()
    }

    /// Asks the kubelet for the holders now.
    pub async fn holders_now(&self) -> Result<Arc<HolderSnapshot>, PodResourcesError> {
        self.holder_query.now().await
    }

    /// The kubelet's allocatable devices: how many of each resource.
    pub async fn allocatable(&self) -> Result<BTreeMap<String, usize>, PodResourcesError> {
        self.holder_query.allocatable().await
    }

    /// Whether an allocation for a container or a claim is in progress, or so recent that the kubelet
    /// may not have written its checkpoint yet.
    pub fn is_allocating(&self) -> bool {
        let mut giving = self.giving.iter();
        giving.any(|giving| giving.borrow().is_allocating(KUBELET_CHECKPOINT_DELAY))
    }

    /// The vendors that use the vendor API: to notify them of maintenance, and to read their state.
    pub const fn vendors(&self) -> &VendorsHandle {
        &self.vendors
    }

    /// Starts serving claims. `node` is the name of the Node, `published` is what was published to
    /// the cluster. Returns a watch of the pool to publish; none if the driver was started or given
    /// up before.
    pub fn serve_claims(
        &self,
        node: &str,
        claims: Arc<dyn ClaimReader>,
        published: watch::Receiver<PublishedPool>,
        tasks: &Tasks,
    ) -> Option<watch::Receiver<DesiredPool>> {
        let driver = self.claims.take()?;
        let with = DriverDeps {
            node: node.to_owned(),
            claims,
            given: Arc::new(self.holder_query.clone()),
            allocators: self.claims.allocators.clone(),
            inventory: self.claims.inventory.clone(),
            published,
        };
        Some(driver.start(with, tasks))
    }

    /// Gives up serving claims, for the reason `why`.
    pub fn without_claims(&self, why: &str) {
        if let Some(driver) = self.claims.take() {
            driver.abandon_driver(why);
        }
    }

    /// The pool generation that an earlier agent published.
    pub fn published(&self) -> PublishedPool {
        self.status_merge.driver.borrow().published.clone()
    }

    /// Reads all declarations and scans all devices now.
    pub async fn rescan(&self) -> Result<(), RegistryError> {
        self.registry.rescan().await
    }
}

impl ClaimsSide {
    fn take(&self) -> Option<DraDriver> {
        let mut driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
        driver.take()
    }
}

/// Logs the vendors that did not comply. A disconnected vendor holds no hardware.
pub fn log_noncompliant(what: &str, vendors: BTreeMap<String, OrderOutcome>) {
    for (name, obeyed) in vendors {
        let why = match obeyed {
            OrderOutcome::Done | OrderOutcome::Disconnected => continue,
            OrderOutcome::Refused(why) => why,
            OrderOutcome::TimedOut => "no answer in time".to_owned(),
        };
        tracing::warn!(vendor = %name, "vendor {name} failed to {what}: {why}");
    }
}

/// The state that disables allocation, for the reason `why`.
pub fn allocation_disabled(why: &str, refuses: bool) -> AllocationDisabled {
    let why = why.into();
    AllocationDisabled { why, refuses }
}
