//! Stops the users of devices before another daemon reboots this machine, and starts them again
//! when the shutdown was cancelled or has happened.

mod stopped_units;

pub use stopped_units::{RecordError, units_to_restart};

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;

use machinist_base::{error_chain::chain, shutdown::Tasks};
use machinist_device::Inventory;
use machinist_device_plugins::{
    device_service::{DevicesHandle, VENDOR_RESUME_TIMEOUT, log_noncompliant},
    vendor_api::VendorsHandle,
};
use machinist_rootfs::Root;
use machinist_status::settings::{AgentRole, Settings};
use machinist_systemd::{ActiveState, JobVerb, ShutdownHooks, Systemd, around_shutdowns};

/// The reason passed to vendor drivers.
const SHUTDOWN_REASON: &str = "the machine is shutting down";
/// The reason shown by `systemd-inhibit --list`.
const INHIBIT_REASON: &str = "stopping units that use devices before shutdown";

/// Timeout for starting a unit.
const UNIT_START_TIMEOUT: Duration = Duration::from_secs(90);

/// Starts to watch for shutdowns if another daemon orders them, which is so if `config` is not this
/// agent's role.
pub(super) fn start(
    root: &Root,
    settings: &Settings,
    systemd: Option<&Systemd>,
    devices: &DevicesHandle,
    tasks: &Tasks,
) {
    let (Some(systemd), false) = (systemd, settings.has_role(AgentRole::Config)) else {
        return;
    };
    let follow = follow(
        systemd.clone(),
        root.clone(),
        devices.inventory(),
        Some(devices.vendors().clone()),
        tasks.token(),
    );
    tasks.spawn("quiesced units", follow);
}

/// Runs until `stop`. The inhibitor lock is released with this process, so a shutdown never waits
/// for one that has ended.
pub async fn follow(
    systemd: Systemd,
    root: Root,
    mut inventory: watch::Receiver<Arc<Inventory>>,
    vendors: Option<VendorsHandle>,
    stop: CancellationToken,
) {
    let mut units = QuiescedUnits::new(systemd.clone(), root, inventory.clone());
    units.vendors.clone_from(&vendors);
    let mut vendors = vendors;
    let (tell, wanted) = watch::channel(false);
    let declared = async {
        loop {
            let programs = vendors.as_ref().is_some_and(VendorsHandle::any);
            let any = programs || !inventory.borrow_and_update().stop_units.is_empty();
            tell.send_if_modified(|known| std::mem::replace(known, any) != any);
            let come_or_go = async {
                match &mut vendors {
                    Some(vendors) => vendors.vendors_changed().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // Both are cancel-safe: a change stays marked as unseen.
                changed = inventory.changed() => if changed.is_err() {
                    std::future::pending::<()>().await;
                },
                () = come_or_go => {}
            }
        }
    };
    let login = systemd.login();
    let followed = async {
        units.start_stopped_units().await;
        around_shutdowns(&login, INHIBIT_REASON, wanted, units).await;
    };
    tokio::select! {
        // All are cancel-safe: stopped units are recorded in a file until they were started.
        () = stop.cancelled() => {}
        () = declared => {}
        () = followed => {}
    }
}

/// The users of devices: the units that declarations name, and vendor drivers.
#[derive(Debug)]
pub struct QuiescedUnits {
    systemd: Systemd,
    root: Root,
    inventory: watch::Receiver<Arc<Inventory>>,
    vendors: Option<VendorsHandle>,
}

impl QuiescedUnits {
    /// Creates it without any action.
    pub fn new(systemd: Systemd, root: Root, inventory: watch::Receiver<Arc<Inventory>>) -> Self {
        Self {
            systemd,
            root,
            inventory,
            vendors: None,
        }
    }

    /// Asks vendor drivers to release their hardware. A driver that is not connected holds none.
    async fn quiesce(&self, within: Duration) {
        let Some(vendors) = &self.vendors else { return };
        let done = vendors.quiesce(SHUTDOWN_REASON, within).await;
        log_noncompliant("released its hardware", done);
    }

    /// Starts the recorded units, unless the machine is already going down.
    async fn start_stopped_units(&self) {
        let going = self.systemd.is_shutting_down().await;
        if !matches!(going, Ok(true)) {
            self.start_again().await;
        }
    }

    async fn stop_all(&self, within: Duration) {
        let declared: Vec<String> = {
            let inventory = self.inventory.borrow();
            inventory.stop_units.iter().cloned().collect()
        };
        let names: Vec<&str> = declared.iter().map(String::as_str).collect();
        let states = match self.systemd.active_units(&names).await {
            Ok(states) => states,
            Err(error) => {
                tracing::warn!("failed to stop units that use devices: {}", chain(&error));
                return;
            }
        };
        let (running, leaving) = not_down(states);
        // A unit that is not recorded would stay stopped.
        if !running.is_empty()
            && let Err(error) = self.add(running.clone()).await
        {
            tracing::error!("failed to stop units that use devices: {}", chain(&error));
            return;
        }
        let mut stopping = JoinSet::new();
        for unit in running.into_iter().chain(leaving) {
            let systemd = self.systemd.clone();
            stopping.spawn(async move {
                tracing::info!(unit, "stopping {unit} for shutdown");
                let ended = systemd.run_job(JobVerb::Stop, &unit, within).await;
                let failed = match ended {
                    Ok(result) => result.reason().map(|reason| reason.to_string()),
                    Err(error) => Some(chain(&error)),
                };
                if let Some(why) = failed {
                    tracing::error!(unit, "failed to stop {unit} before shutdown: {why}");
                }
            });
        }
        while stopping.join_next().await.is_some() {}
    }

    async fn start_again(&self) {
        let mut record = match self.blocking(stopped_units::read).await {
            Ok(record) => record,
            Err(error) => {
                tracing::error!(
                    "failed to start units stopped for a shutdown: {}",
                    chain(&error)
                );
                return;
            }
        };
        if record.units.is_empty() {
            return;
        }
        for unit in std::mem::take(&mut record.units) {
            match self
                .systemd
                .run_job(JobVerb::Start, &unit, UNIT_START_TIMEOUT)
                .await
            {
                Ok(result) if result.reason().is_none() => {
                    tracing::info!(unit, "{unit} started again");
                }
                Ok(result) => {
                    tracing::error!(
                        unit,
                        "failed to start {unit}, stopped for a reboot: {result:?}"
                    );
                }
                Err(error) => {
                    tracing::error!(
                        unit,
                        "failed to start {unit}, stopped for a reboot: {}",
                        chain(&error)
                    );
                    // Retried at the next start if the error is transient.
                    if error.is_retryable() {
                        record.units.insert(unit);
                    }
                }
            }
        }
        let saved = self.blocking(move |root| stopped_units::write(root, &record));
        if let Err(error) = saved.await {
            tracing::warn!("{}", chain(&error));
        }
    }

    /// Units that an earlier shutdown stopped and that were not started since stay in the record.
    async fn add(&self, units: Vec<String>) -> Result<(), RecordError> {
        let add = move |root: &Root| {
            let mut record = stopped_units::read_to_add(root)?;
            record.units.extend(units);
            stopped_units::write(root, &record)
        };
        self.blocking(add).await
    }

    async fn blocking<T: Send + Default + 'static>(
        &self,
        act: impl FnOnce(&Root) -> Result<T, RecordError> + Send + 'static,
    ) -> Result<T, RecordError> {
        let root = self.root.clone();
        let done = tokio::task::spawn_blocking(move || act(&root)).await;
        // A lost task is a defect and is logged.
        done.unwrap_or_else(|_| Ok(T::default()))
    }
}

/// Running units, and units that are already stopping: the latter may still have a device open, but
/// are not started again.
fn not_down(states: BTreeMap<String, ActiveState>) -> (Vec<String>, Vec<String>) {
    let (mut up, mut leaving) = (Vec::new(), Vec::new());
    for (unit, state) in states {
        match state {
            ActiveState::Inactive | ActiveState::Failed => {}
            ActiveState::Deactivating => leaving.push(unit),
            _ => up.push(unit),
        }
    }
    (up, leaving)
}

impl ShutdownHooks for QuiescedUnits {
    async fn before(&mut self, within: Duration) {
        // Units may use hardware of vendor drivers, so they are stopped first and get half of the
        // time.
        let half = match self.vendors.as_ref().is_some_and(VendorsHandle::any) {
            true => within / 2,
            false => within,
        };
        let all = async {
            if tokio::time::timeout(half, self.stop_all(within))
                .await
                .is_err()
            {
                tracing::warn!("stopping units that use devices takes longer than expected");
            }
            self.quiesce(within - half).await;
        };
        if tokio::time::timeout(within, all).await.is_err() {
            tracing::error!(
                "the machine shuts down although units that use devices are still stopping"
            );
        }
    }

    async fn after(&mut self) {
        tracing::info!("the shutdown was cancelled");
        if let Some(vendors) = &self.vendors {
            log_noncompliant(
                "resumed its hardware",
                vendors.resume(VENDOR_RESUME_TIMEOUT).await,
            );
        }
        self.start_again().await;
    }
}
