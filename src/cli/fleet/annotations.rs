//! Parses the values of annotations.

use jiff::Timestamp;
use serde::Serialize;

use machinist_base::reason::Reason;
use machinist_kube_api::{
    MachineConfigNodeStatus, NodeConditionKind, NodeView, Progress, keys::condition,
};

/// One blocker of an update in the annotation `machinist.dev/blocked-by`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in crate::cli) struct BlockedBy {
    /// `namespace/pod`, or a kind and a name.
    pub(in crate::cli) name: String,
    /// The stable code; none if this version does not know it.
    pub(in crate::cli) reason: Option<Reason>,
}

/// Parses `shop/db-0 (DrainBlockedByBudget), shop/web (…)`; truncated entries are skipped.
pub(in crate::cli) fn blocked_by(text: &str) -> Vec<BlockedBy> {
    let each = text.split("), ").filter_map(|one| {
        let (name, code) = one.rsplit_once(" (")?;
        Some(BlockedBy {
            name: name.to_owned(),
            reason: Reason::named(code.trim_end_matches(')')),
        })
    });
    each.collect()
}

/// The code at the start of a text, as in the `reason` annotation.
pub(in crate::cli) fn leading(text: &str) -> Option<Reason> {
    Reason::named(text.split_once(':')?.0)
}

/// Since when a node has been in its state: the last transition in its MachineConfigNode, otherwise
/// the last transition of machinist's condition.
pub(in crate::cli) fn since(
    node: &NodeView,
    progress: Option<&MachineConfigNodeStatus>,
) -> Option<Timestamp> {
    let steps = progress.map_or(&[][..], |progress| &progress.conditions);
    let last = steps.iter().map(|step| step.last_transition_time).max();
    last.or_else(|| node.condition(condition::READY)?.last_transition_time)
}

/// The running step with its message; the last one, if one step is part of another.
pub(in crate::cli) fn step(progress: &MachineConfigNodeStatus) -> Option<(String, String)> {
    let under_way = |kind: &&NodeConditionKind| {
        let all = progress.conditions.iter();
        all.clone()
            .any(|it| it.kind == kind.as_str() && it.status == Progress::Unknown)
    };
    let kind = NodeConditionKind::ALL.iter().rev().find(under_way)?;
    let found = progress
        .conditions
        .iter()
        .find(|it| it.kind == kind.as_str())?;
    Some((found.kind.clone(), found.message.clone()))
}

/// Shortens a rendered config's name, 48 characters that are mostly digest, to the first digits of
/// the digest.
pub(in crate::cli) fn brief(config: &str) -> String {
    let Some((_, digest)) = config.rsplit_once('-').filter(|(head, digest)| {
        let hex = digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        head.starts_with("rendered-") && hex && digest.len() >= 16
    }) else {
        return config.to_owned();
    };
    digest.chars().take(8).collect()
}
