//! Publishes the machine's state on the Node and the MachineConfigNode.

use std::{collections::BTreeSet, sync::Arc};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::AgentHandles;
use crate::node::is_fit;
use machinist_base::{clock::Clock, shutdown::Tasks};
use machinist_cluster::{
    Cluster,
    events::Events,
    machine_config_node,
    node::{DesiredNodeStatus, NodeFitness, OwnNode},
    node_writer::{self, WriteRate},
    publisher::{self, ExternalWriters, Publishers},
};
use machinist_device::{Inventory, ResourceName, taint::NodeTaint};
use machinist_device_plugins::device_service::DevicesHandle;
use machinist_kube_api::{
    DrainRequest, NodeImageSets, Taint,
    keys::{annotation, label, protocol},
};
use machinist_pool::format_windows;
use machinist_status::{
    Status,
    settings::{AgentRole, Settings},
};
use machinist_update::reconciler::UpdateReport;

/// Starts the tasks that publish the machine's state on the Node and its MachineConfigNode.
pub(super) fn start_publishing(
    node: &OwnNode,
    cluster: &Cluster,
    beside: &AgentHandles,
    (pool, images): (
        watch::Receiver<Option<String>>,
        watch::Receiver<Option<NodeImageSets>>,
    ),
    asked: watch::Receiver<Option<DrainRequest>>,
    events: Events,
    tasks: &Tasks,
) {
    let (duties, startup_taint) = {
        let settings = beside.settings.borrow();
        let duties = ExternalWriters {
            config: settings.has_role(AgentRole::Config),
            readiness: settings.has_role(AgentRole::Readiness),
        };
        (duties, settings.readiness.startup_taint)
    };
    let (notice, said) = watch::channel(None);
    let (progress, progressed) = watch::channel(None);
    let (to, whole) = watch::channel(None);
    let clock = Clock::system();
    let (due, dues) = watch::channel(duties);
    let beside_it = beside_another(duties, due, beside.other_daemon.clone(), tasks.token());
    tasks.spawn("duties", beside_it);
    let outlets = Publishers { notice, progress };
    let (update, statuses) = (beside.update.clone(), beside.statuses.clone());
    let stop = tasks.token();
    let telling = publisher::publish(update, statuses, dues, images, outlets, clock.clone(), stop);
    tasks.spawn("cluster report", telling);
    let more = NodeFieldSources {
        said,
        asked,
        statuses: beside.statuses.clone(),
        update: beside.update.clone(),
        devices: beside.devices.as_ref().map(DevicesHandle::inventory),
        settings: beside.settings.clone(),
        labels: BTreeSet::new(),
        startup_taint,
    };
    tasks.spawn("node annotations", more.add(to, tasks.token()));
    let (pace, stop) = (WriteRate::default(), tasks.token());
    let keeping =
        node_writer::maintain_node(node.clone(), whole, events, clock.clone(), pace, stop);
    tasks.spawn("node notice", keeping);
    let (cluster, node, stop) = (cluster.clone(), node.clone(), tasks.token());
    let keeping =
        machine_config_node::maintain_status(cluster, node, pool, progressed, clock, stop);
    tasks.spawn("machine config node", keeping);
}

/// Node fields that do not come from the update report or the gates.
struct NodeFieldSources {
    said: watch::Receiver<Option<DesiredNodeStatus>>,
    /// The drain request for OpenShift's controller.
    asked: watch::Receiver<Option<DrainRequest>>,
    statuses: watch::Receiver<Arc<Status>>,
    update: watch::Receiver<Arc<UpdateReport>>,
    /// The machine's devices; none if devices are not managed by this agent.
    devices: Option<watch::Receiver<Arc<Inventory>>>,
    /// The maintenance windows, which the controller has to know before it grants an update.
    settings: watch::Receiver<Arc<Settings>>,
    /// Resource labels that were published so far.
    labels: BTreeSet<String>,
    startup_taint: bool,
}

/// Roles are fixed at startup, but while another daemon is detected, the config annotations
/// are left to it.
async fn beside_another(
    duties: ExternalWriters,
    to: watch::Sender<ExternalWriters>,
    mut other: watch::Receiver<Option<String>>,
    stop: CancellationToken,
) {
    loop {
        let alone = other.borrow_and_update().is_none();
        to.send_if_modified(|known| {
            let config = duties.config && alone;
            let news = known.config != config;
            known.config = config;
            news
        });
        tokio::select! {
            () = stop.cancelled() => return,
            // Cancel-safe: a change stays marked as unseen.
            changed = other.changed() => if changed.is_err() { return },
        }
    }
}

impl NodeFieldSources {
    async fn add(mut self, to: watch::Sender<Option<DesiredNodeStatus>>, stop: CancellationToken) {
        loop {
            let notice = self.whole();
            to.send_if_modified(|known| {
                let differs = *known != notice;
                *known = notice;
                differs
            });
            tokio::select! {
                () = stop.cancelled() => return,
                // All of these are cancel-safe: a change stays marked as unseen.
                told = self.said.changed() => if told.is_err() { return },
                Ok(()) = self.asked.changed() => {}
                Ok(()) = self.update.changed() => {}
                Ok(()) = self.settings.changed() => {}
                () = news(&mut self.devices) => {}
                Ok(()) = self.statuses.changed(), if self.startup_taint => {}
            }
        }
    }

    fn whole(&mut self) -> Option<DesiredNodeStatus> {
        let mut notice = self.said.borrow_and_update().clone()?;
        if let Some(request) = &*self.asked.borrow_and_update() {
            let wish = Some(request.to_string());
            notice.annotations.insert(protocol::DESIRED_DRAIN, wish);
        }
        let report = Arc::clone(&self.update.borrow_and_update());
        let cancelled = publisher::cancelled(&report).map(str::to_owned);
        notice.annotations.insert(annotation::CANCELLED, cancelled);
        let windows = {
            let settings = self.settings.borrow_and_update();
            let has_config = settings.has_role(AgentRole::Config);
            has_config.then(|| format_windows(&settings.update.windows))
        };
        if let Some(windows) = windows {
            notice.annotations.insert(annotation::WINDOWS, windows);
        }
        if let Some(devices) = &mut self.devices {
            let inventory = Arc::clone(&devices.borrow_and_update());
            notice.taints = inventory.taints.iter().map(to_node_taint).collect();
            let present = present(&inventory);
            for gone in self.labels.difference(&present) {
                notice.labels.insert(gone.clone(), None);
            }
            for label in &present {
                let value = Some(label::PRESENT.to_owned());
                notice.labels.insert(label.clone(), value);
            }
            self.labels.extend(present);
        }
        if self.startup_taint {
            let status = self.statuses.borrow_and_update();
            notice.fitness = Some(NodeFitness {
                uid: status.node_uid.clone(),
                fit: is_fit(&status.gates),
            });
        }
        Some(notice)
    }
}

/// Waits until the device inventory changes; forever if there is none.
async fn news(devices: &mut Option<watch::Receiver<Arc<Inventory>>>) {
    if let Some(devices) = devices
        && devices.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

/// Labels of the resources that exist on the machine.
fn present(inventory: &Inventory) -> BTreeSet<String> {
    let there = inventory.resources.values().filter(|one| one.is_present());
    there.filter_map(|one| resource_label(&one.name)).collect()
}

/// The label of a resource; none if the part after the slash would exceed 63 characters.
fn resource_label(name: &ResourceName) -> Option<String> {
    const MAX_LABEL_NAME_LEN: usize = 63;
    let label = format!(
        "{}{}-{}",
        label::RESOURCE_PREFIX,
        name.domain(),
        name.name()
    );
    let (_, part) = label.split_once('/')?;
    (part.len() <= MAX_LABEL_NAME_LEN).then_some(label)
}

fn to_node_taint(taint: &NodeTaint) -> Taint {
    let value = (!taint.value.is_empty()).then(|| ("value".to_owned(), taint.value.clone().into()));
    Taint {
        key: taint.key.clone(),
        effect: taint.effect.as_str().to_owned(),
        rest: value.into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_label_exists_only_if_the_name_fits_a_label_key() {
        let label = |name: &str| resource_label(&ResourceName::new(name).unwrap());
        let serial = "machinist.dev/resource.acme.dev-serial".to_owned();
        assert_eq!(label("acme.dev/serial"), Some(serial));
        assert_eq!(
            label(&format!("acme.dev/{}", "x".repeat(45)))
                .unwrap()
                .len(),
            77
        );
        assert_eq!(label(&format!("acme.dev/{}", "x".repeat(46))), None);
    }
}
