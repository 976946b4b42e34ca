//! Records the Node and its MachineConfigNode over time, each version as the watch delivered it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    time::Instant,
};

use serde_json::Value;

use super::GROUP;

/// How many versions a failure message shows.
const LAST_VERSIONS: usize = 40;

/// The fields of a Node that the controller uses.
#[derive(Clone, Debug)]
pub struct NodeSight {
    pub at: Instant,
    pub name: String,
    pub state: String,
    pub reason: String,
    pub desired_config: String,
    pub current_config: String,
    pub desired_drain: String,
    pub last_applied_drain: String,
    pub cordoned: bool,
    /// The reasons of machinist's own conditions.
    pub reasons: BTreeSet<String>,
}

impl NodeSight {
    pub fn of(node: &Value) -> Self {
        let annotation = |name: &str| {
            let all = &node["metadata"]["annotations"];
            all[format!("{GROUP}/{name}")]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        let conditions = node["status"]["conditions"].as_array();
        let ours = conditions.into_iter().flatten().filter(|condition| {
            condition["type"]
                .as_str()
                .is_some_and(|kind| kind.starts_with("machinist.dev"))
        });
        let reasons = ours.filter_map(|condition| condition["reason"].as_str().map(str::to_owned));
        Self {
            at: Instant::now(),
            name: node["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            state: annotation("state"),
            reason: annotation("reason"),
            desired_config: annotation("desiredConfig"),
            current_config: annotation("currentConfig"),
            desired_drain: annotation("desiredDrain"),
            last_applied_drain: annotation("lastAppliedDrain"),
            cordoned: node["spec"]["unschedulable"] == true,
            reasons: reasons.collect(),
        }
    }

    pub fn is_on(&self, config: &str) -> bool {
        self.desired_config == config && self.is_done()
    }

    pub fn is_done(&self) -> bool {
        self.current_config == self.desired_config && self.state == "Done"
    }

    pub fn is_failing(&self) -> bool {
        self.current_config != self.desired_config && self.is_degraded()
    }

    pub fn is_degraded(&self) -> bool {
        ["Degraded", "Unreconcilable"].contains(&self.state.as_str())
    }

    /// All fields but the time, as text.
    fn as_text(&self) -> String {
        format!(
            "{}: {} ({}), {} of {}, asks {} of {}, cordoned {}, {:?}",
            self.name,
            self.state,
            self.reason,
            self.current_config,
            self.desired_config,
            self.desired_drain,
            self.last_applied_drain,
            self.cordoned,
            self.reasons
        )
    }
}

/// The content of a MachineConfigNode.
#[derive(Clone, Debug)]
pub struct ProgressSight {
    pub at: Instant,
    /// `configVersion.desired` of its spec and of its status.
    pub desired: BTreeSet<String>,
    /// Status and message by type.
    pub conditions: BTreeMap<String, (String, String)>,
}

impl ProgressSight {
    pub fn of(object: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let desired = ["spec", "status"].map(|part| &object[part]["configVersion"]["desired"]);
        let conditions = object["status"]["conditions"].as_array();
        let conditions = conditions.into_iter().flatten().map(|condition| {
            let output = (text(&condition["status"]), text(&condition["message"]));
            (text(&condition["type"]), output)
        });
        Self {
            at: Instant::now(),
            desired: desired
                .into_iter()
                .filter(|it| !it.is_null())
                .map(text)
                .collect(),
            conditions: conditions.collect(),
        }
    }

    pub fn status(&self, kind: &str) -> &str {
        self.conditions.get(kind).map_or("", |(status, _)| status)
    }

    fn as_text(&self) -> String {
        let output = self.conditions.iter();
        let output = output.map(|(kind, (status, _))| format!("{kind}={status}"));
        format!(
            "{:?}: {}",
            self.desired,
            output.collect::<Vec<_>>().join(" ")
        )
    }
}

/// All versions, in the order in which they were received.
#[derive(Debug, Default)]
pub struct Seen {
    nodes: Vec<NodeSight>,
    progress: Vec<ProgressSight>,
}

impl Seen {
    pub fn node(&mut self, snapshot: NodeSight) {
        let last = self.nodes.last();
        if last.is_none_or(|last| last.as_text() != snapshot.as_text()) {
            self.nodes.push(snapshot);
        }
    }

    pub fn progress(&mut self, snapshot: ProgressSight) {
        self.progress.push(snapshot);
    }

    pub fn last(&self) -> Option<&NodeSight> {
        self.nodes.last()
    }

    /// How many versions of the Node and of the MachineConfigNode have been recorded.
    pub fn mark(&self) -> (usize, usize) {
        (self.nodes.len(), self.progress.len())
    }

    pub fn nodes_from(&self, mark: usize) -> &[NodeSight] {
        &self.nodes[mark..]
    }

    pub fn progress_from(&self, mark: usize) -> &[ProgressSight] {
        &self.progress[mark..]
    }

    /// The last recorded versions as text, for failure messages.
    pub fn describe(&self) -> String {
        let nodes = self.nodes.iter().map(|it| (it.at, it.as_text()));
        let progress = self.progress.iter().map(|it| (it.at, it.as_text()));
        let mut all: Vec<_> = nodes.chain(progress).collect();
        all.sort();
        let begun = all.first().map(|(at, _)| *at);
        let mut message = String::new();
        for (at, output) in &all[all.len().saturating_sub(LAST_VERSIONS)..] {
            let after = begun.map(|begun| at.duration_since(begun));
            writeln!(message, "{:>9.1?} {output}", after.unwrap_or_default()).unwrap();
        }
        message
    }
}
