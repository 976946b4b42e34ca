//! Beside another daemon that reboots this machine: what uses devices is stopped before it goes down, and
//! runs again when that was called off or is over.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{Job, Settings},
    device::{Inventory, service::DevicesHandle},
    path::AbsPath,
    root::{Root, RootError},
    shutdown::Tasks,
    systemd::{Active, Around, Systemd, Verb, around_shutdowns},
    telemetry::chain,
};

/// Which units were stopped, so that whoever starts next starts exactly these.
const FILE: &str = "/var/lib/machinist/quiesced.json";
/// Sixteen names for each declaration, 255 bytes at most.
const LARGEST: u64 = 1024 * 1024;

/// Why, as `systemd-inhibit --list` shows it.
const WHY: &str = "units that use devices are stopped first";

/// How long a unit may take to start.
const START: Duration = Duration::from_secs(90);

/// Starts to look after shutdowns where another daemon orders them: where configs are not this agent's job.
pub(super) fn start(
    root: &Root,
    settings: &Settings,
    systemd: Option<&Systemd>,
    devices: Option<&DevicesHandle>,
    tasks: &Tasks,
) {
    let (Some(systemd), Some(devices), false) = (systemd, devices, settings.does(Job::Config))
    else {
        return;
    };
    let follow = follow(
        systemd.clone(),
        root.clone(),
        devices.inventory(),
        tasks.token(),
    );
    tasks.spawn("quiesced units", follow);
}

/// Until `stop`. The lock goes with this process: a shutdown never waits for one that has ended.
pub async fn follow(
    systemd: Systemd,
    root: Root,
    mut inventory: watch::Receiver<Arc<Inventory>>,
    stop: CancellationToken,
) {
    let units = Units::new(systemd.clone(), root, inventory.clone());
    units.start_what_was_stopped().await;
    let (tell, wanted) = watch::channel(false);
    let declared = async {
        loop {
            let any = !inventory.borrow_and_update().stop_units.is_empty();
            tell.send_if_modified(|known| std::mem::replace(known, any) != any);
            if inventory.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    let login = systemd.login();
    tokio::select! {
        // Safe to drop, all: what was stopped stands in a file.
        () = stop.cancelled() => {}
        () = declared => {}
        () = around_shutdowns(&login, WHY, wanted, units) => {}
    }
}

/// The units that declarations name.
#[derive(Debug)]
pub struct Units {
    systemd: Systemd,
    root: Root,
    inventory: watch::Receiver<Arc<Inventory>>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Stopped {
    units: BTreeSet<String>,
}

impl Units {
    /// Nothing is done yet.
    pub fn new(systemd: Systemd, root: Root, inventory: watch::Receiver<Arc<Inventory>>) -> Self {
        Self {
            systemd,
            root,
            inventory,
        }
    }

    /// Unless the machine is going down already.
    async fn start_what_was_stopped(&self) {
        let going = self.systemd.going_down().await;
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
                tracing::warn!("units that use devices are not stopped: {}", chain(&error));
                return;
            }
        };
        let running = running(states);
        if running.is_empty() {
            return;
        }
        // What an earlier shutdown stopped and nobody started again stays to be started.
        let mut record = self.load().await;
        record.units.extend(running.iter().cloned());
        if let Err(error) = self.save(record).await {
            // What is not recorded would stay stopped.
            tracing::error!("units that use devices are not stopped: {}", chain(&error));
            return;
        }
        let mut stopping = JoinSet::new();
        for unit in running {
            let systemd = self.systemd.clone();
            stopping.spawn(async move {
                tracing::info!(unit, "the machine goes down: stopping {unit}");
                let ended = systemd.run_job(Verb::Stop, &unit, within).await;
                let failed = match ended {
                    Ok(result) => result.reason().map(|reason| reason.to_string()),
                    Err(error) => Some(chain(&error)),
                };
                if let Some(why) = failed {
                    tracing::error!(
                        unit,
                        "{unit} does not stop before the machine goes down: {why}"
                    );
                }
            });
        }
        while stopping.join_next().await.is_some() {}
    }

    async fn start_again(&self) {
        let mut record = self.load().await;
        if record.units.is_empty() {
            return;
        }
        for unit in std::mem::take(&mut record.units) {
            match self.systemd.run_job(Verb::Start, &unit, START).await {
                Ok(result) if result.reason().is_none() => {
                    tracing::info!(unit, "{unit} runs again");
                }
                Ok(result) => {
                    tracing::error!(
                        unit,
                        "{unit} was stopped for a reboot and does not start again: {result:?}"
                    );
                }
                Err(error) => {
                    tracing::error!(
                        unit,
                        "{unit} was stopped for a reboot and does not start again: {}",
                        chain(&error)
                    );
                    // Tried again at the next start, where that may help.
                    if error.again() {
                        record.units.insert(unit);
                    }
                }
            }
        }
        if let Err(error) = self.save(record).await {
            tracing::warn!("{}", chain(&error));
        }
    }

    async fn load(&self) -> Stopped {
        let root = self.root.clone();
        let read = move || {
            let path = AbsPath::new(FILE).ok()?;
            match root.read_nofollow(&path, LARGEST) {
                Ok(bytes) => Some(bytes),
                Err(error) if error.is_not_found() => None,
                Err(error) => {
                    tracing::warn!("{}", chain(&error));
                    None
                }
            }
        };
        let bytes = tokio::task::spawn_blocking(read).await.ok().flatten();
        let read = bytes.map(|bytes| serde_json::from_slice(&bytes));
        read.transpose()
            .unwrap_or_else(|error| {
                tracing::warn!(file = FILE, %error, "which units were stopped cannot be read");
                None
            })
            .unwrap_or_default()
    }

    async fn save(&self, record: Stopped) -> Result<(), RootError> {
        let root = self.root.clone();
        let write = move || {
            let (Ok(path), Ok(bytes)) = (AbsPath::new(FILE), serde_json::to_vec(&record)) else {
                return Ok(());
            };
            if record.units.is_empty() {
                return match root.remove_file(&path) {
                    Err(error) if error.is_not_found() => Ok(()),
                    removed => removed,
                };
            }
            if let Some(dir) = path.parent() {
                root.make_dirs(&dir, 0o755)?;
            }
            root.replace(&path, &bytes, 0o600)
        };
        // A lost task is a defect that the log shows.
        tokio::task::spawn_blocking(write).await.unwrap_or(Ok(()))
    }
}

fn running(states: BTreeMap<String, Active>) -> Vec<String> {
    let up = |state: &Active| {
        !matches!(
            state,
            Active::Inactive | Active::Failed | Active::Deactivating
        )
    };
    let running = states.into_iter().filter(|(_, state)| up(state));
    running.map(|(unit, _)| unit).collect()
}

impl Around for Units {
    async fn before(&mut self, within: Duration) {
        let all = self.stop_all(within);
        if tokio::time::timeout(within, all).await.is_err() {
            tracing::error!(
                "the machine goes down before every unit that uses devices has stopped"
            );
        }
    }

    async fn after(&mut self) {
        tracing::info!("the shutdown was called off");
        self.start_again().await;
    }
}
