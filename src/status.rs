//! The status document: what the agent says about itself, to scripts and to people.
//!
//! The JSON shape is a promise: a field may be added, never renamed or removed, and a field without a
//! value is `null`, never left out. [`render`] makes the page for people.

mod config_rows;
mod explain;
mod history;
mod sentences;
mod text;
mod timeline;

pub use crate::plan::DriftKind;
pub use explain::{Finding, explain, what_to_do};
pub use history::render as render_history;
pub use sentences::{in_short, sentences};
pub use text::render;
pub use timeline::timeline;

use std::{borrow::Cow, sync::Arc};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{plan::Drift, readiness::Gates, reason::Reason};

/// What the agent says about itself and its machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Always `machinist.dev/v1`.
    pub api_version: String,
    /// Always `Status`.
    pub kind: String,
    /// The agent's version.
    pub version: String,
    /// The Node's name, in a cluster.
    pub node: Option<String>,
    /// The root directory, as it was given.
    pub root: String,
    /// What kind of machine the root is.
    pub mode: Mode,
    /// Where the desired config comes from, for example `dir:/etc/machinist/machine.d`.
    pub source: String,
    /// The address that probes and metrics are served at; empty until it is bound.
    pub admin: String,
    /// No closed gate holds.
    pub ready: bool,
    /// The phase of the update.
    pub phase: String,
    /// Since when that phase.
    pub since: Timestamp,
    /// Why the last update failed, if it did.
    pub failure: Option<FailureStatus>,
    /// Which config is here, and which is wanted.
    pub config: ConfigStatus,
    /// The config that a person holds the machine on, whatever the source says.
    #[serde(default)]
    pub held: Option<HeldStatus>,
    /// The number of the last word of a person that the agent has taken up, since its start.
    #[serde(default)]
    pub asked: u64,
    /// Every gate.
    pub gates: Gates,
    /// What an update waits for.
    pub blockers: Vec<Blocker>,
    /// Every resource that is lent.
    pub devices: Arc<Vec<ResourceStatus>>,
    /// What is wrong with declarations, one line each, the file first.
    #[serde(default)]
    pub device_problems: Vec<String>,
    /// Why nobody knows who has which device; none while the kubelet tells, and before anybody asked.
    #[serde(default)]
    pub holders_unknown: Option<String>,
    /// Resources of which the Node counts none, and that nobody lends here any more.
    #[serde(default)]
    pub zero_resources: Vec<String>,
    /// Every vendor that has a program of its own.
    #[serde(default)]
    pub vendors: Vec<VendorStatus>,
    /// The last updates, newest first.
    pub updates: Vec<UpdateStatus>,
}

/// What kind of machine the root is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Mode {
    /// A directory without a running system in it.
    Offline,
    /// A running machine by itself.
    Machine,
    /// A node of a cluster.
    Cluster,
}

/// Why an update failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailureStatus {
    /// The stable code.
    pub code: Reason,
    /// One sentence.
    pub message: String,
    /// Whether it will be tried again.
    pub again: bool,
}

/// Which config is here, and which is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigStatus {
    /// The name of the verified config; empty before the first one.
    pub current: String,
    /// The name of the desired config; empty when none was read.
    pub desired: String,
    /// `sha256:…` of the verified config; empty before the first one.
    pub digest: String,
    /// `sha256:…` of the desired config; empty when none was read.
    #[serde(default)]
    pub desired_digest: String,
    /// What is odd in the desired config and does not keep it from being accepted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// What the plan of the pending update warns of on this machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plan_warnings: Vec<String>,
    /// What is not as the verified config says.
    pub drift: Vec<DriftStatus>,
    /// Files in place whose SELinux labels could not be set ([`Reason::LabelPending`]).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels_pending: Vec<String>,
}

/// A config that a person chose beside the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldStatus {
    /// Its name.
    pub config: String,
    /// `sha256:…` of it.
    pub digest: String,
    /// The command that asked for it: `rollback` or `apply`.
    pub by: String,
    /// Since when.
    pub since: Timestamp,
}

/// One path that is not as configured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DriftStatus {
    /// The path from the root; for [`DriftKind::Unit`] the unit's name.
    pub path: String,
    /// What differs.
    pub kind: DriftKind,
    /// Whose entries differ in a database of users and groups; none for everything else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<String>,
}

impl From<&Drift> for DriftStatus {
    fn from(drift: &Drift) -> Self {
        Self {
            path: drift.path.to_string(),
            kind: drift.kind,
            entry: drift.entry.clone(),
        }
    }
}

/// Something an update waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Blocker {
    /// What it is: `Pod`, `Inhibitor`, …
    pub kind: String,
    /// Its namespace; empty where there is none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The stable code.
    pub reason: Reason,
    /// One sentence.
    pub message: String,
    /// Since when it is in the way.
    pub since: Timestamp,
}

/// One vendor that has a program of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VendorStatus {
    /// Its name.
    pub vendor: String,
    /// Whether its program is connected.
    pub connected: bool,
    /// What that program calls itself; none while nobody is connected.
    pub instance: Option<String>,
    /// Sessions that it was granted since the agent started.
    pub sessions: u64,
    /// Connections, sessions and messages of its that were refused since.
    pub refused: u64,
    /// Why the last of these was, or why its last session ended.
    pub last_reason: Option<String>,
    /// Why its devices lapse unless it says them again, or have lapsed, or why nobody can connect; none when all is
    /// well.
    pub problem: Option<String>,
    /// It was told to let go of its hardware.
    pub quiesced: bool,
}

impl VendorStatus {
    /// What is wrong with it, in words, and what was last; the same is not said twice.
    pub fn told(&self) -> impl Iterator<Item = String> {
        let problem = self.problem.as_deref();
        let last = self.last_reason.as_deref();
        let last = last.filter(|last| problem.is_none_or(|problem| !last.contains(problem)));
        // What ended the session before is not what this one is like.
        let last = last.map(|last| match self.connected {
            true => format!("last: {last}"),
            false => last.to_owned(),
        });
        problem.map(str::to_owned).into_iter().chain(last)
    }
}

/// One resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceStatus {
    /// For example `machinist.dev/fuse`.
    pub resource: String,
    /// Who declared it.
    pub source: String,
    /// How pods come by it: `devicePlugin`, or `dra` for claims.
    #[serde(default)]
    pub serve: String,
    /// The kubelet knows it.
    pub registered: bool,
    /// Since when that is so, or not.
    #[serde(default)]
    pub since: Option<Timestamp>,
    /// Why the kubelet does not know it; empty when it does.
    #[serde(default)]
    pub reason: String,
    /// Its devices.
    pub devices: Vec<DeviceStatus>,
}

/// One device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceStatus {
    /// As the kubelet knows it.
    pub id: String,
    /// `Healthy` or `Unhealthy`.
    pub health: Cow<'static, str>,
    /// Why it is unhealthy; empty when it is not.
    pub reason: String,
    /// Since when its health and its reason are these; as far as the agent knows, so since its start at most.
    #[serde(default)]
    pub since: Option<Timestamp>,
    /// The container that has it, as `namespace/pod/container`.
    pub holder: Option<String>,
    /// Since when that one is known to have it.
    #[serde(default)]
    pub held_since: Option<Timestamp>,
}

/// One update.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStatus {
    /// The transaction's id.
    pub id: String,
    /// The config before; none for the first one.
    pub from: Option<String>,
    /// The config it went to.
    pub to: String,
    /// `sha256:…` of the config it went to.
    #[serde(default)]
    pub digest: String,
    /// When it began.
    pub started: Timestamp,
    /// When it ended; none while it runs.
    pub finished: Option<Timestamp>,
    /// How it ended; none while it runs.
    pub outcome: Option<Outcome>,
    /// Why it ended so, if there is something to say.
    pub reason: Option<Reason>,
    /// The phases it went through.
    pub phases: Vec<PhaseStatus>,
    /// What was to be done after the commit.
    #[serde(default)]
    pub actions: Vec<ActionStatus>,
}

/// One action of an update.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ActionStatus {
    /// What is done, as a plan calls it: `Restart`, `DaemonReload`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// To which unit; none for what concerns the whole machine.
    pub unit: Option<String>,
    /// How far it came: `Pending`, `Started`, `Done`.
    pub state: String,
}

/// How an update ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// Applied and verified.
    Done,
    /// Applied to a directory; nothing runs there.
    AppliedOffline,
    /// Undone; the config before holds.
    RolledBack,
    /// The config was taken back before it was applied.
    Withdrawn,
    /// Neither applied nor wholly undone.
    Failed,
}

impl Outcome {
    /// The outcome as it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "Done",
            Self::AppliedOffline => "AppliedOffline",
            Self::RolledBack => "RolledBack",
            Self::Withdrawn => "Withdrawn",
            Self::Failed => "Failed",
        }
    }
}

/// One phase of an update.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PhaseStatus {
    /// Its name.
    pub name: String,
    /// When it began.
    pub started: Timestamp,
    /// When it ended; none while it lasts.
    pub finished: Option<Timestamp>,
}

impl Status {
    /// The status of an agent that has just started and knows nothing yet.
    pub fn starting(root: impl Into<String>, mode: Mode, now: Timestamp) -> Self {
        Self {
            api_version: "machinist.dev/v1".to_owned(),
            kind: "Status".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: None,
            root: root.into(),
            mode,
            source: String::new(),
            admin: String::new(),
            ready: false,
            phase: "Idle".to_owned(),
            since: now,
            failure: None,
            config: ConfigStatus::default(),
            held: None,
            asked: 0,
            gates: Gates::default(),
            blockers: Vec::new(),
            devices: Arc::default(),
            device_problems: Vec::new(),
            holders_unknown: None,
            zero_resources: Vec::new(),
            vendors: Vec::new(),
            updates: Vec::new(),
        }
    }

    /// Why each resource is on the Node that it counts none of: one line each, without its end.
    pub fn leftovers(&self) -> impl Iterator<Item = String> {
        let lines = self.zero_resources.iter();
        lines.map(|name| {
            format!("{name}: the Node still counts 0 of it, and machinist does not lend it")
        })
    }

    /// The sentence for `STATUS=` and `/readyz`.
    pub fn summary(&self) -> String {
        if self.gates.iter().next().is_none() {
            return "starting".to_owned();
        }
        if self.gates.ready() && !self.ready {
            let why = self.blockers.first().map(|it| format!(": {}", it.message));
            let why = why.unwrap_or_default();
            return format!("not ready: {} was not read yet{why}", self.source);
        }
        match self.phase.as_str() {
            "Idle" => self.gates.summary(),
            phase => format!("{phase}; {}", self.gates.summary()),
        }
    }
}

#[cfg(test)]
mod tests;
