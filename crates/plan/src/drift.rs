//! Finds the entries on the machine that no longer match its config.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::{Deserialize, Serialize};

use super::{
    Database, Edit, MachineFacts,
    desired_tree::{ConfigSide, DesiredTree},
    kind_replacement,
    object::ObjectKind,
    object_compare::differences,
};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::{EntryKind, KernelCommandLine, MachineConfig};

/// The arguments of the running kernel.
const COMMAND_LINE: &str = "/proc/cmdline";

/// One entry that differs from the config.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct DriftEntry {
    /// The path as spelled in the config.
    pub path: AbsPath,
    /// The difference; if there are several, the first of content, mode and owner.
    pub kind: DriftKind,
    /// The users or groups whose entries differ in an account database, or the missing kernel arguments; none for
    /// everything else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry: Option<String>,
    /// The expected and the found kind of object, where these differ.
    #[serde(skip)]
    pub kinds: Option<(ObjectKind, ObjectKind)>,
    /// Whether a local user may have caused it: the user controls the directory or owns the object.
    #[serde(skip)]
    pub by_user: bool,
    /// Whether it cannot be read because another process holds a lease on it.
    #[serde(skip)]
    pub leased: bool,
}

/// A machine compared with the config that it is on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// What differs.
    pub drift: Vec<DriftEntry>,
    /// What the config asks for and the machine does not allow, so that nothing is compared: one sentence each.
    pub skipped: Vec<String>,
}

/// The kinds of drift.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DriftKind {
    /// The content, the target of a link, or the kind of object.
    Content,
    /// Permission bits.
    Mode,
    /// Owner or group.
    Owner,
    /// The SELinux label.
    Label,
    /// The object does not exist.
    Missing,
    /// A link that enables, disables or masks a unit.
    Unit,
    /// The object cannot be read, because its file system does not respond.
    Unreachable,
    /// A user could redirect the path, so nothing is read there.
    Unsafe,
    /// The running kernel does not have an argument. Only a boot changes that.
    KernelArgument,
}

impl DriftKind {
    /// The value in status and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Content => "content",
            Self::Mode => "mode",
            Self::Owner => "owner",
            Self::Label => "label",
            Self::Missing => "missing",
            Self::Unit => "unit",
            Self::Unreachable => "unreachable",
            Self::Unsafe => "unsafe",
            Self::KernelArgument => "kernelArgument",
        }
    }
}

impl DriftEntry {
    /// Whether it can be repaired while the machine runs.
    pub const fn is_repairable(&self) -> bool {
        !matches!(self.kind, DriftKind::Unsafe | DriftKind::KernelArgument)
    }
}

impl fmt::Display for DriftEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            path, kind, entry, ..
        } = self;
        if let Some((expected, found)) = self.kinds.filter(|_| *kind == DriftKind::Content) {
            let [expected, found] = [expected, found].map(kind_replacement::noun);
            return write!(f, "{path} is {found}, not {expected}");
        }
        if self.leased {
            return write!(
                f,
                "{path} cannot be read: it is held by a lease of another process"
            );
        }
        match (kind, entry) {
            (DriftKind::KernelArgument, Some(missing)) => write!(f, "{path} lacks {missing}"),
            (DriftKind::Missing, Some(entry)) => write!(f, "{path} has no entry for {entry}"),
            (_, Some(entry)) => write!(f, "{path} has a different entry for {entry}"),
            (kind, None) => match kind {
                DriftKind::Missing => write!(f, "{path} is missing"),
                DriftKind::Unreachable => write!(f, "{path} cannot be examined"),
                DriftKind::Unit => write!(f, "{path} does not match the unit's enablement"),
                DriftKind::Unsafe => {
                    write!(f, "{path} is not safe to read: a user could redirect it")
                }
                kind => write!(f, "{path} has a different {}", kind.as_str()),
            },
        }
    }
}

/// Compares the machine with its current config, with the same code as a plan.
///
/// `observed` is collected with `config` as both base and desired config; owners are compared only
/// if `owners` is true, which means that they can be set here.
pub fn drift(config: &MachineConfig, observed: &MachineFacts, owners: bool) -> Vec<DriftEntry> {
    verify(config, observed, owners).drift
}

/// Compares as [`drift`] does, and names what cannot be compared.
pub fn verify(config: &MachineConfig, observed: &MachineFacts, owners: bool) -> Verified {
    let layout = DesiredTree::of(config, observed, ConfigSide::After(config));
    let mut drifts: Vec<DriftEntry> = Vec::new();
    for (path, wanted) in &layout.objects {
        let fields = match observed.objects.get(path) {
            _ if observed.unsafe_after.contains_key(path) => vec!["unsafe"],
            None if observed.unreachable_at(path).is_some() => vec!["unreachable"],
            None => vec!["missing"],
            Some(facts) => differences(wanted, facts, owners),
        };
        if let Some(field) = fields.first() {
            let kind = kind(wanted.entry.kind, field);
            let found = observed.objects.get(path);
            let owner = wanted.object.uid();
            let users = |path: &AbsPath| observed.may_be_moved_by_users(path, owner);
            let controlled = users(path) || users(wanted.object.file(path));
            let changed =
                found.is_some_and(|found| wanted.object.is_changed_by_users(found, field));
            let kinds = found.map(|found| (wanted.object.kind(), found.kind));
            // Only the owner of a file may take a lease on it, and keeps it when the owner changes.
            let leased = kind == DriftKind::Content && observed.leased.contains(path);
            drifts.push(DriftEntry {
                path: wanted.asked.clone(),
                kind,
                entry: None,
                kinds: kinds.filter(|(expected, found)| expected != found),
                by_user: kind == DriftKind::Unsafe || changed || controlled || leased,
                leased,
            });
        }
    }
    let unwanted = layout
        .absent
        .keys()
        .filter(|path| observed.objects.contains_key(*path));
    drifts.extend(unwanted.map(|path| DriftEntry {
        path: path.clone(),
        kind: DriftKind::Unit,
        entry: None,
        kinds: None,
        by_user: false,
        leased: false,
    }));
    let administered = observed.accounts.administered_groups();
    drifts.extend(of_accounts(&layout.accounts.edits, &administered));
    drifts.extend(of_kernel_arguments(config, &observed.kernel_arguments));
    drifts.sort();
    Verified {
        drift: drifts,
        skipped: layout.skipped,
    }
}

/// One drift for each database, with the names of all entries that differ in it.
fn of_accounts(edits: &[Edit], administered: &BTreeSet<String>) -> Vec<DriftEntry> {
    let mut drifts: BTreeMap<Database, DriftEntry> = BTreeMap::new();
    let mut names: BTreeMap<Database, BTreeSet<&str>> = BTreeMap::new();
    for edit in edits {
        let database = edit.database();
        let drift = drifts.entry(database).or_insert_with(|| DriftEntry {
            path: database.path(),
            kind: DriftKind::Missing,
            entry: None,
            kinds: None,
            by_user: true,
            leased: false,
        });
        if !matches!(edit, Edit::Line { after: Some(_), .. }) {
            drift.kind = DriftKind::Content;
        }
        drift.by_user &= edit.is_changeable_by_users(administered);
        // For a membership report the user, not the group.
        names.entry(database).or_default().insert(match edit {
            Edit::Member { user, .. } => user,
            edit => edit.name(),
        });
    }
    for (database, names) in names {
        let names: Vec<&str> = names.into_iter().collect();
        if let Some(drift) = drifts.get_mut(&database) {
            drift.entry = Some(names.join(", "));
        }
    }
    drifts.into_values().collect()
}

/// The arguments that the running kernel does not have. A root without a running kernel is not compared.
fn of_kernel_arguments(config: &MachineConfig, running: &KernelCommandLine) -> Option<DriftEntry> {
    let wanted = KernelCommandLine::of(&config.kernel_arguments);
    let missing = wanted.absent_from(running);
    if missing.is_empty() || running.iter().next().is_none() {
        return None;
    }
    let missing: KernelCommandLine = missing.into_iter().cloned().collect();
    Some(DriftEntry {
        path: AbsPath::new(COMMAND_LINE).ok()?,
        kind: DriftKind::KernelArgument,
        entry: Some(missing.to_string()),
        kinds: None,
        by_user: false,
        leased: false,
    })
}

fn kind(entry: EntryKind, field: &str) -> DriftKind {
    match (entry, field) {
        (_, "unreachable") => DriftKind::Unreachable,
        (_, "unsafe") => DriftKind::Unsafe,
        (EntryKind::Enablement | EntryKind::Mask, _) => DriftKind::Unit,
        (_, "missing") => DriftKind::Missing,
        (_, "mode") => DriftKind::Mode,
        (_, "owner") => DriftKind::Owner,
        (_, "label") => DriftKind::Label,
        _ => DriftKind::Content,
    }
}
