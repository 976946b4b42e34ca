//! Explains why nothing is happening on a node: its published state as sentences, most urgent
//! first.

use jiff::Timestamp;

use super::{annotations, node::NodeReport, render::silence_duration};
use machinist_base::reason::Reason;
use machinist_kube_api::{NodeUpdateState, keys::protocol};
use machinist_status::{Finding, remedy};

/// Explains what a node does or waits for. Never empty.
pub(super) fn findings(report: &NodeReport, now: Timestamp) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(agent(report, now));
    found.extend(failed(report));
    found.extend(report.blocked_by.iter().map(|one| {
        let what = format!("{} blocks the update of {}", one.name, report.node);
        match one.reason {
            Some(reason) => Finding::coded(reason, what, advice(reason, report)),
            None => Finding::plain(what, ""),
        }
    }));
    found.extend(update(report));
    found.extend(cordon(report));
    found.extend(pool(report));
    found.extend(gates(report));
    if found.is_empty() {
        found.push(settled(report));
    }
    found
}

/// If the agent no longer reports, it does nothing, independent of other published state.
fn agent(report: &NodeReport, now: Timestamp) -> Option<Finding> {
    let node = &report.node;
    let see = format!(
        "kubectl -n machinist-system get pods -o wide --field-selector spec.nodeName={node}; on the node: systemctl status machinist"
    );
    if report.ready.is_none() {
        let what = format!("no machinist agent has reported for {node}");
        return Some(Finding::plain(what, see));
    }
    let silent = silence_duration(report, now)?;
    let what = format!("the agent of {node} has not reported for {silent}");
    Some(Finding::plain(what, see))
}

fn failed(report: &NodeReport) -> Option<Finding> {
    let state = report.state.as_deref().and_then(NodeUpdateState::parse)?;
    let advice = match state {
        NodeUpdateState::Degraded => {
            "fix the reported problem; it is retried automatically if a retry may help"
        }
        NodeUpdateState::Unreconcilable => {
            "set a desired config that this machine supports; nothing was changed"
        }
        NodeUpdateState::Working | NodeUpdateState::Done => return None,
    };
    let reason = report.reason.as_deref().unwrap_or("no reason given");
    let what = format!("{} is {state}: {reason}", report.node);
    Some(match annotations::leading(reason) {
        Some(code) => Finding::coded(code, what, advice),
        None => Finding::plain(what, advice),
    })
}

/// What the user can do so that an update continues.
fn advice(reason: Reason, report: &NodeReport) -> String {
    let known = remedy(reason, &report.node);
    match known.is_empty() {
        true => reason.meaning().trim().to_owned(),
        false => known,
    }
}

/// Why an update does not start, from the reason that the node publishes in state `Working`; such
/// an update does not continue by waiting.
fn held_up(report: &NodeReport) -> Option<Finding> {
    let reason = report.reason.as_deref()?;
    let code = annotations::leading(reason)?;
    let known = remedy(code, &report.node);
    let advice = match known.is_empty() {
        true => "fix the reported problem".to_owned(),
        false => known,
    };
    let what = format!("{}: {reason}", report.node);
    Some(Finding::coded(code, what, advice))
}

fn update(report: &NodeReport) -> Option<Finding> {
    let desired = report.config.desired.as_deref()?;
    let state = report.state.as_deref().and_then(NodeUpdateState::parse);
    if matches!(
        state,
        Some(NodeUpdateState::Degraded | NodeUpdateState::Unreconcilable)
    ) {
        return None;
    }
    if let Some(step) = &report.step {
        let what = format!("update to {desired} in progress: {}", step.name);
        return Some(Finding::plain(what, "wait"));
    }
    let same = report.config.current.as_deref() == Some(desired);
    match (same, state) {
        (true, Some(NodeUpdateState::Done)) => None,
        (_, Some(NodeUpdateState::Working)) if let Some(held_up) = held_up(report) => Some(held_up),
        (_, Some(NodeUpdateState::Working)) => Some(Finding::plain(
            format!("update to {desired} in progress"),
            "wait; for its phase, on the node: machinist status",
        )),
        _ => Some(Finding::plain(
            format!(
                "{} has not started the update to {desired} yet",
                report.node
            ),
            "",
        )),
    }
}

fn cordon(report: &NodeReport) -> Option<Finding> {
    let cordon = report.cordon;
    let (what, advice) = match (cordon.by, cordon.kept) {
        (Some("other"), _) => (
            "was cordoned by another client and stays cordoned after an update",
            format!("machinist uncordon {}", report.node),
        ),
        (Some(_), true) => (
            "stays cordoned after the update: annotation machinist.dev/keep-cordoned is set",
            format!("after the update: machinist uncordon {}", report.node),
        ),
        _ => return None,
    };
    Some(Finding::plain(format!("{} {what}", report.node), advice))
}

/// The findings about the node's pool.
fn pool(report: &NodeReport) -> Option<Finding> {
    let node = &report.node;
    let Some(desired) = report.config.desired.as_deref() else {
        let what = format!("{node} has no desired config");
        let advice = match &report.pool {
            Some(pool) => format!(
                "the controller that rolls out pool {} sets {}",
                pool.name,
                protocol::DESIRED_CONFIG
            ),
            None => format!(
                "no pool selects the node: label it, or set {}",
                protocol::DESIRED_CONFIG
            ),
        };
        return Some(Finding::plain(what, advice));
    };
    let pool = report.pool.as_ref()?;
    let target = pool.target.as_deref().filter(|target| *target != desired)?;
    let finding = match (pool.paused, pool.skipped) {
        (true, _) => Finding::plain(
            format!("pool {} is paused; {target} is not rolled out", pool.name),
            format!("machinist resume --pool {}", pool.name),
        ),
        (false, true) => Finding::plain(
            format!("{node} is skipped in the rollout of {target}"),
            format!("machinist skip {node} --undo"),
        ),
        (false, false) => Finding::plain(
            format!(
                "pool {} is rolling out {target}; {node} is not updated yet",
                pool.name
            ),
            format!(
                "to see which node is being updated: machinist status --pool {}",
                pool.name
            ),
        ),
    };
    Some(finding)
}

fn gates(report: &NodeReport) -> Option<Finding> {
    if report.ready != Some(false) || !report.blocked_by.is_empty() {
        return None;
    }
    let message = report.ready_message.as_deref().unwrap_or_default();
    let what = format!("{} is not ready: {message}", report.node);
    let code = report.ready_reason.as_deref().and_then(Reason::named);
    Some(match code {
        Some(code) => Finding::coded(code, what, ""),
        None => Finding::plain(what, ""),
    })
}

fn settled(report: &NodeReport) -> Finding {
    let config = report.config.current.as_deref().unwrap_or("no config");
    let what = format!("{} is up to date: {config}", report.node);
    Finding::plain(what, "")
}
