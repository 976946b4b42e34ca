//! The plan as people and scripts see it. Field names and values are those of `plan -o json`.

use std::collections::BTreeSet;

use serde::Serialize;

use super::{EditPlace, Operation, OsCapabilities};
use crate::{
    digest::Digest,
    machine_config::{EntryKind, MachineConfig, Refusal, digest},
    path::AbsPath,
};

/// What an update will do to this machine.
///
/// Serialises to the `Plan` document that `docs/interface.md` fixes, but for its `apiVersion`,
/// `kind` and `root`, which the command line adds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The config the machine is on.
    pub from: ConfigRef,
    /// The config it should be on.
    pub to: ConfigRef,
    /// The dearest thing that will happen.
    pub cost: Cost,
    /// Whether pods must leave first.
    pub drain: bool,
    /// Every difference, ordered by kind and name.
    pub changes: Vec<Change>,
    /// What makes the changes effective, in the order it is done.
    pub actions: Vec<Action>,
    /// Why the plan is not accepted; empty for a plan that can be carried out.
    pub refusals: Vec<Refusal>,
    /// What the operator should know, one sentence each.
    pub warnings: Vec<String>,
    /// What an offline root leaves out, one sentence each.
    pub left_out: Vec<String>,
    /// What the transaction does to the tree, normalised and in commit order.
    #[serde(skip)]
    pub operations: Vec<Operation>,
    /// Canonical paths that the new config names for the first time and that stand as asked already.
    /// Whoever keeps the journal hands them back as [`super::Observed::adopted`], less what an
    /// unverified transaction has written itself: they stay when they leave the config.
    #[serde(skip)]
    pub adopted: BTreeSet<AbsPath>,
    /// Files of the config before, without a content given, that somebody has written since and that this
    /// update replaces: what they hold is kept as an original.
    #[serde(skip)]
    pub written: BTreeSet<AbsPath>,
    /// Every canonical path that the new config says something of.
    #[serde(skip)]
    pub named: BTreeSet<AbsPath>,
    /// Entries of users and groups that the new config does not speak of: what was there before is
    /// either back or not to come back any more.
    #[serde(skip)]
    pub let_go: Vec<EditPlace>,
    /// Paths that leave the config and are left as a user made them, each with the reason.
    #[serde(skip)]
    pub left_behind: Vec<String>,
}

impl Plan {
    /// Whether nothing on this machine differs. The config's *name* may still change.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty() && self.actions.is_empty()
    }
}

/// A config by name and content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ConfigRef {
    /// Its name; empty where there is none yet.
    pub name: String,
    /// Its digest; none where there is no config yet.
    #[serde(serialize_with = "digest_or_empty")]
    pub digest: Option<Digest>,
}

impl ConfigRef {
    /// The name and digest of `config`; nothing where it asks for nothing and has no name.
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

/// What an update costs the machine, least first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Cost {
    /// Nobody notices.
    #[default]
    None,
    /// A service reads its configuration again.
    Reload,
    /// A service is restarted.
    Restart,
    /// Pods leave the node.
    Drain,
    /// Userspace is restarted, the kernel stays.
    SoftReboot,
    /// The machine is restarted.
    Reboot,
}

/// One difference between the machine and the config.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// What it is about.
    pub kind: EntryKind,
    /// The path, the unit's name, `unit/drop-in`, the user, the argument.
    pub name: String,
    /// Whether it appears, changes or goes.
    pub change: ChangeKind,
    /// What differs: `content`, `mode`, `owner`, `label`, `target`, `kind`, `enabled`, `masked`, `keys`;
    /// of users and groups `uid`, `gid`, `primaryGroup`, `gecos`, `home`, `shell`, `groups`, `password`.
    pub fields: Vec<String>,
    /// The object before.
    pub before: Option<Box<ObjectSummary>>,
    /// The object after.
    pub after: Option<Box<ObjectSummary>>,
    /// A unified diff for text that everybody may read; none otherwise.
    pub diff: Option<String>,
    /// The actions this change causes, as `Restart chronyd.service`.
    pub actions: Vec<String>,
    /// Which rule chose them: `builtin:/etc/chrony.conf`, `user:…`, `default`.
    pub policy: String,
    /// One sentence for people.
    pub why: String,
}

/// How a thing changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ChangeKind {
    /// It was not there.
    Create,
    /// It was there, otherwise.
    Modify,
    /// It goes, or what stood there before machinist comes back.
    Remove,
}

/// What may be said of an object without showing what it holds.
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
    /// A link's text.
    pub target: Option<String>,
}

/// Something done after the commit to make the changes effective.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Action {
    /// What is done.
    #[serde(rename = "type")]
    pub kind: ActionKind,
    /// To which unit; none for what concerns the whole machine.
    pub unit: Option<String>,
    /// Why, one reason each: the change and the rule.
    pub why: Vec<String>,
}

/// The kinds of action, in the order in which they are done.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, serde::Deserialize,
)]
pub enum ActionKind {
    /// Pods leave the node (done before anything is written).
    Drain,
    /// A unit is stopped: it is masked, disabled or gone. Before the daemon-reload, so that it stops
    /// by the rules it was started with.
    Stop,
    /// systemd reads its unit files again.
    DaemonReload,
    /// A unit reads its configuration again.
    Reload,
    /// A unit is restarted.
    Restart,
    /// The registries.conf rule: reload, and drain where images could change.
    Special,
    /// Userspace restarts.
    SoftReboot,
    /// The machine restarts. Swallows all the others but the drain.
    Reboot,
}

/// What this host and this process can do. What it cannot is refused by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// The root is a running machine: actions are carried out, units are asked.
    pub live: bool,
    /// Owners can be set (CAP_CHOWN); otherwise an offline root records them.
    pub chown: bool,
    /// What the provider for the operating system can change.
    pub os: OsCapabilities,
}
