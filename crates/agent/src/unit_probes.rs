//! Publishes the state of units that serve as health checks of devices: read when a unit may have
//! changed, never on a timer.

use std::{collections::BTreeSet, sync::Arc};

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::host_sampler;
use machinist_base::{error_chain::chain, shutdown::Tasks};
use machinist_device::{Inventory, registry::UnitStates};
use machinist_systemd::{ActiveState, Systemd};

/// Publishes the states of the units that `inventory` names to `states`.
pub(super) fn publish_unit_states(
    systemd: Option<&Systemd>,
    inventory: watch::Receiver<Arc<Inventory>>,
    states: watch::Sender<UnitStates>,
    tasks: &Tasks,
) {
    // Without systemd the unit states are unknown, and unknown counts as healthy.
    let Some(systemd) = systemd.cloned() else {
        return;
    };
    let follower = UnitProbeTask {
        systemd,
        inventory,
        states,
        changes: Arc::new(Notify::new()),
    };
    tasks.spawn("probed units", follower.run(tasks.token()));
}

struct UnitProbeTask {
    systemd: Systemd,
    inventory: watch::Receiver<Arc<Inventory>>,
    states: watch::Sender<UnitStates>,
    changes: Arc<Notify>,
}

impl UnitProbeTask {
    async fn run(mut self, stop: CancellationToken) {
        let any = |inventory: &Arc<Inventory>| !inventory.probed_units.is_empty();
        tokio::select! {
            // No request is pending yet.
            () = stop.cancelled() => return,
            // Cancel-safe: it only reads the latest value. The registry lives as long as the agent.
            found = self.inventory.wait_for(any) => if found.is_err() { return },
        }
        let changes = Arc::clone(&self.changes);
        let heard = host_sampler::follow_units(self.systemd.clone(), changes, stop.clone());
        tokio::select! {
            // Both are cancel-safe. Listening survives lost connections, and so does publishing;
            // both end with the agent only.
            () = heard => {}
            () = self.tell() => {}
        }
    }

    async fn tell(&mut self) {
        loop {
            let wanted = self.inventory.borrow_and_update().probed_units.clone();
            if !wanted.is_empty() {
                self.ask(&wanted).await;
            }
            let others = |inventory: &Arc<Inventory>| inventory.probed_units != wanted;
            tokio::select! {
                // Both are cancel-safe: a notification and a value are kept. The registry lives as
                // long as the agent.
                () = self.changes.notified() => {}
                found = self.inventory.wait_for(others) => if found.is_err() { return },
            }
        }
    }

    async fn ask(&self, wanted: &BTreeSet<String>) {
        let names: Vec<_> = wanted.iter().map(String::as_str).collect();
        match self.systemd.active_units(&names).await {
            Ok(states) => {
                let well = |state| matches!(state, ActiveState::Active | ActiveState::Reloading);
                let states = states.into_iter().map(|(name, state)| (name, well(state)));
                let states: UnitStates = states.collect();
                self.states.send_if_modified(|known| {
                    let news = *known != states;
                    *known = states;
                    news
                });
            }
            // Reading is retried when the connection is re-established.
            Err(error) => tracing::warn!("device health unknown: {}", chain(&error)),
        }
    }
}
