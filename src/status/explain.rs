//! Explains why an update does not progress: the status as sentences, most urgent first.

use serde::Serialize;

use super::{Status, sentences::sentences};
use crate::{readiness::Effect, reason::Reason};

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
        Finding::coded(block.reason, what, what_to_do(block.reason, node))
    }));
    found.extend(phase(status, reboot));
    found.extend(status.held.as_ref().map(|held| {
        Finding::plain(
            format!(
                "the machine is held on {} ({}): its source is not followed",
                held.config, held.by
            ),
            "change the source, or call machinist apply to follow it as it is",
        )
    }));
    found.extend(source(status));
    found.extend(drift(status));
    let closed = status
        .gates
        .iter()
        .filter(|gate| !gate.open && gate.effect == Effect::Hold);
    found.extend(closed.map(|gate| {
        let what = format!("the gate {} holds readiness: {}", gate.name, gate.message);
        Finding::coded(gate.reason, what, "")
    }));
    found
}

/// How to resolve this reason on that node; empty if the reason's own text is sufficient.
pub fn what_to_do(reason: Reason, node: &str) -> String {
    match reason {
        Reason::DrainBlockedByBudget
        | Reason::DrainBudgetNeverAllows
        | Reason::DrainSeveralBudgets
        | Reason::DrainEvictionRefused => format!(
            "make the application whole or change its budget; to force this one drain: kubectl annotate node {node} machinist.dev/force-drain=REASON"
        ),
        Reason::DrainHeldByFinalizer => {
            "ask whoever set the finalizer to let go; a pod that has ended holds up nothing else"
                .to_owned()
        }
        Reason::DrainPodOverdue => format!("look at the kubelet and the runtime of {node}"),
        Reason::DrainPodEnding | Reason::DrainThrottled => "wait".to_owned(),
        Reason::DrainComesBack => {
            "keep its owner from making it here again, such as by a toleration less".to_owned()
        }
        Reason::NodeUncordoned => format!(
            "kubectl cordon {node} lets the drain go on, machinist cancel {node} gives the update up"
        ),
        Reason::ForceNotExplained => {
            format!("kubectl annotate --overwrite node {node} machinist.dev/force-drain=REASON")
        }
        Reason::Cancelled => format!("machinist cancel --undo {node} begins it after all"),
        Reason::OutsideWindow => "wait for the window".to_owned(),
        _ => String::new(),
    }
}

/// A config that is rejected for several reasons results in one finding per reason; the last one
/// contains the action.
fn failures(status: &Status) -> Vec<Finding> {
    let Some(failure) = &status.failure else {
        return Vec::new();
    };
    let advice = match (failure.again, status.phase.as_str()) {
        (true, _) => "nothing: it is tried again by itself, and at once by machinist apply",
        (false, _) => {
            "put right what is named; the same is not tried again until the source changes or \
             machinist apply asks for it"
        }
    };
    let told = sentences(&failure.message);
    let last = told.len() - 1;
    let finding = |(at, message): (usize, String)| {
        let own = |code: &&Reason| message.ends_with(&format!("[{code}]"));
        let code = *Reason::ALL.iter().find(own).unwrap_or(&failure.code);
        Finding::coded(code, message, if at == last { advice } else { "" })
    };
    told.into_iter().enumerate().map(finding).collect()
}

fn phase(status: &Status, reboot: &str) -> Option<Finding> {
    let to = &status.config.desired;
    let (message, advice) = match (status.phase.as_str(), reboot) {
        ("RebootPending", "auto") => (
            format!("{to} is in place and the reboot is ordered"),
            "see who holds it up: systemd-inhibit --list",
        ),
        ("RebootPending", "ask") => (
            format!("{to} is in place and counts after a reboot, which is left to you"),
            "call machinist apply, or reboot",
        ),
        ("RebootPending", _) => (
            format!("{to} is in place and counts after a reboot, which is left to you"),
            "reboot",
        ),
        ("Waiting", _) => (
            format!("{to} is planned and waits for its time"),
            "wait, or call machinist apply to begin now",
        ),
        ("Idle" | "Failed", _) => return None,
        (phase, _) => (format!("an update to {to} is under way: {phase}"), "wait"),
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
                format!("{source} was not read yet, or holds no config"),
                format!("put configs into {source}"),
            ),
            false => Finding::plain(
                "no config is followed: the Node names none, or `jobs` leaves configs to another daemon",
                "where machinist has that job, name one in machineconfiguration.openshift.io/desiredConfig",
            ),
        });
    }
    let same = config.digest == config.desired_digest;
    let settled = same && status.phase == "Idle" && status.held.is_none();
    settled.then(|| {
        Finding::plain(
            format!("the machine is on {}, as {source} asks", config.current),
            "",
        )
    })
}

fn drift(status: &Status) -> Option<Finding> {
    let drift = &status.config.drift;
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
    let advice =
        "machinist apply puts it back; drift.paths in the settings can say repair or ignore";
    Some(Finding::coded(Reason::Drifted, what, advice))
}
