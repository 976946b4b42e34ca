//! The units whose state is the health of devices: asked when one of them may have changed, never on a timer.

use std::{collections::BTreeSet, sync::Arc};

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    device::{Inventory, registry::UnitStates},
    readiness::measure,
    shutdown::Tasks,
    systemd::{Active, Systemd},
    telemetry::chain,
};

/// Tells `states` about the units that `inventory` names, from now on.
pub(super) fn follow(
    systemd: Option<&Systemd>,
    inventory: watch::Receiver<Arc<Inventory>>,
    states: watch::Sender<UnitStates>,
    tasks: &Tasks,
) {
    // Without systemd nothing is known of any unit, and what is not known is believed.
    let Some(systemd) = systemd.cloned() else {
        return;
    };
    let follower = Follower {
        systemd,
        inventory,
        states,
        changes: Arc::new(Notify::new()),
    };
    tasks.spawn("probed units", follower.run(tasks.token()));
}

struct Follower {
    systemd: Systemd,
    inventory: watch::Receiver<Arc<Inventory>>,
    states: watch::Sender<UnitStates>,
    changes: Arc<Notify>,
}

impl Follower {
    async fn run(mut self, stop: CancellationToken) {
        let any = |inventory: &Arc<Inventory>| !inventory.probed_units.is_empty();
        tokio::select! {
            // Nothing was asked yet.
            () = stop.cancelled() => return,
            // Safe to drop: it only looks at the latest value. The registry ends with the agent only.
            found = self.inventory.wait_for(any) => if found.is_err() { return },
        }
        let changes = Arc::clone(&self.changes);
        let heard = measure::follow_units(self.systemd.clone(), changes, stop.clone());
        tokio::select! {
            // Safe to drop, both. The listening goes on over lost connections, and so does the telling; either ends
            // with the agent only.
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
                // Safe to drop, both: a notice stays, and so does a value. The registry ends with the agent only.
                () = self.changes.notified() => {}
                found = self.inventory.wait_for(others) => if found.is_err() { return },
            }
        }
    }

    async fn ask(&self, wanted: &BTreeSet<String>) {
        let names: Vec<_> = wanted.iter().map(String::as_str).collect();
        match self.systemd.active_units(&names).await {
            Ok(states) => {
                let well = |state| matches!(state, Active::Active | Active::Reloading);
                let states = states.into_iter().map(|(name, state)| (name, well(state)));
                let states: UnitStates = states.collect();
                self.states.send_if_modified(|known| {
                    let news = *known != states;
                    *known = states;
                    news
                });
            }
            // Heard again when the connection is there again.
            Err(error) => tracing::warn!("the health of devices is not known: {}", chain(&error)),
        }
    }
}
