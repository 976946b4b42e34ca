//! Converts the state of the device manager for the status document and the gates.

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::Timestamp;

use tokio::sync::watch;

use super::{node::UPDATE_DISABLE_REASON, shutdown_quiesce, unit_probes};
use crate::{admin::RefreshHook, reporter::DevicesView};
use machinist_base::{clock::Clock, reason::Reason, shutdown::Tasks};
use machinist_device::{
    Allowances, CdiDelivery, Refusal, ServeMode,
    registry::UnitStates,
    status::{Attempts, DevicesStatus},
};
use machinist_device_plugins::{
    device_service::{self, DevicesHandle, DevicesService, DevicesSettings},
    kubelet::RegistrationMode,
    vendor_api,
};
use machinist_rootfs::Root;
use machinist_status::{
    DeviceStatus, ResourceStatus, Status, VendorStatus,
    metrics::Metrics,
    readiness::DeviceManager,
    settings::{self, AgentRole, Registration, Settings},
};
use machinist_systemd::Systemd;
use machinist_update::{journal::DeviceUsers, reconciler::UpdateReport};

/// How long a status request waits for the kubelet's current allocations, which takes milliseconds.
/// After that the response contains the last known ones.
const HOLDER_QUERY_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a stop waits for the last save of the device list, which is less than
/// [`machinist_base::shutdown::SHUTDOWN_TIMEOUT`].
const DEVICE_LIST_SAVE_TIMEOUT: Duration = Duration::from_millis(700);

/// Debounce of changes reported by vendor drivers.
const CHANGE_DEBOUNCE: Duration = Duration::from_millis(200);

/// Lets a status request refresh which container holds which device.
pub(super) fn refresh_holders(
    devices: Option<&DevicesHandle>,
    statuses: &watch::Receiver<Arc<Status>>,
) -> RefreshHook {
    let Some(devices) = devices.cloned() else {
        return RefreshHook::default();
    };
    let statuses = statuses.clone();
    RefreshHook::new(move || {
        let (devices, mut statuses) = (devices.clone(), statuses.clone());
        Box::pin(async move {
            let told = async {
                devices.ask_holders().await;
                let now = view(&devices.status_now(), |_| {});
                // The sender is dropped when the agent ends.
                let _ = statuses
                    .wait_for(|status| same_holders(&status.devices, &now))
                    .await;
            };
            let _ = tokio::time::timeout(HOLDER_QUERY_TIMEOUT, told).await;
        })
    })
}

fn same_holders(shown: &[ResourceStatus], now: &DevicesView) -> bool {
    fn holders(resources: &[ResourceStatus]) -> impl Iterator<Item = (&str, &str, Option<&str>)> {
        resources.iter().flat_map(|resource| {
            let devices = resource.devices.iter();
            devices.map(|one| {
                (
                    resource.resource.as_str(),
                    one.id.as_str(),
                    one.holder.as_deref(),
                )
            })
        })
    }
    holders(shown).eq(holders(&now.resources))
}

/// The features that the settings allow device declarations to use.
pub fn allowances(settings: &Settings) -> Allowances {
    Allowances {
        mounts: Vec::new(),
        cdi: match settings.devices.cdi {
            settings::CdiAnswer::Names => CdiDelivery::Names,
            settings::CdiAnswer::Edits => CdiDelivery::Edits,
        },
    }
}

/// Starts device management if this agent has that role, and publishes its state.
pub(super) fn start(
    root: &Root,
    settings: &Settings,
    (publish, metrics): (watch::Sender<Arc<DevicesView>>, Metrics),
    update: &watch::Receiver<Arc<UpdateReport>>,
    (systemd, tasks): (Option<&Systemd>, &Tasks),
) -> Option<DevicesHandle> {
    if !settings.has_role(AgentRole::Devices) {
        // Dropping the sender leaves the last view in place.
        return None;
    }
    let (tell, units) = watch::channel(UnitStates::new());
    let handle = DevicesService::start(
        root.clone(),
        DevicesSettings {
            allowances: allowances(settings),
            uevents: None,
            rescan: settings.devices.rescan,
            save_timeout: DEVICE_LIST_SAVE_TIMEOUT,
            registering: match settings.devices.registration {
                Registration::Kubelet => RegistrationMode::BySocket,
                Registration::Watcher => RegistrationMode::ByWatcher,
            },
            units,
            // Devices were disabled by an update that is still in progress.
            allocation_disabled: match update.borrow().device_users {
                DeviceUsers::Open => None,
                DeviceUsers::Disabled => Some(device_service::allocation_disabled(
                    UPDATE_DISABLE_REASON,
                    false,
                )),
                DeviceUsers::Quiesced => Some(device_service::allocation_disabled(
                    UPDATE_DISABLE_REASON,
                    true,
                )),
            },
        },
        tasks,
    );
    unit_probes::publish_unit_states(systemd, handle.inventory(), tell, tasks);
    tasks.spawn(
        "device report",
        follow(handle.clone(), publish, metrics, tasks.token()),
    );
    shutdown_quiesce::start(root, settings, systemd, &handle, tasks);
    Some(handle)
}

async fn follow(
    handle: DevicesHandle,
    publish: watch::Sender<Arc<DevicesView>>,
    metrics: Metrics,
    stop: tokio_util::sync::CancellationToken,
) {
    let mut status = handle.status();
    let mut news = handle.vendors().status_changes();
    let mut said = String::new();
    let mut counted = Attempts::default();
    let clock = Clock::system();
    loop {
        let now = status.borrow_and_update().clone();
        news.mark_unchanged();
        count(&metrics, &mut counted, now.attempts);
        log_kubelet_state(&now, &mut said);
        let before = publish.borrow().resources.clone();
        let mut view = view(&now, |resources| since(&before, resources, clock.now()));
        let vendors = handle.vendors().status();
        let vain = vendors.iter().flat_map(|vendor| vendor.vain.values());
        let vain = vain.map(|why| Refusal::new(Reason::ValueInvalid, why.as_str()).to_string());
        view.problems.extend(vain);
        view.vendors = vendors.into_iter().map(shown).collect();
        publish.send_replace(Arc::new(view));
        tokio::select! {
            // Debounced: a driver that is rejected repeatedly must not cause as many documents.
            // Cancel-safe: a change stays marked as unseen.
            Ok(()) = news.changed() => tokio::time::sleep(CHANGE_DEBOUNCE).await,
            // The last published view stays; the status task ends, too.
            () = stop.cancelled() => return,
            // Cancel-safe: a missed change stays marked as unseen.
            changed = status.changed() => if changed.is_err() { return },
        }
    }
}

fn count(metrics: &Metrics, counted: &mut Attempts, now: Attempts) {
    (counted.accepted..now.accepted).for_each(|_| metrics.registered(true));
    (counted.failed..now.failed).for_each(|_| metrics.registered(false));
    *counted = now;
}

/// Logs one line when the kubelet becomes unreachable, and none while it stays so.
fn log_kubelet_state(status: &DevicesStatus, said: &mut String) {
    let now = match &status.kubelet.reason {
        Some(reason) if !status.devices.is_empty() => reason.clone(),
        _ => String::new(),
    };
    if !now.is_empty() && *said != now {
        tracing::info!(
            resources = status.devices.len(),
            "{now}; waiting for it to register devices"
        );
    }
    *said = now;
}

/// The published view, after `note` has amended the resources.
fn view(status: &DevicesStatus, note: impl FnOnce(&mut [ResourceStatus])) -> DevicesView {
    let manager = match &status.kubelet {
        _ if status.devices.is_empty() => DeviceManager::NotRequired,
        kubelet if kubelet.present => DeviceManager::Listening,
        kubelet => DeviceManager::Absent(kubelet.since),
    };
    let resources = status.devices.iter().map(|resource| ResourceStatus {
        resource: resource.resource.to_string(),
        source: resource.source.to_string(),
        serve: resource.serve.as_str().to_owned(),
        registered: resource.registered,
        since: resource.since,
        reason: match resource.registered {
            true => String::new(),
            false => resource.reason.clone().unwrap_or_default(),
        },
        devices: resource
            .devices
            .iter()
            .map(|device| DeviceStatus {
                id: device.id.clone(),
                health: device.health.clone(),
                reason: device.reason.clone().unwrap_or_default(),
                holder: device.holder.clone(),
                ..DeviceStatus::default()
            })
            .collect(),
    });
    let mut resources: Vec<_> = resources.collect();
    note(&mut resources);
    DevicesView {
        resources: Arc::new(resources),
        problems: status.problems.iter().map(ToString::to_string).collect(),
        vendors: Vec::new(),
        manager,
        holders_unknown: status.holders_unknown.clone(),
    }
}

fn shown(vendor: vendor_api::LiveVendorStatus) -> VendorStatus {
    VendorStatus {
        vendor: vendor.vendor,
        connected: vendor.instance.is_some(),
        instance: vendor.instance,
        sessions: vendor.sessions,
        refused: vendor.refused,
        last_reason: vendor.last_reason,
        problem: vendor.problem.or(vendor.lapsing),
        quiesced: vendor.quiesced,
    }
}

/// Sets since when each device and DRA driver has its state: kept from `before` where nothing
/// changed, otherwise `now`.
fn since(before: &[ResourceStatus], resources: &mut [ResourceStatus], now: Timestamp) {
    let known = before.iter().flat_map(|resource| {
        let devices = resource.devices.iter();
        devices.map(|one| ((resource.resource.as_str(), one.id.as_str()), one))
    });
    let known: HashMap<_, _> = known.collect();
    for resource in resources {
        if resource.serve == ServeMode::Dra.as_str() {
            // All devices of a DRA driver share one time.
            let mut all = before.iter();
            let before = all.find(|one| one.resource == resource.resource);
            let same = |one: &&ResourceStatus| {
                (one.registered, &one.reason, &one.serve)
                    == (resource.registered, &resource.reason, &resource.serve)
            };
            resource.since = before.filter(same).and_then(|one| one.since).or(Some(now));
        }
        for device in &mut resource.devices {
            let before = known.get(&(resource.resource.as_str(), device.id.as_str()));
            let same =
                before.filter(|one| one.health == device.health && one.reason == device.reason);
            let held = before.filter(|one| one.holder == device.holder);
            device.since = same.and_then(|one| one.since).or(Some(now));
            device.held_since = held.and_then(|one| one.held_since).or(Some(now));
            if device.holder.is_none() {
                device.held_since = None;
            }
        }
    }
}

#[cfg(test)]
mod tests;
