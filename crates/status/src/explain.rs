//! Explains why an update does not progress: the status as sentences, most urgent first.

use serde::Serialize;

use super::{Status, failure_message::sentences};
use crate::readiness::GateEffect;
use machinist_base::reason::Reason;
use machinist_plan::DriftKind;

/// How to proceed with a journal that cannot be read.
pub const JOURNAL_UNREADABLE_ADVICE: &str = "stop the agent (systemctl stop machinist; in a cluster label the node agent.machinist.dev/disabled=), run machinist journal reset, then start the agent again";

/// What to do about an obstacle on the machine.
const OBSTACLE_ADVICE: &str = "change on the machine what the message names; it is retried automatically within five minutes; to retry now: machinist apply";

/// How to proceed with a journal that a newer version has written.
pub const JOURNAL_TOO_NEW_ADVICE: &str =
    "install the version of machinist that wrote the journal, or a newer one";

/// One obstacle, and how to resolve it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The stable code, if there is one.
    pub reason: Option<Reason>,
    /// The situation, in one sentence.
    pub message: String,
    /// The recommended action; empty if there is none.
    pub advice: String,
}

impl Finding {
    /// A finding without a code.
    pub fn plain(message: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            reason: None,
            message: message.into(),
            advice: advice.into(),
        }
    }

    /// A finding with its code.
    pub fn coded(reason: Reason, message: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            reason: Some(reason),
            ..Self::plain(message, advice)
        }
    }
}

/// Explains the agent's activity or the reason why it waits. `reboot` is the setting
/// `update.reboot`. Never empty.
pub fn explain(status: &Status, reboot: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(failures(status));
    found.extend(status.blockers.iter().map(|block| {
        let name = format!("{} {}", block.kind, block.name);
        let what = format!("{}: {}", name.trim_end(), block.message);
        let node = status.node.as_deref().unwrap_or("NODE");
        Finding::coded(block.reason, what, remedy(block.reason, node))
    }));
    found.extend(phase(status, reboot));
    found.extend(status.held.as_ref().map(|held| {
        Finding::plain(
            format!(
                "machine pinned to {} ({}): its source is not followed",
                held.config, held.by
            ),
            "to follow the source again, change it or run machinist apply",
        )
    }));
    found.extend(source(status));
    found.extend(drift(status));
    let closed = status
        .gates
        .iter()
        .filter(|gate| !gate.open && gate.effect == GateEffect::Hold);
    found.extend(closed.map(|gate| {
        let what = format!("gate {} is closed: {}", gate.name, gate.message);
        Finding::coded(gate.reason, what, "")
    }));
    found
}

/// How to resolve this reason on that node; empty if the reason's own text is sufficient.
pub fn remedy(reason: Reason, node: &str) -> String {
    match reason {
        Reason::DrainBlockedByBudget
        | Reason::DrainBudgetNeverAllows
        | Reason::DrainSeveralBudgets
        | Reason::DrainEvictionRefused => format!(
            "restore the application's healthy pods or relax its PodDisruptionBudget; to force this drain: kubectl annotate node {node} machinist.dev/force-drain=REASON"
        ),
        Reason::DrainHeldByFinalizer => {
            "fix the controller that owns the finalizer, or remove the finalizer".to_owned()
        }
        Reason::PodTerminationOverdue => {
            format!("check the kubelet and the container runtime of {node}")
        }
        Reason::PodTerminating | Reason::DrainThrottled => "wait".to_owned(),
        Reason::PodRescheduledOnNode => {
            "stop its owner from scheduling it on this node, for example by removing a toleration"
                .to_owned()
        }
        Reason::NodeUncordoned => format!(
            "to resume the drain: kubectl cordon {node}; to cancel the update: machinist cancel {node}"
        ),
        Reason::ForceReasonMissing => {
            format!("kubectl annotate --overwrite node {node} machinist.dev/force-drain=REASON")
        }
        Reason::AwaitingGrant => {
            "to see whether a controller is running: kubectl -n machinist-system get lease machinist-controller"
                .to_owned()
        }
        Reason::Cancelled => format!("to start it anyway: machinist cancel --undo {node}"),
        Reason::OutsideWindow => "wait for the maintenance window".to_owned(),
        _ => String::new(),
    }
}

/// A config that is rejected for several reasons results in one finding per reason; the last one
/// contains the action.
fn failures(status: &Status) -> Vec<Finding> {
    let Some(failure) = &status.failure else {
        return Vec::new();
    };
    let advice = match (failure.code, failure.retryable) {
        (Reason::JournalUnreadable, _) => JOURNAL_UNREADABLE_ADVICE,
        (Reason::JournalTooNew, _) => JOURNAL_TOO_NEW_ADVICE,
        (code, true) if code.is_obstacle() => OBSTACLE_ADVICE,
        (_, true) => "no action needed, it is retried automatically; to retry now: machinist apply",
        (_, false) => {
            "fix the reported problem; there is no retry until the source changes or you run machinist apply"
        }
    };
    let told = sentences(&failure.message, &failure.refusals);
    let last = told.len() - 1;
    let finding = |(at, message): (usize, String)| {
        let own = failure.refusals.get(at);
        let code = own.map_or(failure.code, |refusal| refusal.reason);
        Finding::coded(code, message, if at == last { advice } else { "" })
    };
    told.into_iter().enumerate().map(finding).collect()
}

fn phase(status: &Status, reboot: &str) -> Option<Finding> {
    let to = &status.config.desired;
    let (message, advice) = match (status.phase.as_str(), reboot) {
        ("RebootPending", "auto") => (
            format!("{to} is in place, reboot requested"),
            "to see what delays it: systemd-inhibit --list",
        ),
        ("RebootPending", "ask") => (
            format!("{to} is in place and takes effect after a reboot"),
            "run machinist apply, which reboots; a manual reboot does not try kernel arguments or an OS image",
        ),
        ("RebootPending", _) => (
            format!("{to} is in place and takes effect after a reboot"),
            "reboot; for kernel arguments or an OS image set update.reboot: ask and run machinist apply",
        ),
        ("Waiting", _) => (
            format!("update to {to} is waiting for its start time"),
            "wait; to start now: machinist apply",
        ),
        ("Fetching", _) => (
            format!("the OS image or packages of {to} are being downloaded"),
            "wait; to see the download: systemctl status machinist-os.service",
        ),
        ("Idle" | "Failed", _) => return None,
        (phase, _) => (format!("update to {to} in progress: {phase}"), "wait"),
    };
    Some(Finding::plain(message, advice))
}

fn source(status: &Status) -> Option<Finding> {
    let config = &status.config;
    let source = &status.source;
    if config.desired.is_empty() {
        let waits = status.failure.is_some() || !status.blockers.is_empty();
        return (!waits).then(|| match source.starts_with("dir:") {
            true => Finding::plain(
                format!("{source} was not read yet, or contains no config"),
                format!("add configs to {source}"),
            ),
            false => Finding::plain(
                "no desired config: the Node has none, or `roles` does not include config",
                "set the Node annotation machineconfiguration.openshift.io/desiredConfig, if `roles` includes config",
            ),
        });
    }
    let same = config.digest == config.desired_digest;
    let settled = same && status.phase == "Idle" && status.held.is_none();
    settled.then(|| {
        Finding::plain(
            format!("machine is up to date: {} from {source}", config.current),
            "",
        )
    })
}

fn drift(status: &Status) -> Option<Finding> {
    let drift = &status.config.drift;
    if let Some(suspended) = drift.iter().find(|it| it.repair_suspended) {
        let what = format!(
            "{} is not as configured ({}); another program changed it again after several repairs, so its repair is \
             suspended for some minutes",
            suspended.path,
            suspended.kind.as_str()
        );
        let advice = "end the changes of the other program, or remove the file from the config; to ignore it: drift.paths in the settings";
        return Some(Finding::coded(Reason::Drifted, what, advice));
    }
    let first = drift.first()?;
    let more = match drift.len() {
        1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    let what = format!(
        "{} is not as configured ({}){more}",
        first.path,
        first.kind.as_str()
    );
    let advice = match first.kind {
        DriftKind::KernelArgument => {
            "to boot with the kernel arguments of the config: machinist apply; otherwise remove them from the config"
        }
        _ => {
            "to repair it: machinist apply; to repair or ignore it always: drift.paths in the settings"
        }
    };
    Some(Finding::coded(Reason::Drifted, what, advice))
}
