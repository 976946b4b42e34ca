//! Formats the result of a drain as data and as text.

use std::fmt::Write as _;

use serde::Serialize;

use crate::cli::node_selection::DryRunArg;
use machinist_base::{error_chain::chain, reason::Reason};
use machinist_cluster::ClusterError;
use machinist_drain::{
    PodId, PodNote, PodWait,
    eviction::{DrainError, DrainPreview, EvictionProgress},
};
use machinist_plan::escape_line;

/// The document of `drain -o json`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DrainOutput {
    api_version: &'static str,
    kind: &'static str,
    dry_run: &'static str,
    pub(super) nodes: Vec<NodeDrainReport>,
}

impl DrainOutput {
    pub(super) fn new(dry_run: &'static str, nodes: Vec<NodeDrainReport>) -> Self {
        Self {
            api_version: "machinist.dev/v1",
            kind: "Drain",
            dry_run,
            nodes,
        }
    }
}

/// One node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeDrainReport {
    node: String,
    outcome: &'static str,
    /// Why the drain failed.
    pub(super) reason: Option<Reason>,
    pub(super) message: Option<String>,
    gone: usize,
    /// The pods that would be evicted, in order; empty unless it is a dry run.
    evict: Vec<PodMessage>,
    /// Warnings about pods that stay or lose data.
    warnings: Vec<PodMessage>,
    /// The pods that the drain waits for.
    waits: Vec<PodMessage>,
    left_behind: Vec<PodId>,
    #[serde(skip)]
    dry_run: &'static str,
}

/// A pod and a message about it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PodMessage {
    namespace: String,
    name: String,
    reason: Option<Reason>,
    message: Option<String>,
    since: Option<jiff::Timestamp>,
    expected_end: Option<jiff::Timestamp>,
}

impl PodMessage {
    fn of(pod: &PodId) -> Self {
        Self {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            reason: None,
            message: None,
            since: None,
            expected_end: None,
        }
    }

    fn note((pod, note): &(PodId, PodNote)) -> Self {
        Self {
            reason: Some(note.reason()),
            message: Some(note.sentence()),
            ..Self::of(pod)
        }
    }

    fn wait(wait: &PodWait) -> Self {
        Self {
            reason: Some(wait.what.reason()),
            message: Some(wait.sentence()),
            since: Some(wait.since),
            expected_end: wait.expected_end,
            ..Self::of(&wait.pod)
        }
    }
}

impl NodeDrainReport {
    fn new(node: &str, outcome: &'static str) -> Self {
        Self {
            node: node.to_owned(),
            outcome,
            reason: None,
            message: None,
            gone: 0,
            evict: Vec::new(),
            warnings: Vec::new(),
            waits: Vec::new(),
            left_behind: Vec::new(),
            dry_run: "",
        }
    }

    pub(super) fn failed(node: &str, error: &DrainError) -> Self {
        Self {
            reason: Some(error.reason()),
            message: Some(chain(error)),
            ..Self::new(node, "Failed")
        }
    }

    pub(super) fn cordon_failed(node: &str, error: &ClusterError) -> Self {
        Self {
            reason: Some(error.reason()),
            message: Some(chain(error)),
            ..Self::new(node, "Failed")
        }
    }

    pub(super) fn drained(node: &str, last: &EvictionProgress) -> Self {
        Self::new(node, "Drained").with_progress(last)
    }

    /// Adds the last progress.
    pub(super) fn with_progress(self, last: &EvictionProgress) -> Self {
        Self {
            gone: last.gone,
            warnings: last.notes.iter().map(PodMessage::note).collect(),
            waits: last.waits.iter().map(PodMessage::wait).collect(),
            left_behind: last.left_behind.clone(),
            ..self
        }
    }

    pub(super) fn preview(node: &str, dry_run: DryRunArg, rehearsal: &DrainPreview) -> Self {
        let evict = rehearsal.evict.iter().map(|one| {
            let kept = one.kept_by.clone().map(|what| PodWait {
                pod: one.pod.clone(),
                what,
                since: jiff::Timestamp::UNIX_EPOCH,
                expected_end: None,
                too_late_for: None,
            });
            let kept = kept.as_ref().map(PodMessage::wait);
            PodMessage {
                since: None,
                ..kept.unwrap_or_else(|| PodMessage::of(&one.pod))
            }
        });
        let lost = rehearsal.evict.iter();
        let lost = lost.flat_map(|one| one.notes.iter().map(|n| (one.pod.clone(), n.clone())));
        let lost: Vec<_> = lost.collect();
        Self {
            evict: evict.collect(),
            warnings: rehearsal
                .leave
                .iter()
                .chain(&lost)
                .map(PodMessage::note)
                .collect(),
            dry_run: dry_run.suffix(),
            ..Self::new(node, "WouldDrain")
        }
    }

    pub(super) fn to_text(&self) -> String {
        let Self { node, dry_run, .. } = self;
        let mut text = String::new();
        match self.outcome {
            "Drained" => {
                let pods = if self.gone == 1 { "pod" } else { "pods" };
                let _ = writeln!(text, "node/{node} drained: {} {pods} removed", self.gone);
                for pod in &self.left_behind {
                    let _ = writeln!(text, "pod/{pod} was not waited for");
                }
            }
            "WouldDrain" => {
                let _ = writeln!(text, "node/{node} cordoned{dry_run}");
                for pod in &self.evict {
                    let kept = pod.message.as_ref().map(|why| format!(": {why}"));
                    let kept = escape_line(&kept.unwrap_or_default());
                    let _ = writeln!(
                        text,
                        "pod/{}/{} evicted{dry_run}{kept}",
                        pod.namespace, pod.name
                    );
                }
                for note in &self.warnings {
                    let why = escape_line(note.message.as_deref().unwrap_or_default());
                    let _ = writeln!(text, "pod/{}/{} {why}", note.namespace, note.name);
                }
                let _ = writeln!(text, "node/{node} drained{dry_run}");
            }
            // It was printed on stderr when it happened.
            _ => {}
        }
        text
    }
}
