//! The status document: the agent's state, for scripts and for people.
//!
//! The JSON format is stable: fields may be added, but are never renamed or removed, and a field
//! without a value is `null` instead of missing. [`render`] formats the document for people.

mod config_rows;
mod explain;
mod failure_message;
mod history;
pub mod metrics;
pub mod readiness;
mod report_row;
pub mod settings;
mod text_report;
mod timeline;

pub use explain::{Finding, JOURNAL_TOO_NEW_ADVICE, JOURNAL_UNREADABLE_ADVICE, explain, remedy};
pub use failure_message::{in_short, sentences};
pub use history::render as render_history;
pub use machinist_plan::DriftKind;
pub use text_report::render;
pub use timeline::timeline;

use std::{borrow::Cow, sync::Arc};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::readiness::Gates;
use machinist_base::reason::Reason;
use machinist_ignition::Refusal;
use machinist_plan::DriftEntry;

/// The state of the agent and its machine.
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
    /// UID of the Node for which the gates were evaluated; empty while the Node is unknown.
    #[serde(skip)]
    pub node_uid: String,
    /// The root directory, as given on the command line.
    pub root: String,
    /// The kind of root.
    pub mode: Mode,
    /// Where the desired config comes from, for example `dir:/etc/machinist/machine.d`.
    pub source: String,
    /// The address of probes and metrics; empty until it is bound.
    pub admin: String,
    /// Whether no blocking gate is closed.
    pub ready: bool,
    /// The phase of the update.
    pub phase: String,
    /// When that phase started.
    pub since: Timestamp,
    /// The progress of the download of an OS image, while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub download: Option<DownloadStatus>,
    /// Why the last update failed, if it did.
    pub failure: Option<FailureStatus>,
    /// The current and the desired config.
    pub config: ConfigStatus,
    /// The config that an operator override holds the machine on, instead of the source's.
    #[serde(default)]
    pub held: Option<PinStatus>,
    /// The number of the last operator request that the agent has processed since its start.
    #[serde(default, alias = "asked")]
    pub requested: u64,
    /// All gates.
    pub gates: Gates,
    /// The blockers of the update.
    pub blockers: Vec<Blocker>,
    /// All advertised resources.
    pub devices: Arc<Vec<ResourceStatus>>,
    /// Errors in device declarations, one line each, starting with the file.
    #[serde(default)]
    pub device_problems: Vec<String>,
    /// Why the holders of devices are unknown; none while the kubelet reports them, and before the
    /// first request.
    #[serde(default)]
    pub holders_unknown: Option<String>,
    /// Resources with a count of zero on the Node that are no longer advertised here.
    #[serde(default, alias = "zeroResources")]
    pub orphaned_resources: Vec<String>,
    /// All vendors with a device driver.
    #[serde(default)]
    pub vendors: Vec<VendorStatus>,
    /// The last updates, newest first.
    pub updates: Vec<UpdateStatus>,
}

/// The progress of the download of an OS image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DownloadStatus {
    /// Bytes that were received; `null` if the host does not count them.
    pub received_bytes: Option<u64>,
    /// Layers that are complete since the download began.
    pub layers: u64,
    /// Layers that it needs; `null` until that is known.
    pub needed_layers: Option<u64>,
    /// Their size as the host's program prints it, such as `1.2 GB`.
    pub needed_size: Option<String>,
}

/// The kind of root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Mode {
    /// A directory without a running system.
    Offline,
    /// A running machine outside a cluster.
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
    /// Whether the update will be retried.
    #[serde(alias = "again")]
    pub retryable: bool,
    /// Why the config is refused; empty for any other failure.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<Refusal>,
}

/// The current and the desired config.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigStatus {
    /// The name of the verified config; empty before the first one.
    pub current: String,
    /// The name of the desired config; empty if none was read.
    pub desired: String,
    /// `sha256:…` of the verified config; empty before the first one.
    pub digest: String,
    /// `sha256:…` of the desired config; empty if none was read.
    #[serde(default)]
    pub desired_digest: String,
    /// Warnings about the desired config, which do not prevent its acceptance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Warnings of the pending update's plan about this machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plan_warnings: Vec<String>,
    /// Differences between the machine and the verified config.
    pub drift: Vec<DriftStatus>,
    /// Files in place whose SELinux labels could not be set ([`Reason::LabelPending`]).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels_pending: Vec<String>,
}

/// An operator override of the desired config.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PinStatus {
    /// Its name.
    pub config: String,
    /// `sha256:…` of it.
    pub digest: String,
    /// The command that set it: `rollback` or `apply`.
    pub by: String,
    /// When it was set.
    pub since: Timestamp,
}

/// One path that differs from the config.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DriftStatus {
    /// The path from the root; for [`DriftKind::Unit`] the unit's name.
    pub path: String,
    /// What differs.
    pub kind: DriftKind,
    /// The user or group whose entry differs in an account database; none for other files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<String>,
    /// Another writer changed it again after several repairs, so it is not repaired for some minutes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repair_suspended: bool,
}

impl From<&DriftEntry> for DriftStatus {
    fn from(drift: &DriftEntry) -> Self {
        Self {
            path: drift.path.to_string(),
            kind: drift.kind,
            entry: drift.entry.clone(),
            repair_suspended: false,
        }
    }
}

/// A blocker of an update.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Blocker {
    /// Its kind: `Pod`, `Inhibitor`, …
    pub kind: String,
    /// Its namespace; empty if it has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The stable code.
    pub reason: Reason,
    /// One sentence.
    pub message: String,
    /// Since when it blocks the update.
    pub since: Timestamp,
}

/// A vendor with a device driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VendorStatus {
    /// Its name.
    pub vendor: String,
    /// Whether its driver is connected.
    pub connected: bool,
    /// The instance name that the driver reports; none while it is not connected.
    pub instance: Option<String>,
    /// Number of sessions accepted since the agent started.
    pub sessions: u64,
    /// Number of the vendor's connections, sessions and messages rejected since the agent started.
    pub refused: u64,
    /// Why the last one was rejected, or why its last session ended.
    pub last_reason: Option<String>,
    /// Why its devices will expire unless the driver reports them again, or have expired, or why no
    /// driver can connect; none if there is no problem.
    pub problem: Option<String>,
    /// Whether it was asked to release its hardware.
    pub quiesced: bool,
}

impl VendorStatus {
    /// The current problem and the last error as text, without duplicates.
    pub fn problem_texts(&self) -> impl Iterator<Item = String> {
        let problem = self.problem.as_deref();
        let last = self.last_reason.as_deref();
        let last = last.filter(|last| problem.is_none_or(|problem| !last.contains(problem)));
        // The end of the previous session does not describe the current one.
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
    /// The origin of its declaration.
    pub source: String,
    /// How pods request it: `devicePlugin`, or `dra` for claims.
    #[serde(default)]
    pub serve: String,
    /// Whether it is registered with the kubelet.
    pub registered: bool,
    /// When that last changed.
    #[serde(default)]
    pub since: Option<Timestamp>,
    /// Why it is not registered; empty if it is.
    #[serde(default)]
    pub reason: String,
    /// Its devices.
    pub devices: Vec<DeviceStatus>,
}

/// One device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceStatus {
    /// The device ID that the kubelet uses.
    pub id: String,
    /// `Healthy` or `Unhealthy`.
    pub health: Cow<'static, str>,
    /// Why it is unhealthy; empty if it is healthy.
    pub reason: String,
    /// Since when health and reason are unchanged, at the earliest since the agent's start.
    #[serde(default)]
    pub since: Option<Timestamp>,
    /// The container that holds it, as `namespace/pod/container`.
    pub holder: Option<String>,
    /// Since when this container is known to hold it.
    #[serde(default)]
    pub held_since: Option<Timestamp>,
}

/// One update.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStatus {
    /// The transaction's id.
    pub id: String,
    /// The previous config; none for the first update.
    pub from: Option<String>,
    /// The target config.
    pub to: String,
    /// `sha256:…` of the target config.
    #[serde(default)]
    pub digest: String,
    /// When it started.
    pub started: Timestamp,
    /// When it ended; none while it runs.
    pub finished: Option<Timestamp>,
    /// How it ended; none while it runs.
    pub outcome: Option<UpdateOutcomeStatus>,
    /// The reason for the outcome, if there is one.
    pub reason: Option<Reason>,
    /// The phases it went through.
    pub phases: Vec<PhaseStatus>,
    /// The actions after the commit.
    #[serde(default)]
    pub actions: Vec<ActionStatus>,
    /// Paths that it left as they were, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_behind: Vec<String>,
}

/// One action of an update.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ActionStatus {
    /// The action, named as in a plan: `Restart`, `DaemonReload`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// The unit; none for actions on the whole machine.
    pub unit: Option<String>,
    /// Its progress: `Pending`, `Started`, `Done`.
    pub state: String,
}

/// How an update ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum UpdateOutcomeStatus {
    /// Applied and verified.
    Done,
    /// Applied to an offline root.
    AppliedOffline,
    /// Rolled back to the previous config.
    RolledBack,
    /// The config was withdrawn before it was applied.
    Withdrawn,
    /// Neither applied nor completely rolled back.
    Failed,
}

impl UpdateOutcomeStatus {
    /// The outcome as text.
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
    /// When it started.
    pub started: Timestamp,
    /// When it ended; none while it lasts.
    pub finished: Option<Timestamp>,
}

impl Status {
    /// The initial status of an agent.
    pub fn starting(root: impl Into<String>, mode: Mode, now: Timestamp) -> Self {
        Self {
            api_version: "machinist.dev/v1".to_owned(),
            kind: "Status".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node: None,
            node_uid: String::new(),
            root: root.into(),
            mode,
            source: String::new(),
            admin: String::new(),
            ready: false,
            phase: "Idle".to_owned(),
            since: now,
            download: None,
            failure: None,
            config: ConfigStatus::default(),
            held: None,
            requested: 0,
            gates: Gates::default(),
            blockers: Vec::new(),
            devices: Arc::default(),
            device_problems: Vec::new(),
            holders_unknown: None,
            orphaned_resources: Vec::new(),
            vendors: Vec::new(),
            updates: Vec::new(),
        }
    }

    /// One line for each resource that the Node still lists with a count of zero, without a full
    /// stop.
    pub fn leftovers(&self) -> impl Iterator<Item = String> {
        let lines = self.orphaned_resources.iter();
        lines.map(|name| format!("{name}: not advertised by machinist; its count on the Node is 0"))
    }

    /// The summary for `STATUS=` and `/readyz`.
    pub fn summary(&self) -> String {
        if self.gates.iter().next().is_none() {
            return "starting".to_owned();
        }
        if self.gates.ready() && !self.ready {
            let why = self.blockers.first().map(|it| format!(": {}", it.message));
            let why = why.unwrap_or_default();
            return format!(
                "not ready: config source {} was not read yet{why}",
                self.source
            );
        }
        match self.phase.as_str() {
            "Idle" => self.gates.summary(),
            phase => format!("{phase}; {}", self.gates.summary()),
        }
    }
}

#[cfg(test)]
mod tests;
