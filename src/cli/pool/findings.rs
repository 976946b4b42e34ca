//! Finds out what a pool does or waits for, most urgent first.

use jiff::Timestamp;
use serde::Serialize;

use super::{
    controller_report::{ControllerReport, ControllerState},
    grants::{GrantState, NodeGrant},
    hold_advice::{condition_advice, hold_advice},
    render::{blocker, configs, controller_text, grant_text},
    report::{HeldRollout, NodeRollout, PoolRollout},
};
use crate::cli::fleet::annotations::leading;
use machinist_base::{
    reason::Reason,
    text::{counted, join_limited},
};
use machinist_kube_api::keys;
use machinist_pool::{AGENT_SILENCE_LIMIT, HoldReason, age};
use machinist_status::remedy;

/// How many idle nodes the page names.
const MAX_IDLE_NODE_NAMES: usize = 20;

/// One reason why nothing proceeds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct PoolFinding {
    /// The stable code, or the type of the pool's condition; none if there is none.
    pub(super) code: Option<String>,
    /// The situation, in one sentence.
    pub(super) message: String,
    /// The recommended action; empty if there is none.
    pub(super) advice: String,
}

fn finding(
    code: Option<&str>,
    message: impl Into<String>,
    advice: impl Into<String>,
) -> PoolFinding {
    PoolFinding {
        code: code.map(str::to_owned),
        message: message.into(),
        advice: advice.into(),
    }
}

/// Explains what a pool does or waits for. Never empty.
pub(super) fn findings(
    pool: &PoolRollout,
    controller: &ControllerReport,
    now: Timestamp,
) -> Vec<PoolFinding> {
    let mut found: Vec<PoolFinding> = controller_finding(controller, now).into_iter().collect();
    found.extend(pool.held.as_ref().map(|held| hold_finding(held, pool)));
    found.extend(paused(pool));
    if pool.pinned {
        let target = pool.target.as_deref().unwrap_or_default();
        let message = format!(
            "pool {} is pinned to {target}; newer configs are not rolled out",
            pool.name
        );
        let advice = format!("machinist resume --pool {}", pool.name);
        found.push(finding(Some("Pinned"), message, advice));
    }
    found.extend(pool.conditions.iter().map(|it| {
        let message = match it.message.as_str() {
            "" => format!("condition {} of pool {}: {}", it.kind, pool.name, it.reason),
            message => format!("condition {} of pool {}: {message}", it.kind, pool.name),
        };
        finding(Some(&it.kind), message, condition_advice(&it.kind))
    }));
    let waits = |node: &&NodeRollout| !node.node.updated;
    let (idle, others): (Vec<_>, Vec<_>) = pool
        .nodes
        .iter()
        .filter(waits)
        .partition(|node| is_idle(node, now));
    found.extend(others.iter().map(|node| node_finding(node, now)));
    found.extend(idle_finding(&idle, pool));
    let missing = pool.grants_without_node.iter();
    found.extend(missing.map(|grant| missing_node(grant, now)));
    if found.is_empty() {
        found.push(settled(pool));
    }
    found
}

/// If no controller acts, the published conditions may be outdated.
fn controller_finding(controller: &ControllerReport, now: Timestamp) -> Option<PoolFinding> {
    let text = controller_text(controller, now);
    let lease = format!("Lease {}/{}", keys::NAMESPACE, keys::CONTROLLER_LEASE);
    let logs = format!(
        "kubectl -n {} get pods -l app.kubernetes.io/name=machinist-controller; then see their logs",
        keys::NAMESPACE
    );
    let (message, advice) = match controller.state {
        ControllerState::Active => return None,
        ControllerState::Absent => (
            format!("nothing is rolled out: no process holds the {lease}"),
            format!(
                "a new leader takes over within 15 s if the controller runs; if not, install or start it; {logs}"
            ),
        ),
        ControllerState::Silent => (
            format!("{text}; the conditions of the pool may be outdated"),
            format!("{logs}; or this machine's clock is wrong"),
        ),
        ControllerState::Unknown => (
            format!("it is not known whether a controller acts: you may not read the {lease}"),
            "ask for the permission to get Leases in that namespace".to_owned(),
        ),
    };
    Some(finding(None, message, advice))
}

fn hold_finding(held: &HeldRollout, pool: &PoolRollout) -> PoolFinding {
    let advice =
        HoldReason::named(&held.code).map(|reason| hold_advice(reason, &pool.name, pin(pool)));
    let message = match held.published {
        true => format!("the rollout is held: {}", held.message),
        false => format!(
            "the controller has not published why; as the objects are now, the rollout is held: {}",
            held.message
        ),
    };
    finding(Some(&held.code), message, advice.unwrap_or_default())
}

/// The config that the pool is pinned to.
fn pin(pool: &PoolRollout) -> Option<&str> {
    pool.target.as_deref().filter(|_| pool.pinned)
}

/// That the pool is paused, unless its hold already states it.
fn paused(pool: &PoolRollout) -> Option<PoolFinding> {
    let paused = HoldReason::Paused.as_str();
    let is_shown = pool.held.as_ref().is_some_and(|held| held.code == paused);
    if !pool.paused || is_shown {
        return None;
    }
    let reason = pool.pause_reason.as_ref();
    let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    let message = format!("pool {} is paused{reason}", pool.name);
    let advice = hold_advice(HoldReason::Paused, &pool.name, pin(pool));
    Some(finding(Some(paused), message, advice))
}

/// Whether the node only waits for its turn.
fn is_idle(node: &NodeRollout, now: Timestamp) -> bool {
    let part = &node.node;
    part.ready
        && !part.degraded
        && node.grant.is_none()
        && part.blocked_by.is_empty()
        && part.current == part.desired
        && silence(node, now).is_none()
}

/// For how long the agent has been silent, if that is too long.
fn silence(node: &NodeRollout, now: Timestamp) -> Option<String> {
    match node.last_heartbeat_time {
        None => Some("no agent reports for it".to_owned()),
        Some(last) if now.duration_since(last) >= AGENT_SILENCE_LIMIT => {
            Some(format!("its agent has not reported for {}", age(last, now)))
        }
        Some(_) => None,
    }
}

/// One node that is not on the target, with everything that it publishes.
fn node_finding(node: &NodeRollout, now: Timestamp) -> PoolFinding {
    let part = &node.node;
    let state = part.state.as_deref().unwrap_or("no state");
    let mut parts = vec![format!("{} is {state} on {}", part.name, configs(node))];
    parts.extend(part.since.map(|since| format!("for {}", age(since, now))));
    parts.extend(node.phase.as_ref().map(|phase| format!("phase {phase}")));
    parts.extend(part.reason.clone());
    match part.cordoned_by {
        Some("other") => parts.push("cordoned by another client".to_owned()),
        None if !part.ready => parts.push("not ready".to_owned()),
        _ => {}
    }
    parts.extend(silence(node, now));
    if let Some(grant) = &node.grant {
        parts.push(format!("grant {}: {}", grant.id, grant_text(grant, now)));
    }
    let blocked = part.blocked_by.iter().map(blocker);
    parts.extend(blocked.map(|one| format!("blocked by {one}")));
    let code = node_code(node);
    let advice = code
        .map(|code| remedy(code, &part.name))
        .unwrap_or_default();
    let advice = match advice.is_empty() {
        true => format!("machinist explain --node {}", part.name),
        false => advice,
    };
    finding(code.map(Reason::as_str), parts.join("; "), advice)
}

/// The code that the node publishes: of what blocks its drain, or of its state.
fn node_code(node: &NodeRollout) -> Option<Reason> {
    let blocked = node.node.blocked_by.iter().find_map(|one| one.reason);
    let reason = node.node.reason.as_deref();
    blocked.or_else(|| leading(reason?))
}

fn idle_finding(idle: &[&NodeRollout], pool: &PoolRollout) -> Option<PoolFinding> {
    let names: Vec<&str> = idle.iter().map(|node| node.node.name.as_str()).collect();
    let first = pool.next.first();
    let next = first.map_or_else(String::new, |first| format!("; next: {first}"));
    let message = format!(
        "waiting for a grant: {}: {}{next}",
        counted(names.len(), "node"),
        join_limited(names.iter(), MAX_IDLE_NODE_NAMES)
    );
    (!names.is_empty()).then(|| finding(None, message, ""))
}

/// A grant of a Node that does not exist holds its slot.
fn missing_node(grant: &NodeGrant, now: Timestamp) -> PoolFinding {
    let message = format!(
        "Node {} does not exist, and grant {} for it is {} old: it holds its slot",
        grant.node,
        grant.id,
        age(grant.time, now)
    );
    let advice = match grant.state {
        GrantState::NodeMissing => format!(
            "of a worker, the controller frees it; of the control plane, when the machine is gone for good: \
             machinist release-grant {}",
            grant.node
        ),
        _ => String::new(),
    };
    finding(None, message, advice)
}

fn settled(pool: &PoolRollout) -> PoolFinding {
    let target = pool.target.as_deref().unwrap_or("no config");
    let message = format!(
        "pool {} is up to date: {} of {} on {target}",
        pool.name,
        pool.updated,
        counted(pool.machines, "node")
    );
    finding(None, message, "")
}
