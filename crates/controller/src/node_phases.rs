//! Notices the phases of updates that only the Nodes show: a drain that pods block, and a reboot.

use std::collections::BTreeMap;

use crate::{
    rollout_event::{RolloutEvent, RolloutEventKind},
    rollout_view::RolloutView,
};
use machinist_kube_api::{
    NodeView,
    keys::{annotation, pool_annotation, protocol},
};
use machinist_pool::{Grant, PoolGrants};

/// The phases of each grant that were reported. A new leader knows none, and may report one again.
#[derive(Debug, Default)]
pub(crate) struct NodePhases(BTreeMap<String, Reported>);

#[derive(Clone, Copy, Debug, Default)]
struct Reported {
    blocked: bool,
    rebooting: bool,
}

impl NodePhases {
    /// The events of phases that have begun, each once per grant.
    pub(crate) fn turn(&mut self, view: &RolloutView) -> Vec<RolloutEvent> {
        let before = std::mem::take(&mut self.0);
        let mut found = Vec::new();
        for pool in view.pools() {
            let text = pool.annotation(pool_annotation::GRANTS);
            let grants = PoolGrants::parse(&pool.name, text).ok().flatten();
            let grants = grants.map(|it| it.grants).unwrap_or_default();
            for grant in grants.into_iter().filter(|it| it.acknowledged) {
                let mut reported = before.get(&grant.id).copied().unwrap_or_default();
                let node = view.node(&grant.node).filter(|it| it.uid == grant.uid);
                if let Some(node) = node {
                    found.extend(begun(node, &grant, &mut reported));
                }
                self.0.insert(grant.id, reported);
            }
        }
        found
    }
}

/// The phases of a node that have begun and were not reported.
fn begun(node: &NodeView, grant: &Grant, reported: &mut Reported) -> Vec<RolloutEvent> {
    let mut found = Vec::new();
    let name = &node.name;
    let blockers = node.annotation(annotation::BLOCKED_BY);
    if let Some(pods) = blockers.filter(|it| !it.is_empty() && !reported.blocked) {
        reported.blocked = true;
        let message = format!("pods block the drain of node {name}: {pods}");
        let kind = RolloutEventKind::NodeDrainBlocked;
        found.push(RolloutEvent::of_grant(kind, grant, message));
    }
    let reboots = node.annotation(protocol::POST_CONFIG_ACTION) == Some("Rebooting");
    if reboots && !reported.rebooting {
        reported.rebooting = true;
        let message = format!("node {name} reboots");
        let kind = RolloutEventKind::NodeRebooting;
        found.push(RolloutEvent::of_grant(kind, grant, message));
    }
    found
}
