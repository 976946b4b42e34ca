//! Devices as one service: the registry, the kubelet's plugins, and what is said of both.

mod asking;
mod joined;
mod sides;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::watch;

pub use self::asking::WRITTEN_DOWN;

use self::{asking::Asking, joined::Joined};
use super::{
    Allowances, Withheld,
    answer::Answerers,
    dra::ports::{Claims, Published, Wish},
    holders::Known,
    registry::{AskError, Declared, Registry, RegistrySettings, UnitStates},
    status::DevicesStatus,
};
use crate::{
    dra::{Driver, Surroundings},
    kubelet::{self, Allocations, PodResourcesError, Registering},
    proxy,
    root::Root,
    shutdown::Tasks,
    vendor::{self, Obeyed, VendorsHandle},
};

/// How long vendors may take to let go of their hardware: firmware has to be parked.
const LET_GO: Duration = Duration::from_secs(30);
/// How long devices are not lent while vendors take their hardware up again.
pub const TAKE_UP: Duration = Duration::from_secs(10);

/// What the service needs to know.
#[derive(Clone, Debug)]
pub struct DevicesSettings {
    /// What declarations may do beyond the defaults.
    pub allowances: Allowances,
    /// Whether the kernel's device events are listened to; when not said, on a live root only.
    pub uevents: Option<bool>,
    /// How often hardware is looked at without an event.
    pub rescan: Duration,
    /// How the kubelet learns of resources.
    pub registering: Registering,
    /// The state of the units that declarations go by.
    pub units: watch::Receiver<UnitStates>,
    /// Nothing is lent from the very start: the agent before had withheld it.
    pub withheld: Option<Withheld>,
}

/// The service; see [`DevicesService::start`].
#[derive(Debug)]
pub struct DevicesService;

/// Everyone else's view of the service. Cheap to clone.
#[derive(Clone, Debug)]
pub struct DevicesHandle {
    registry: Registry,
    status: watch::Receiver<Arc<DevicesStatus>>,
    joined: Joined,
    asking: Asking,
    /// What containers are being given, and claims.
    giving: [watch::Receiver<Allocations>; 2],
    vendors: VendorsHandle,
    /// What is offered to the kubelet.
    plugins: watch::Receiver<Arc<super::Inventory>>,
    claims: ClaimsSide,
}

/// What serving claims begins with, when there is a cluster.
#[derive(Clone, Debug)]
struct ClaimsSide {
    /// Until it is started, or given up.
    driver: Arc<Mutex<Option<Driver>>>,
    inventory: watch::Receiver<Arc<super::Inventory>>,
    answerers: Answerers,
}

impl DevicesService {
    /// Starts everything. Ends with `tasks`, without withdrawing anything from the kubelet.
    pub fn start(root: Root, settings: DevicesSettings, tasks: &Tasks) -> DevicesHandle {
        let uevents = settings.uevents.unwrap_or_else(|| root.is_live());
        let withheld = settings.withheld.as_ref().filter(|it| it.refuses);
        let quiesced = withheld.map(|withheld| withheld.why.to_string());
        let registering = settings.registering;
        let declared_paths = Declared::new(root.clone(), settings.allowances.mounts.clone());
        let settings = RegistrySettings {
            allowances: settings.allowances,
            uevents,
            rescan: settings.rescan,
            units: settings.units,
            withheld: settings.withheld,
        };
        let registry = Registry::start(root.clone(), settings, tasks);
        let asking = Asking::new(root.clone(), registry.inventory());
        let driver = Driver::load(root.clone());
        let declared = vendor::follow(root.clone(), tasks);
        let vendors = vendor::start(
            root.clone(),
            registry.clone(),
            declared.clone(),
            quiesced,
            tasks,
        );
        let plugins = proxy::start(root.clone(), declared.clone(), registry.clone(), tasks);
        let of_plugins = plugins.problems();
        let answerers = answerers(declared_paths, &vendors, plugins);
        let plugins = sides::plugins(registry.inventory(), driver.state(), tasks);
        let (kubelet, allocations) =
            kubelet::start(root, plugins.clone(), answerers.clone(), registering, tasks);
        let joined = Joined {
            inventory: registry.inventory(),
            kubelet: kubelet.clone(),
            driver: driver.state(),
            holders: asking.known(),
            declared,
            of_plugins,
        };
        let of_now = joined.clone();
        let (publish, status) = watch::channel(Arc::new(joined.now()));
        // Safe to drop, all: nothing is kept between two changes, and who has what is asked anew.
        until_stopped("device status", joined.follow(publish), tasks);
        until_stopped("devices that go", asking.clone().tell_of_gone(), tasks);
        let after = asking.clone().after_each(allocations.clone());
        until_stopped("device holders", after, tasks);
        let preparing = driver.preparing();
        let claims = ClaimsSide {
            driver: Arc::new(Mutex::new(Some(driver))),
            inventory: sides::claims(registry.inventory(), kubelet, tasks),
            answerers,
        };
        DevicesHandle {
            registry,
            status,
            joined: of_now,
            asking,
            giving: [allocations, preparing],
            vendors,
            plugins,
            claims,
        }
    }
}

fn answerers(files: Declared, vendors: &VendorsHandle, plugins: Arc<proxy::Proxy>) -> Answerers {
    Answerers {
        file: Some(Arc::new(files)),
        vendor: Some(Arc::new(vendors.clone())),
        plugin: Some(plugins),
    }
}

/// A task that may end anywhere.
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
    /// All resources, their devices and registrations, now and whenever something changes.
    pub fn status(&self) -> watch::Receiver<Arc<DevicesStatus>> {
        self.status.clone()
    }

    /// The same, worked out from what is known at this moment.
    pub fn status_now(&self) -> DevicesStatus {
        self.joined.now()
    }

    /// Lends nothing to anybody new: every device is listed as unhealthy. A pod that the kubelet has
    /// admitted already still gets what it was promised.
    pub async fn withhold(&self, reason: impl AsRef<str>) -> Result<(), AskError> {
        let withheld = withheld(reason.as_ref(), false);
        self.registry.withhold(withheld).await?;
        self.heeded().await;
        Ok(())
    }

    /// Waits until both sides go by what the registry was told: who asked may count on it from then on.
    async fn heeded(&self) {
        let registry = self.registry.inventory();
        for mut side in [self.plugins.clone(), self.claims.inventory.clone()] {
            let heeds = |side: &Arc<super::Inventory>| side.withheld == registry.borrow().withheld;
            // A side that has ended lends nothing any more.
            let _ = side.wait_for(heeds).await;
        }
    }

    /// Lends nothing to anybody: vendors are told to let go of their hardware, then `Allocate` is refused,
    /// too. A vendor that does not is named in the log; the machine does not wait for it for ever.
    pub async fn quiesce(&self, reason: impl AsRef<str>) -> Result<(), AskError> {
        let reason = reason.as_ref();
        tell_of(
            "let go of its hardware",
            self.vendors.quiesce(reason, LET_GO).await,
        );
        self.registry.withhold(withheld(reason, true)).await?;
        self.heeded().await;
        Ok(())
    }

    /// Units that declarations want stopped before the machine is changed or goes down; and whenever that
    /// changes.
    pub fn inventory(&self) -> watch::Receiver<Arc<super::Inventory>> {
        self.registry.inventory()
    }

    /// Ends withholding, once vendors had the time to take their hardware up again.
    pub async fn release(&self) -> Result<(), AskError> {
        if self.vendors.are_quiesced() {
            tell_of(
                "taken its hardware up again",
                self.vendors.resume(TAKE_UP).await,
            );
        }
        self.registry.release().await?;
        self.heeded().await;
        Ok(())
    }

    /// Asks the kubelet who has which device, at most ten times a second; all who call in the meantime wait
    /// for one answer. What it said is in [`DevicesHandle::status_now`] and in [`DevicesHandle::holders`] from then on.
    pub async fn ask_holders(&self) {
        self.asking.shared().await;
    }

    /// What was said of the holders last.
    pub fn holders(&self) -> watch::Receiver<Arc<Known>> {
        self.asking.known()
    }

    /// Asks the kubelet now.
    pub async fn holders_now(&self) -> Result<Arc<Known>, PodResourcesError> {
        self.asking.now().await
    }

    /// What the kubelet could give to containers now: how many devices of each resource.
    pub async fn allocatable(&self) -> Result<BTreeMap<String, usize>, PodResourcesError> {
        self.asking.allocatable().await
    }

    /// Whether the kubelet is being given devices, for a container or for a claim, or may not have written
    /// down yet what it was given.
    pub fn is_giving(&self) -> bool {
        let mut giving = self.giving.iter();
        giving.any(|giving| giving.borrow().is_giving(WRITTEN_DOWN))
    }

    /// Vendors that speak for themselves: to tell them what the machine is about to do, and what is said of
    /// them.
    pub const fn vendors(&self) -> &VendorsHandle {
        &self.vendors
    }

    /// Serves claims from now on: `node` is the Node's name, `published` what the cluster was told. Says what it is
    /// to be told; none when that was begun or given up before.
    pub fn serve_claims(
        &self,
        node: &str,
        claims: Arc<dyn Claims>,
        published: watch::Receiver<Published>,
        tasks: &Tasks,
    ) -> Option<watch::Receiver<Wish>> {
        let driver = self.claims.take()?;
        let with = Surroundings {
            node: node.to_owned(),
            claims,
            given: Arc::new(self.asking.clone()),
            answerers: self.claims.answerers.clone(),
            inventory: self.claims.inventory.clone(),
            published,
        };
        Some(driver.start(with, tasks))
    }

    /// Nobody can claim anything here, for this reason.
    pub fn without_claims(&self, why: &str) {
        if let Some(driver) = self.claims.take() {
            driver.give_up(why);
        }
    }

    /// What an earlier agent wrote as the generation of this node's pool.
    pub fn published(&self) -> Published {
        self.joined.driver.borrow().published.clone()
    }

    /// Reads all declarations and looks at all devices now.
    pub async fn rescan(&self) -> Result<(), AskError> {
        self.registry.rescan().await
    }
}

impl ClaimsSide {
    fn take(&self) -> Option<Driver> {
        let mut driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
        driver.take()
    }
}

/// Names the vendors that did not do as they were told. Who is away holds nothing.
pub fn tell_of(what: &str, vendors: BTreeMap<String, Obeyed>) {
    for (name, obeyed) in vendors {
        let why = match obeyed {
            Obeyed::Done | Obeyed::Away => continue,
            Obeyed::Refused(why) => why,
            Obeyed::TooLate => "no answer in time".to_owned(),
        };
        tracing::warn!(vendor = %name, "vendor {name} has not {what}: {why}");
    }
}

/// That nothing is lent, for this reason.
pub fn withheld(why: &str, refuses: bool) -> Withheld {
    let why = why.into();
    Withheld { why, refuses }
}
