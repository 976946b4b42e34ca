//! Events on MachineConfigPools and on the MachineConfiguration, and notifications about rollouts.

use std::sync::Arc;

use crate::{
    node_phases::NodePhases,
    notifier::NotificationQueue,
    rollout_event::{self, RolloutEvent},
    rollout_view::RolloutView,
};
use machinist_cluster::events::{EventSubject, Events};
use machinist_kube_api::{EventReason, PoolView};
use machinist_pool::{Hold, PoolWrite};

/// Emits events and queues notifications, without waiting. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct PoolEvents {
    events: Events,
    notifications: Option<Arc<NotificationQueue>>,
}

impl PoolEvents {
    pub(crate) const fn new(events: Events, notifications: Option<Arc<NotificationQueue>>) -> Self {
        Self {
            events,
            notifications,
        }
    }

    /// Reports that no config can be rendered.
    pub(crate) fn render_degraded(&self, pool: &PoolView, message: &str) {
        self.emit(pool, EventReason::RenderDegraded, message.to_owned());
    }

    /// Reports a new hold of the rollout of `target`.
    pub(crate) fn held(&self, pool: &PoolView, target: Option<&str>, hold: &Hold) {
        if let Some(event) = rollout_event::of_hold(&pool.name, target, hold) {
            self.report(event, Some(pool));
        }
    }

    /// Reports what a write of a pool's record has begun and ended; `known` are the grants before it.
    pub(crate) fn wrote(&self, write: &PoolWrite, known: Option<&str>, view: &RolloutView) {
        for event in rollout_event::of_write(write, known, view) {
            let pool = view.pool(&event.pool);
            self.report(event, pool);
        }
    }

    /// Reports the phases of updates that only the Nodes show.
    pub(crate) fn phases(&self, phases: &mut NodePhases, view: &RolloutView) {
        if self.notifications.is_some() {
            for event in phases.turn(view) {
                self.report(event, None);
            }
        }
    }

    /// Emits the event on its pool, if it has one, and queues its notification.
    fn report(&self, event: RolloutEvent, pool: Option<&PoolView>) {
        if let (Some(pool), Some(reason)) = (pool, event.kind.event_reason()) {
            self.emit(pool, reason, event.message.clone());
        }
        if let Some(queue) = &self.notifications {
            queue.put(event);
        }
    }

    /// Reports that the disruption policies of the cluster are invalid; the object is named by its UID.
    pub(crate) fn policies_invalid(&self, uid: &str, note: String) {
        let subject = EventSubject::MachineConfiguration {
            uid: uid.to_owned(),
        };
        self.events
            .emit(subject, EventReason::PoliciesInvalid, note);
    }

    /// Reports something about a pool.
    pub(crate) fn emit(&self, pool: &PoolView, reason: EventReason, note: String) {
        let subject = EventSubject::Pool {
            name: pool.name.clone(),
            uid: pool.uid.clone(),
        };
        self.events.emit(subject, reason, note);
    }
}
