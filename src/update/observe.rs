//! Looks at a machine once, for everything that a plan between two configs depends on.

mod accounts;
mod contents;
mod databases;
mod digests;
mod kinds;
mod labels;
mod look;
mod places;
mod recovery;
mod sshd;
mod unit_paths;
mod units;

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    machine_config::{KernelCommandLine, MachineConfig},
    path::AbsPath,
    plan::{
        self, Attributes, Base, Database, Drift, Edit, Labels, Observed, OsFacts, Policies,
        UnitFacts,
    },
    reason::Reason,
    root::{Entry, Root, RootError},
};

pub(super) use self::units::behind_aliases;
pub use self::{digests::Digests, recovery::missing as recovery_missing};
use self::{look::Look, places::Places};

/// Longest unit, preset or key file that is read. Larger ones are no such file.
const LONGEST_TEXT: u64 = 256 * 1024;

/// Longest passwd, group or sshd configuration: 16 MiB are some 200,000 accounts.
const LONGEST_DATABASE: u64 = 16 << 20;

/// Whether the kernel runs in FIPS mode.
const FIPS: &str = "/proc/sys/crypto/fips_enabled";

/// Why a machine could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// The tree could not be read.
    #[error("cannot look at the machine")]
    Root(#[from] RootError),
}

impl ObserveError {
    /// Whether trying again may help.
    pub fn again(&self) -> bool {
        match self {
            Self::Root(error) => error.again(),
        }
    }

    /// The stable code.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Root(error) => error.reason(),
        }
    }
}

/// What the caller knows and the tree does not show.
#[derive(Clone, Debug, Default)]
pub struct Known<'a> {
    /// What systemd says of units: load and active states, vendor files. None offline.
    pub live_units: Option<&'a BTreeMap<String, UnitFacts>>,
    /// Where the journal keeps what stood at a path before machinist ([`Observed::originals`]).
    pub originals: BTreeMap<AbsPath, AbsPath>,
    /// What was there as asked when a config first named it ([`Observed::adopted`]).
    pub adopted: BTreeSet<AbsPath>,
    /// Mode and owner before machinist set them ([`Observed::modes`]).
    pub modes: BTreeMap<AbsPath, Attributes>,
    /// What was there before of entries of users and groups ([`plan::AccountFacts::kept`]).
    pub entries: Vec<Edit>,
    /// Digests that need not be taken again. None: every file is read.
    pub digests: Option<&'a Digests>,
    /// What the provider for the operating system says of the booted deployment; nothing without one.
    pub os: OsFacts,
    /// What changes of the operating system are judged against.
    pub base: Base,
    /// Labels that were given to what is owned.
    pub labels: BTreeMap<AbsPath, String>,
    /// What is in place without its label ([`Observed::labels_pending`]).
    pub labels_pending: BTreeSet<AbsPath>,
}

/// Looks at everything that a plan from `from` to `to` depends on.
///
/// # Errors
/// The tree cannot be read. What is merely absent is no error.
pub fn observe(
    root: &Root,
    from: &MachineConfig,
    to: &MachineConfig,
    policies: &Policies,
    known: Known<'_>,
) -> Result<Observed, ObserveError> {
    let mut seen = observe_sides(root, Some(from), to, policies, known)?;
    seen.recovery_missing = recovery_missing(root)?;
    Ok(seen)
}

/// As [`observe`]; with no config before, the machine is on `to` and nothing leaves.
fn observe_sides(
    root: &Root,
    leaving: Option<&MachineConfig>,
    to: &MachineConfig,
    policies: &Policies,
    known: Known<'_>,
) -> Result<Observed, ObserveError> {
    let from = leaving.unwrap_or(to);
    let mut seen = Observed {
        originals: known.originals,
        adopted: known.adopted,
        modes: known.modes,
        kernel_arguments: kernel_arguments(root)?,
        os: OsFacts {
            release: release(root)?,
            kernel_type: kernel_type(root)?,
            fips: text_if_there(root, FIPS, LONGEST_TEXT)?.trim() == "1",
            ..known.os
        },
        base: known.base,
        labels: labels::read(root)?,
        labels_pending: known.labels_pending,
        ..Observed::default()
    };
    accounts::add(root, &mut seen)?;
    if to.speaks_of_accounts() || from.speaks_of_accounts() || !known.entries.is_empty() {
        databases::add(root, known.entries, &mut seen)?;
    }
    let (mut today, mut planned) = (Places::today(root), Places::planned(root, from, to)?);
    seen.unit_paths_before = unit_paths::find(from, &mut today)?;
    seen.unit_paths = unit_paths::find(to, &mut planned)?;
    units::add(root, [from, to], policies, known.live_units, &mut seen)?;
    let before = leaving.map(|from| plan::asked(from, None, &seen));
    let after = plan::asked(to, Some(from), &seen);
    let mut look = Look::new(root, seen, to, (known.digests, known.labels));
    let before = look.locate(before.unwrap_or_default(), today)?;
    let after = look.locate(after, planned)?;
    look.asked(before.paths.iter().chain(&after.paths))?;
    look.kinds(before.paths.iter().chain(&after.paths))?;
    look.originals()?;
    look.directories(&before.paths, &after.paths)?;
    let (unsafe_before, unsafe_after) = (look.barred(&before), look.barred(&after));
    let users_directories = look.users_directories();
    let mut seen = look.finish()?;
    seen.users_directories = users_directories;
    seen.unsafe_before = unsafe_before;
    seen.unsafe_after = unsafe_after;
    seen.canonical_before = before.moved;
    seen.canonical = after.moved;
    Ok(seen)
}

/// What on the machine is not as `config` says: everything, or only what concerns the paths of
/// `only`. `owners` says whether owners can be set here, without which they are not compared; `labels` are
/// those that were given.
///
/// # Errors
/// The tree cannot be read.
pub fn drift(
    root: &Root,
    config: &MachineConfig,
    only: Option<&BTreeSet<AbsPath>>,
    owners: bool,
    known: Known<'_>,
) -> Result<Vec<Drift>, ObserveError> {
    let part = only.map(|paths| concerning(config, paths));
    let config = part.as_ref().unwrap_or(config);
    let seen = observe_sides(root, None, config, &Policies::none(), known)?;
    let mut drifts = plan::drift(config, &seen, owners);
    drifts.retain(|drift| only.is_none_or(|paths| paths.contains(&drift.path)));
    Ok(drifts)
}

/// The labelling rules of the root's SELinux policy; none where it has no policy.
///
/// # Errors
/// The tree cannot be read.
pub fn labels(root: &Root) -> Result<Labels, ObserveError> {
    Ok(labels::read(root)?)
}

/// Whether the root has an SELinux policy that gives labels.
///
/// # Errors
/// The tree cannot be read.
pub fn has_policy(root: &Root) -> Result<bool, ObserveError> {
    Ok(labels::contexts_of(root)?.is_some())
}

/// The part of a config that can say something of these paths.
fn concerning(config: &MachineConfig, paths: &BTreeSet<AbsPath>) -> MachineConfig {
    let some = |with: &dyn Fn(&AbsPath) -> bool| paths.iter().any(with);
    let of_units = some(&|path| path.as_str().starts_with("/etc/systemd/system/"));
    let of_accounts = some(&|path| Database::at(path).is_some());
    let of_keys = some(&|path| path.as_str().contains("/.ssh/"));
    let files = config.files.iter().filter(|(path, _)| paths.contains(path));
    let directories = config
        .directories
        .iter()
        .filter(|(path, _)| paths.contains(path));
    MachineConfig {
        files: files.map(owned).collect(),
        directories: directories.map(owned).collect(),
        links: config.links.clone(),
        units: if of_units {
            config.units.clone()
        } else {
            BTreeMap::new()
        },
        users: if of_keys || of_accounts {
            config.users.clone()
        } else {
            BTreeMap::new()
        },
        groups: if of_keys || of_accounts {
            config.groups.clone()
        } else {
            BTreeMap::new()
        },
        ..MachineConfig::default()
    }
}

fn owned<K: Clone, V: Clone>((key, value): (&K, &V)) -> (K, V) {
    (key.clone(), value.clone())
}

/// The running kernel's arguments; none where the root holds no /proc.
fn kernel_arguments(root: &Root) -> Result<KernelCommandLine, RootError> {
    let text = text_if_there(root, "/proc/cmdline", LONGEST_TEXT)?;
    Ok(KernelCommandLine::parse(&text))
}

/// The type of the running kernel, by its release; none where the root holds no /proc.
fn kernel_type(root: &Root) -> Result<Option<String>, RootError> {
    let release = text_if_there(root, "/proc/sys/kernel/osrelease", LONGEST_TEXT)?;
    let release = release.trim();
    let realtime = text_if_there(root, "/sys/kernel/realtime", LONGEST_TEXT)?;
    let kind = match release {
        "" => return Ok(None),
        _ if realtime.trim() == "1" => "realtime",
        _ if release.ends_with("+64k") => "64k-pages",
        _ => "default",
    };
    Ok(Some(kind.to_owned()))
}

/// The release of OpenShift that the root's os-release says it belongs to.
fn release(root: &Root) -> Result<Option<String>, RootError> {
    // os-release(5): the second only where there is no first.
    let mut text = text_if_there(root, "/etc/os-release", LONGEST_TEXT)?;
    if text.is_empty() {
        text = text_if_there(root, "/usr/lib/os-release", LONGEST_TEXT)?;
    }
    let value = |line: &str| {
        let value = line.trim().strip_prefix("OPENSHIFT_VERSION=")?;
        Some(value.trim_matches(['"', '\'']).to_owned())
    };
    Ok(text.lines().filter_map(value).next_back())
}

/// The text of a file, links followed; empty when there is none, or it is no text of that length.
fn text_if_there(root: &Root, path: &str, longest: u64) -> Result<String, RootError> {
    let Ok(path) = AbsPath::new(path) else {
        return Ok(String::new());
    };
    match root.read_text(&path, longest) {
        Ok(text) => Ok(text),
        Err(
            RootError::TooLarge { .. } | RootError::NotText { .. } | RootError::WrongKind { .. },
        ) => Ok(String::new()),
        Err(error) if error.is_not_found() => Ok(String::new()),
        Err(error) => Err(error),
    }
}

/// What a directory holds; nothing when there is none.
fn list_if_there(root: &Root, directory: &AbsPath) -> Result<Vec<Entry>, RootError> {
    match root.list(directory) {
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        listed => listed,
    }
}

/// The entries of a directory whose names end as given.
fn files_in(root: &Root, directory: &str, suffix: &str) -> Result<Vec<AbsPath>, RootError> {
    let Ok(directory) = AbsPath::new(directory) else {
        return Ok(Vec::new());
    };
    let entries = list_if_there(root, &directory)?;
    let names = entries.iter().filter(|entry| entry.name.ends_with(suffix));
    Ok(names
        .filter_map(|entry| directory.join(&entry.name).ok())
        .collect())
}
