//! Reports one node from its published state.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use super::annotations::{self, BlockedBy};
use machinist_cluster::fleet_queries::NodeEvent;
use machinist_kube_api::{
    MachineConfigNodeStatus, NodeCondition, NodeStatus, NodeView, PoolView, Progress, is_extended,
    keys::{annotation, condition, pool_annotation, protocol},
};
use machinist_pool::Membership;

/// The age in minutes after which a condition counts as outdated; agents confirm it every five to
/// six minutes.
const STALE_AFTER_MINUTES: i64 = 15;

/// The requested objects, as far as available.
#[derive(Debug, Default)]
pub(super) struct NodeObjects {
    pub(super) node: NodeView,
    pub(super) pools: Vec<PoolView>,
    pub(super) progress: Option<MachineConfigNodeStatus>,
    /// Newest first.
    pub(super) events: Vec<NodeEvent>,
    /// Warnings about objects that are not available.
    pub(super) warnings: Vec<String>,
}

/// The document of `status --node`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeReport {
    api_version: &'static str,
    kind: &'static str,
    pub(super) node: String,
    /// None if no pool selects it, or if that is not known.
    pub(super) pool: Option<PoolPart>,
    /// The `machinist.dev/Ready` condition; none if no agent has written it.
    pub(super) ready: Option<bool>,
    /// The reason of the same condition.
    pub(super) ready_reason: Option<String>,
    pub(super) ready_message: Option<String>,
    /// When the agent last confirmed the condition.
    pub(super) last_heartbeat_time: Option<Timestamp>,
    /// An agent has reported in the past and does so no longer: its published state may be
    /// outdated.
    pub(super) stale: bool,
    /// The state annotation; none if it does not exist.
    pub(super) state: Option<String>,
    /// The reason annotation.
    pub(super) reason: Option<String>,
    pub(super) since: Option<Timestamp>,
    pub(super) config: ConfigPart,
    /// The running step.
    pub(super) step: Option<StepPart>,
    pub(super) cordon: CordonPart,
    pub(super) blocked_by: Vec<BlockedBy>,
    /// From the MachineConfigNode; empty if there is none.
    pub(super) conditions: Vec<ConditionPart>,
    /// Extended resources, which are those of devices.
    pub(super) devices: Vec<DevicePart>,
    pub(super) events: Vec<EventPart>,
    /// Warnings about objects that are not available or that the user should check.
    pub(super) warnings: Vec<String>,
}

/// The pool of a node.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PoolPart {
    pub(super) name: String,
    pub(super) paused: bool,
    /// The config that its nodes are to run, with its pin; none if none has been rendered.
    pub(super) target: Option<String>,
    /// Whether an administrator left the node out of the rollout of the target.
    pub(super) skipped: bool,
}

impl PoolPart {
    fn of(pool: &PoolView, node: &NodeView) -> Self {
        let rendered = pool.spec.configuration.name.as_str();
        let pinned = pool.annotation(pool_annotation::PINNED_CONFIG);
        let target = pinned.or(Some(rendered).filter(|name| !name.is_empty()));
        Self {
            name: pool.name.clone(),
            paused: pool.spec.paused,
            target: target.map(str::to_owned),
            skipped: target.is_some() && node.annotation(annotation::SKIP_ROLLOUT) == target,
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct ConfigPart {
    pub(super) current: Option<String>,
    pub(super) desired: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct StepPart {
    pub(super) name: String,
    pub(super) message: String,
}

/// Whether the node is schedulable, and who has cordoned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct CordonPart {
    pub(super) cordoned: bool,
    /// `machinist` or `other`; none without a cordon.
    pub(super) by: Option<&'static str>,
    /// The user wants the cordon to stay after the update.
    pub(super) kept: bool,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct ConditionPart {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) status: Progress,
    pub(super) reason: String,
    pub(super) message: String,
    pub(super) since: Timestamp,
}

impl From<NodeCondition> for ConditionPart {
    fn from(found: NodeCondition) -> Self {
        Self {
            kind: found.kind,
            status: found.status,
            reason: found.reason,
            message: found.message,
            since: found.last_transition_time,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct DevicePart {
    pub(super) resource: String,
    pub(super) capacity: String,
    pub(super) allocatable: String,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct EventPart {
    pub(super) last: Option<Timestamp>,
    #[serde(rename = "type")]
    pub(super) weight: String,
    pub(super) reason: String,
    pub(super) note: String,
    pub(super) count: u32,
}

impl NodeReport {
    pub(super) fn of(facts: NodeObjects, now: Timestamp) -> Self {
        let NodeObjects {
            node: view,
            pools,
            progress,
            events,
            mut warnings,
        } = facts;
        let membership = Membership::of(&view.labels, &pools);
        warnings.extend(membership.warning(&view.name));
        let pool = membership.pool.map(|pool| PoolPart::of(pool, &view));
        let ready = view.condition(condition::READY);
        let last_heartbeat_time = ready.and_then(|it| it.last_heartbeat_time);
        let text = |name| view.annotation(name).map(str::to_owned);
        let blocked = view.annotation(annotation::BLOCKED_BY);
        Self {
            api_version: "machinist.dev/v1",
            kind: "NodeStatus",
            pool,
            ready: ready.map(|it| it.status == "True"),
            ready_reason: ready.map(|it| it.reason.clone()),
            ready_message: ready.map(|it| it.message.clone()),
            last_heartbeat_time,
            stale: last_heartbeat_time
                .is_some_and(|last| now.duration_since(last).as_mins() >= STALE_AFTER_MINUTES),
            state: text(protocol::STATE),
            reason: text(protocol::REASON),
            since: annotations::since(&view, progress.as_ref()),
            config: ConfigPart {
                current: text(protocol::CURRENT_CONFIG),
                desired: text(protocol::DESIRED_CONFIG),
            },
            step: progress
                .as_ref()
                .and_then(annotations::step)
                .map(|(name, message)| StepPart { name, message }),
            cordon: CordonPart::of(&view),
            blocked_by: annotations::blocked_by(blocked.unwrap_or_default()),
            conditions: progress
                .map(|progress| progress.conditions)
                .unwrap_or_default()
                .into_iter()
                .map(ConditionPart::from)
                .collect(),
            devices: devices(&view.status),
            events: events.into_iter().map(EventPart::from).collect(),
            warnings,
            node: view.name,
        }
    }
}

impl CordonPart {
    pub(super) fn of(view: &NodeView) -> Self {
        let cordoned = view.is_cordoned();
        let by = match view.has_cordon_mark() {
            true => "machinist",
            false => "other",
        };
        Self {
            cordoned,
            by: cordoned.then_some(by),
            kept: view.keeps_cordon(),
        }
    }
}

impl From<NodeEvent> for EventPart {
    fn from(event: NodeEvent) -> Self {
        Self {
            last: event.last,
            weight: event.weight,
            reason: event.reason,
            note: event.note,
            count: event.count,
        }
    }
}

/// The extended resources.
fn devices(
    NodeStatus {
        capacity,
        allocatable,
        ..
    }: &NodeStatus,
) -> Vec<DevicePart> {
    let count = |of: &BTreeMap<String, String>, name: &str| {
        of.get(name).map_or_else(|| "0".to_owned(), String::clone)
    };
    let names = capacity
        .keys()
        .chain(allocatable.keys())
        .filter(|name| is_extended(name));
    let names: std::collections::BTreeSet<_> = names.collect();
    let part = |name: &String| DevicePart {
        resource: name.clone(),
        capacity: count(capacity, name),
        allocatable: count(allocatable, name),
    };
    names.into_iter().map(part).collect()
}
