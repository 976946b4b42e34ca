//! Events on MachineConfigPools, and on the MachineConfiguration.

use std::collections::BTreeSet;

use crate::rollout_view::RolloutView;
use machinist_base::text::{counted, join_limited};
use machinist_cluster::events::{EventSubject, Events};
use machinist_kube_api::{EventReason, PoolView};
use machinist_pool::{Hold, HoldReason, HoldStrength, MAX_SKIPPED_NODES, PoolGrants, PoolWrite};

/// Emits events without waiting. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct PoolEvents(Events);

impl PoolEvents {
    pub(crate) const fn new(events: Events) -> Self {
        Self(events)
    }

    /// Reports that no config can be rendered.
    pub(crate) fn render_degraded(&self, pool: &PoolView, message: &str) {
        self.emit(pool, EventReason::RenderDegraded, message.to_owned());
    }

    /// Reports a new hold. Those with which a rollout only waits for its nodes are left out: they follow each other
    /// with every node, and would use up the limit of events that an administrator must see.
    pub(crate) fn held(&self, pool: &PoolView, hold: &Hold) {
        let is_for_people = hold.reason.strength() > HoldStrength::Waits
            || hold.reason == HoldReason::SlotsHeldByFailures;
        if is_for_people {
            let note = format!("{}: {}", hold.reason.as_str(), hold.message);
            self.emit(pool, EventReason::RolloutHeld, note);
        }
    }

    /// Reports what a write of a pool's record has begun and ended; `known` are the grants before it.
    pub(crate) fn wrote(&self, write: &PoolWrite, known: Option<&str>, view: &RolloutView) {
        let of_pool = |name: &str, reason, note| {
            if let Some(pool) = view.pool(name) {
                self.emit(pool, reason, note);
            }
        };
        for (pool, node, note) in failures(write, known) {
            of_pool(pool, EventReason::NodeFailed, format!("node {node} {note}"));
        }
        for edge in &write.ends {
            let (pool, target) = (edge.pool.as_str(), &edge.target);
            match edge.result.as_str() {
                // The event of the next rollout's beginning follows.
                "Superseded" => {}
                "Completed" => {
                    let note = format!("{} on {target}", completed_by(&edge.skipped));
                    of_pool(pool, EventReason::RolloutCompleted, note);
                }
                code => {
                    let note = format!("the rollout of {target} was stopped: {code}");
                    of_pool(pool, EventReason::RolloutStopped, note);
                }
            }
        }
        for edge in &write.begins {
            let note = format!("the rollout of {} has begun", edge.target);
            of_pool(&edge.pool, EventReason::RolloutStarted, note);
        }
    }

    /// Reports that the disruption policies of the cluster are invalid; the object is named by its UID.
    pub(crate) fn policies_invalid(&self, uid: &str, note: String) {
        let subject = EventSubject::MachineConfiguration {
            uid: uid.to_owned(),
        };
        self.0.emit(subject, EventReason::PoliciesInvalid, note);
    }

    /// Reports something about a pool.
    pub(crate) fn emit(&self, pool: &PoolView, reason: EventReason, note: String) {
        let subject = EventSubject::Pool {
            name: pool.name.clone(),
            uid: pool.uid.clone(),
        };
        self.0.emit(subject, reason, note);
    }
}

/// The nodes that a completed rollout has updated, with the verb.
fn completed_by(skipped: &[String]) -> String {
    if skipped.is_empty() {
        return "all nodes are".to_owned();
    }
    let names = join_limited(skipped.iter(), MAX_SKIPPED_NODES);
    let nodes = counted(skipped.len(), "skipped node");
    format!("all nodes but {nodes} ({names}) are")
}

/// The failures that a write records for the first time: pool, node, and what happened.
fn failures<'w>(write: &'w PoolWrite, known: Option<&str>) -> Vec<(&'w str, &'w str, String)> {
    let known = PoolGrants::parse(&write.pool, known).ok().flatten();
    let known = known.map(|it| it.grants).unwrap_or_default();
    let reported: BTreeSet<&str> = known
        .iter()
        .filter(|it| it.failed)
        .map(|it| it.id.as_str())
        .collect();
    let is_new = |id: &str| !reported.contains(id);
    let mut found = Vec::new();
    for (grant, end) in &write.freed {
        if let Some(end) = end
            .as_ref()
            .filter(|it| it.outcome.is_failure() && is_new(&grant.id))
        {
            let outcome = String::from(end.outcome.clone());
            let code = match end.reason.as_str() {
                "" => outcome,
                code => format!("{outcome}, {code}"),
            };
            let note = format!("failed on {}: {code}", end.target);
            found.push((grant.pool.as_str(), grant.node.as_str(), note));
        }
    }
    for grant in write.grants.grants.iter().filter(|it| it.failed) {
        if is_new(&grant.id) {
            let note = format!("failed on {} and keeps its slot", grant.target);
            found.push((grant.pool.as_str(), grant.node.as_str(), note));
        }
    }
    found
}
