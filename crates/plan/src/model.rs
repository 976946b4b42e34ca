//! Defines the plan for users and scripts. Field names and values are those of `plan -o json`.

use std::collections::BTreeSet;

use serde::Serialize;

use super::{EditTarget, Operation, OsCapabilities, OsUpdate};
use machinist_base::{abs_path::AbsPath, digest::Digest};
use machinist_ignition::{EntryKind, MachineConfig, Refusal, digest};

/// What an update will change on this machine.
///
/// Serialises to the `Plan` document that `docs/interface.md` specifies, except for its
/// `apiVersion`, `kind` and `root`, which the command line adds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The base config.
    pub from: ConfigRef,
    /// The desired config.
    pub to: ConfigRef,
    /// The highest cost of all actions.
    pub cost: Cost,
    /// Whether the node must be drained first.
    pub drain: bool,
    /// Every difference, ordered by kind and name.
    pub changes: Vec<PlanChange>,
    /// The actions that make the changes effective, in execution order.
    pub actions: Vec<Action>,
    /// Why the plan is not accepted; empty if it can be carried out.
    pub refusals: Vec<Refusal>,
    /// Warnings for the operator, one sentence each.
    pub warnings: Vec<String>,
    /// The actions that are skipped on an offline root, one sentence each.
    pub left_out: Vec<String>,
    /// The operations of the transaction on the tree, normalised and in commit order.
    #[serde(skip)]
    pub operations: Vec<Operation>,
    /// What changes in the operating system; none if nothing does.
    #[serde(skip)]
    pub os: Option<OsUpdate>,
    /// Canonical paths that the new config mentions for the first time and that already match it.
    /// The caller stores them and passes them back as [`super::MachineFacts::adopted`], without those
    /// that an unverified transaction wrote itself: adopted objects stay when they leave the
    /// config.
    #[serde(skip)]
    pub adopted: BTreeSet<AbsPath>,
    /// Files without content in the base config that another program has written since and that
    /// this update replaces: their content is kept as an original.
    #[serde(skip)]
    pub written: BTreeSet<AbsPath>,
    /// Every canonical path that the new config mentions.
    #[serde(skip)]
    pub named: BTreeSet<AbsPath>,
    /// Entries of users and groups that the new config does not mention. Their recorded original
    /// values are dropped: each is either restored by this plan or will not be restored.
    #[serde(skip)]
    pub let_go: Vec<EditTarget>,
    /// Paths that leave the config but stay in the state that a user gave them, each with the
    /// reason.
    #[serde(skip)]
    pub left_behind: Vec<String>,
    /// The entries among them that are in the new config, by the path in it and by the canonical path.
    #[serde(skip)]
    pub skipped: BTreeSet<AbsPath>,
}

impl Plan {
    /// Whether nothing on this machine differs. The config's *name* may still change.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty() && self.actions.is_empty() && self.os.is_none()
    }
}

/// The name and digest of a config.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConfigRef {
    /// Its name; empty if there is no config yet.
    pub name: String,
    /// Its digest; none if there is no config yet.
    #[serde(serialize_with = "digest_or_empty")]
    pub digest: Option<Digest>,
}

impl ConfigRef {
    /// The name and digest of `config`; empty if it has no entries and no name.
    pub fn of(config: &MachineConfig) -> Self {
        let none = config.name.is_empty() && *config == MachineConfig::default();
        Self {
            name: config.name.clone(),
            digest: (!none).then(|| digest(config)),
        }
    }
}

fn digest_or_empty<S: serde::Serializer>(
    digest: &Option<Digest>,
    to: S,
) -> Result<S::Ok, S::Error> {
    to.serialize_str(&digest.map(|digest| digest.to_string()).unwrap_or_default())
}

/// The cost of an update for the machine, lowest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Cost {
    /// No visible effect.
    #[default]
    None,
    /// A service is reloaded.
    Reload,
    /// A service is restarted.
    Restart,
    /// The node is drained.
    Drain,
    /// Userspace is restarted; the kernel keeps running.
    SoftReboot,
    /// The machine is rebooted.
    Reboot,
}

/// One difference between the machine and the config.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanChange {
    /// The kind of entry that changes.
    pub kind: EntryKind,
    /// The path, the unit's name, `unit/drop-in`, the user, or the argument.
    pub name: String,
    /// Whether the entry is created, modified or removed.
    pub change: ChangeKind,
    /// The differing fields: `content`, `mode`, `owner`, `label`, `target`, `kind`, `enabled`,
    /// `masked`, `keys`; for users and groups `uid`, `gid`, `primaryGroup`, `gecos`, `home`,
    /// `shell`, `groups`, `password`.
    pub fields: Vec<String>,
    /// The object before.
    pub before: Option<Box<ObjectSummary>>,
    /// The object after.
    pub after: Option<Box<ObjectSummary>>,
    /// A unified diff if the text is world-readable; none otherwise.
    pub diff: Option<String>,
    /// The actions this change causes, as `Restart chronyd.service`.
    pub actions: Vec<String>,
    /// The policy rule that chose the actions: `builtin:/etc/chrony.conf`, `user:…`, `default`.
    pub policy: String,
    /// The reason as one sentence.
    pub why: String,
}

/// How an entry changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ChangeKind {
    /// It did not exist.
    Create,
    /// It existed in another state.
    Modify,
    /// It is removed, or its original is restored.
    Remove,
}

/// The facts about an object that can be shown without revealing its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectSummary {
    /// Bytes of a file; none for anything else.
    pub size: Option<u64>,
    /// Digest of a file's content.
    pub digest: Option<Digest>,
    /// Permission bits in four octal digits.
    pub mode: Option<String>,
    /// `uid:gid`.
    pub owner: Option<String>,
    /// The target of a link.
    pub target: Option<String>,
}

/// An action after the commit that makes changes effective.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Action {
    /// The kind of action.
    #[serde(rename = "type")]
    pub kind: ActionKind,
    /// The unit it applies to; none if it concerns the whole machine.
    pub unit: Option<String>,
    /// The reasons, one per change, each with its rule.
    pub why: Vec<String>,
}

/// The kinds of action, in execution order.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, serde::Deserialize,
)]
pub enum ActionKind {
    /// The node is drained (before anything is written).
    Drain,
    /// A unit is stopped because it is masked, disabled or removed. This comes before the
    /// daemon-reload, so that the unit is stopped with the settings it was started with.
    Stop,
    /// systemd reloads its unit files.
    DaemonReload,
    /// A unit reloads its configuration.
    Reload,
    /// A unit is restarted.
    Restart,
    /// The rule for registries.conf: reload, and drain if image names could resolve differently.
    Special,
    /// Userspace is restarted (soft reboot).
    SoftReboot,
    /// The machine is rebooted. Replaces all other actions except the drain.
    Reboot,
}

/// What this host and this process can do. The plan refuses everything else with a specific reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// The root is a running machine: actions are carried out, and units are queried.
    pub live: bool,
    /// Owners can be set (CAP_CHOWN); otherwise they are only recorded on an offline root.
    pub chown: bool,
    /// What the operating-system provider can change.
    pub os: OsCapabilities,
}
