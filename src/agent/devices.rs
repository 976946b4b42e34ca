//! The device side, as the status document and the gates see it.

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;

use super::{node::WITHHELD, probed, quiesce};
use crate::{
    admin::Freshen,
    config::{Job, Settings},
    device::{
        Allowances,
        registry::UnitStates,
        service::{self, DevicesHandle, DevicesService, DevicesSettings},
        status::{Attempts, DevicesStatus},
    },
    metrics::Metrics,
    readiness::{DeviceManager, report::DevicesView},
    root::Root,
    shutdown::Tasks,
    status::{DeviceStatus, ResourceStatus, Status},
    systemd::Systemd,
    update::{journal::Lending, run::UpdateReport},
};

/// How long whoever asks for the status waits for the kubelet's word on who has what; it takes
/// milliseconds. The answer then comes with what is known.
const TOLD_WITHIN: Duration = Duration::from_secs(1);

/// Lets the status tell who has which device when it is asked for.
pub(super) fn freshen(
    devices: Option<&DevicesHandle>,
    statuses: &watch::Receiver<Arc<Status>>,
) -> Freshen {
    let Some(devices) = devices.cloned() else {
        return Freshen::default();
    };
    let statuses = statuses.clone();
    Freshen::new(move || {
        let (devices, mut statuses) = (devices.clone(), statuses.clone());
        Box::pin(async move {
            let told = async {
                devices.ask_holders().await;
                let now = view(&devices.status_now());
                // Nobody may tell any more: the agent ends.
                let _ = statuses
                    .wait_for(|status| same_holders(&status.devices, &now))
                    .await;
            };
            let _ = tokio::time::timeout(TOLD_WITHIN, told).await;
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

/// Starts lending devices where that job is done here, and says how it goes.
pub(super) fn start(
    root: &Root,
    settings: &Settings,
    (publish, metrics): (watch::Sender<Arc<DevicesView>>, Metrics),
    update: &watch::Receiver<Arc<UpdateReport>>,
    (systemd, tasks): (Option<&Systemd>, &Tasks),
) -> Option<DevicesHandle> {
    if !settings.does(Job::Devices) {
        // The sender goes; the view stays as it is.
        return None;
    }
    let (tell, units) = watch::channel(UnitStates::new());
    let handle = DevicesService::start(
        root.clone(),
        DevicesSettings {
            allowances: Allowances::default(),
            uevents: None,
            rescan: settings.devices.rescan,
            units,
            // The update that withheld them goes on.
            withheld: match update.borrow().lending {
                Lending::Open => None,
                Lending::Withheld => Some(service::withheld(WITHHELD, false)),
                Lending::Quiesced => Some(service::withheld(WITHHELD, true)),
            },
        },
        tasks,
    );
    probed::follow(systemd, handle.inventory(), tell, tasks);
    tasks.spawn(
        "device report",
        follow(handle.clone(), publish, metrics, tasks.token()),
    );
    quiesce::start(root, settings, systemd, &handle, tasks);
    Some(handle)
}

async fn follow(
    handle: DevicesHandle,
    publish: watch::Sender<Arc<DevicesView>>,
    metrics: Metrics,
    stop: tokio_util::sync::CancellationToken,
) {
    let mut status = handle.status();
    let mut said = String::new();
    let mut counted = Attempts::default();
    loop {
        let now = status.borrow_and_update().clone();
        count(&metrics, &mut counted, now.attempts);
        say(&now, &mut said);
        publish.send_replace(Arc::new(view(&now)));
        tokio::select! {
            () = stop.cancelled() => return,
            // Safe to drop: a change that is missed is still marked unseen.
            changed = status.changed() => if changed.is_err() { return },
        }
    }
}

fn count(metrics: &Metrics, counted: &mut Attempts, now: Attempts) {
    (counted.accepted..now.accepted).for_each(|_| metrics.registered(true));
    (counted.failed..now.failed).for_each(|_| metrics.registered(false));
    *counted = now;
}

/// One line when the kubelet's absence begins, none while it lasts.
fn say(status: &DevicesStatus, said: &mut String) {
    let now = match &status.kubelet.reason {
        Some(reason) if !status.devices.is_empty() => reason.clone(),
        _ => String::new(),
    };
    if !now.is_empty() && *said != now {
        tracing::info!(
            resources = status.devices.len(),
            "{now}; devices are offered once there is one"
        );
    }
    *said = now;
}

fn view(status: &DevicesStatus) -> DevicesView {
    let manager = match &status.kubelet {
        _ if status.devices.is_empty() => DeviceManager::Unneeded,
        kubelet if kubelet.present => DeviceManager::Listening,
        kubelet => DeviceManager::Absent(kubelet.since),
    };
    let resources = status.devices.iter().map(|resource| ResourceStatus {
        resource: resource.resource.to_string(),
        source: resource.source.to_string(),
        registered: resource.registered,
        devices: resource
            .devices
            .iter()
            .map(|device| DeviceStatus {
                id: device.id.clone(),
                health: device.health.clone(),
                reason: device.reason.clone().unwrap_or_default(),
                holder: device.holder.clone(),
            })
            .collect(),
    });
    DevicesView {
        resources: resources.collect(),
        problems: status.problems.iter().map(ToString::to_string).collect(),
        manager,
    }
}
