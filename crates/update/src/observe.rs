//! Observes a machine once, for everything on which a plan between two configs depends.

mod accounts;
mod digest_cache;
mod file_contents;
mod linked_texts;
mod linked_units;
mod objects;
mod parent_resolver;
mod passwd;
mod planned_control;
mod planned_directories;
mod planned_texts;
mod recovery_units;
mod selinux_policy;
mod specifiers;
mod sshd_config;
mod symlink_targets;
mod unit_paths;
mod units;

use std::collections::{BTreeMap, BTreeSet};

use crate::os;
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::MachineConfig;
use machinist_plan::{
    Attributes, BaseConfig, Database, DriftEntry, Edit, MachineFacts, OsFacts, Policies,
    SelinuxLabels, TargetFailures, UnitFacts, Verified,
};
use machinist_rootfs::{DirEntry, ObjectIdentity, Root, RootError};

pub(super) use self::units::behind_aliases;
pub use self::{digest_cache::DigestCache, recovery_units::missing as recovery_missing};
use self::{objects::ObjectObserver, parent_resolver::ParentResolver, planned_control::BothPaths};

/// Maximum length of a unit, preset, or key file. Larger files are not treated as such.
const MAX_TEXT_BYTES: u64 = 256 * 1024;

/// Maximum length of a passwd, group, or sshd configuration file: 16 MiB hold about 200,000 accounts.
const MAX_DATABASE_BYTES: u64 = 16 << 20;

/// The file that indicates whether the kernel runs in FIPS mode.
const FIPS_PATH: &str = "/proc/sys/crypto/fips_enabled";

/// Reasons why a machine could not be observed.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// The tree could not be read.
    #[error("cannot scan the machine")]
    Root(#[from] RootError),
    /// A user moved or replaced an object in a directory of theirs meanwhile.
    #[error("an object in {top}, which a user controls, was moved or replaced during the scan")]
    Moved {
        /// The topmost directory that the user controls.
        top: AbsPath,
        /// The call that failed.
        #[source]
        source: RootError,
    },
}

impl ObserveError {
    /// Returns whether a retry may succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Root(error) => error.is_retryable(),
            Self::Moved { .. } => true,
        }
    }

    /// Returns the stable reason code.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Root(error) => error.reason(),
            Self::Moved { .. } => Reason::TargetChanged,
        }
    }
}

/// State that the caller knows and the tree does not contain.
#[derive(Clone, Debug, Default)]
pub struct CallerFacts<'a> {
    /// Units as systemd reports them: load and active states, vendor files. `None` for an offline root.
    pub live_units: Option<&'a BTreeMap<String, UnitFacts>>,
    /// Paths of the originals that the journal records ([`MachineFacts::originals`]).
    pub originals: BTreeMap<AbsPath, AbsPath>,
    /// Paths that already matched when a config first named them ([`MachineFacts::adopted`]).
    pub adopted: BTreeSet<AbsPath>,
    /// Directories that machinist created ([`MachineFacts::made`]).
    pub made: BTreeSet<AbsPath>,
    /// Files of SSH keys that machinist created ([`MachineFacts::key_files`]).
    pub key_files: BTreeSet<AbsPath>,
    /// Mode and owner before machinist changed them ([`MachineFacts::modes`]).
    pub modes: BTreeMap<AbsPath, Attributes>,
    /// Files that a user could write while a config set their owner ([`MachineFacts::user_written`]).
    pub user_written: BTreeSet<AbsPath>,
    /// Targets at which another writer made an update fail ([`MachineFacts::changed_targets`]).
    pub changed_targets: BTreeMap<AbsPath, TargetFailures>,
    /// Paths of entries that updates skipped ([`MachineFacts::skipped`]).
    pub skipped: BTreeSet<AbsPath>,
    /// Whether the machine returns to an earlier config ([`MachineFacts::is_return`]).
    pub is_return: bool,
    /// The objects whose mode and owner were set in place ([`MachineFacts::changed_objects`]).
    pub changed_objects: BTreeMap<AbsPath, ObjectIdentity>,
    /// Previous values of user and group entries ([`machinist_plan::AccountFacts::kept`]).
    pub entries: Vec<Edit>,
    /// Cached digests; `None` means that every file is read.
    pub digests: Option<&'a DigestCache>,
    /// The booted deployment as the OS provider reports it; empty without a provider.
    pub os: OsFacts,
    /// The base against which changes to the operating system are judged.
    pub base: BaseConfig,
    /// A file that should hold such a base ([`MachineFacts::base_unreadable`]).
    pub base_unreadable: Option<AbsPath>,
    /// SELinux labels that were set on owned paths.
    pub labels: BTreeMap<AbsPath, String>,
    /// Paths whose label could not be set ([`MachineFacts::labels_pending`]).
    pub labels_pending: BTreeSet<AbsPath>,
}

/// Observes everything on which a plan from `from` to `to` depends.
///
/// # Errors
/// The tree cannot be read. A missing object is not an error.
pub fn observe(
    root: &Root,
    from: &MachineConfig,
    to: &MachineConfig,
    policies: &Policies,
    known: CallerFacts<'_>,
) -> Result<MachineFacts, ObserveError> {
    let mut seen = observe_sides(root, Some(from), to, policies, known)?;
    seen.recovery_missing = recovery_missing(root)?;
    Ok(seen)
}

/// Works like [`observe`]. Without a previous config, the machine is on `to` and no path is released.
fn observe_sides(
    root: &Root,
    leaving: Option<&MachineConfig>,
    to: &MachineConfig,
    policies: &Policies,
    known: CallerFacts<'_>,
) -> Result<MachineFacts, ObserveError> {
    let from = leaving.unwrap_or(to);
    let specifiers = specifiers::read(root)?;
    let fields = specifiers.os_release.as_ref();
    let release = fields.and_then(|fields| fields.get("OPENSHIFT_VERSION"));
    let mut seen = MachineFacts {
        originals: known.originals,
        adopted: known.adopted,
        made: known.made,
        modes: known.modes,
        user_written: known.user_written,
        changed_targets: known.changed_targets,
        skipped: known.skipped,
        is_return: known.is_return,
        changed_objects: still_there(root, &known.changed_objects)?,
        key_files: known.key_files,
        kernel_arguments: os::running_arguments(root)?,
        os: OsFacts {
            release: release.cloned(),
            kernel_type: kernel_type(root)?,
            fips: text_if_there(root, FIPS_PATH, MAX_TEXT_BYTES)?.trim() == "1",
            ..known.os
        },
        base: known.base,
        base_unreadable: known.base_unreadable,
        labels: selinux_policy::read(root)?,
        labels_pending: known.labels_pending,
        specifiers: specifiers.into(),
        ..MachineFacts::default()
    };
    accounts::add(root, &mut seen)?;
    if to.has_account_entries() || from.has_account_entries() || !known.entries.is_empty() {
        passwd::add(root, known.entries, &mut seen)?;
    }
    let (mut today, mut planned) = (
        ParentResolver::today(root),
        ParentResolver::planned(root, [from, to], &seen.users)?,
    );
    accounts::add_login_facts(root, [from, to], &mut planned, &mut seen)?;
    seen.unit_paths_before = unit_paths::find(from, &mut today)?;
    seen.unit_paths = unit_paths::find(to, &mut planned)?;
    linked_texts::add(root, [from, to], &mut planned, &mut seen)?;
    let both = [&mut today, &mut planned];
    units::add(
        root,
        [from, to],
        policies,
        known.live_units,
        both,
        &mut seen,
    )?;
    let cached = (known.digests, known.labels);
    observe_objects(root, (leaving, to), seen, [today, planned], cached)
}

/// Returns the paths at which the object with this identity still is.
fn still_there(
    root: &Root,
    objects: &BTreeMap<AbsPath, ObjectIdentity>,
) -> Result<BTreeSet<AbsPath>, ObserveError> {
    let mut there = BTreeSet::new();
    for (path, identity) in objects {
        match root.stat(path) {
            Err(error) if error.is_starved() => return Err(error.into()),
            Ok(Some(stat)) if stat.identity == *identity => drop(there.insert(path.clone())),
            // A path that cannot be examined is judged elsewhere.
            _ => {}
        }
    }
    Ok(there)
}

/// Adds the objects at the paths of both configs to `seen`, and which of these paths a user could
/// redirect.
fn observe_objects(
    root: &Root,
    (leaving, to): (Option<&MachineConfig>, &MachineConfig),
    seen: MachineFacts,
    [today, planned]: [ParentResolver<'_>; 2],
    cached: (Option<&DigestCache>, BTreeMap<AbsPath, String>),
) -> Result<MachineFacts, ObserveError> {
    let from = leaving.unwrap_or(to);
    let before = leaving.map(|from| machinist_plan::asked(from, None, &seen));
    let after = machinist_plan::asked(to, Some(from), &seen);
    let both = leaving.filter(|from| machinist_plan::may_change_directories(from, to));
    let both = both.map(|_| BothPaths {
        before: before.clone().unwrap_or_default(),
        after: after.clone(),
    });
    let mut look = ObjectObserver::new(root, seen, to, cached);
    let before = look.locate(before.unwrap_or_default(), today)?;
    let after = look.locate(after, planned)?;
    let observed = look.observe_all([&before, &after]);
    observed.map_err(|error| look.blame(error))?;
    look.seen.users_directories = look.users_directories();
    look.seen.user_tops = look.user_tops();
    look.seen.exposed = look.exposed_paths();
    look.seen.unsafe_before = look.unsafe_paths(&before);
    look.seen.unsafe_after = look.unsafe_paths(&after);
    look.seen.canonical_before = before.moved.clone();
    look.seen.canonical = after.moved.clone();
    // Without a previous config, the machine is on the new one.
    let sides = [leaving.map_or(&after, |_| &before), &after];
    let judged = look.judge_owners([from, to], sides);
    judged.map_err(|error| look.blame(error))?;
    if let Some(both) = both {
        let judged = look.judge_planned(from, to, &both, sides);
        judged.map_err(|error| look.blame(error))?;
    }
    Ok(look.seen)
}

/// Returns the drift from `config`: all of it, or only that of the paths in `only`. `owners` is false if owners
/// cannot be set here; then they are not compared.
///
/// # Errors
/// The tree cannot be read.
pub fn drift(
    root: &Root,
    config: &MachineConfig,
    only: Option<&BTreeSet<AbsPath>>,
    owners: bool,
    known: CallerFacts<'_>,
) -> Result<Vec<DriftEntry>, ObserveError> {
    let part = only.map(|paths| concerning(config, paths));
    let config = part.as_ref().unwrap_or(config);
    let mut drifts = verify(root, config, owners, known)?.drift;
    if let Some(paths) = only {
        // A path of the config may lead through a link to one of the paths.
        let mut places = ParentResolver::today(root);
        let leads = |path: &AbsPath, places: &mut ParentResolver<'_>| {
            places.of(path).is_ok_and(|place| paths.contains(&place))
        };
        drifts.retain(|drift| paths.contains(&drift.path) || leads(&drift.path, &mut places));
    }
    Ok(drifts)
}

/// Returns the paths, and those under which the config has the objects there: a link on the way to an entry gives its
/// object another path.
pub fn with_names_of_config(
    root: &Root,
    config: &MachineConfig,
    mut paths: BTreeSet<AbsPath>,
) -> BTreeSet<AbsPath> {
    let has = |path: &AbsPath| {
        config.files.contains_key(path)
            || config.links.contains_key(path)
            || config.directories.contains_key(path)
    };
    let unknown = paths.iter().filter(|path| !has(path));
    let unknown: BTreeSet<String> = unknown.map(|path| path.file_name().to_owned()).collect();
    if unknown.is_empty() {
        return paths;
    }
    // The last component of a path is not followed.
    let entries = config.files.keys().chain(config.links.keys());
    let entries = entries.chain(config.directories.keys());
    let mut places = ParentResolver::today(root);
    let names: Vec<AbsPath> = entries
        .filter(|asked| unknown.contains(asked.file_name()))
        .filter(|asked| places.of(asked).is_ok_and(|place| paths.contains(&place)))
        .cloned()
        .collect();
    paths.extend(names);
    paths
}

/// Works like [`drift`] without `only`, and also returns what cannot be compared.
///
/// # Errors
/// The tree cannot be read.
pub fn verify(
    root: &Root,
    config: &MachineConfig,
    owners: bool,
    known: CallerFacts<'_>,
) -> Result<Verified, ObserveError> {
    let seen = observe_sides(root, None, config, &Policies::none(), known)?;
    Ok(machinist_plan::verify(config, &seen, owners))
}

/// Returns the labelling rules of the root's SELinux policy; empty if it has no policy.
///
/// # Errors
/// The tree cannot be read.
pub fn labels(root: &Root) -> Result<SelinuxLabels, ObserveError> {
    Ok(selinux_policy::read(root)?)
}

/// Returns whether the root has an SELinux policy that assigns labels.
///
/// # Errors
/// The tree cannot be read.
pub fn has_policy(root: &Root) -> Result<bool, ObserveError> {
    Ok(selinux_policy::contexts_of(root)?.is_some())
}

/// Returns the part of a config that can affect these paths.
fn concerning(config: &MachineConfig, paths: &BTreeSet<AbsPath>) -> MachineConfig {
    let some = |with: &dyn Fn(&AbsPath) -> bool| paths.iter().any(with);
    let of_units = some(&|path| path.as_str().starts_with("/etc/systemd/system/"));
    let of_accounts = some(&|path| Database::at(path).is_some());
    let of_keys = some(&|path| path.as_str().contains("/.ssh/"));
    // sshd's configuration decides where the keys are.
    let of_sshd = |path: &AbsPath| of_keys && path.as_str().contains("ssh");
    let files = config
        .files
        .iter()
        .filter(|(path, _)| paths.contains(path) || of_sshd(path));
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

/// Returns the type of the running kernel, derived from its release; `None` if the root has no /proc.
fn kernel_type(root: &Root) -> Result<Option<String>, RootError> {
    let release = text_if_there(root, "/proc/sys/kernel/osrelease", MAX_TEXT_BYTES)?;
    let release = release.trim();
    let realtime = text_if_there(root, "/sys/kernel/realtime", MAX_TEXT_BYTES)?;
    let kind = match release {
        "" => return Ok(None),
        _ if realtime.trim() == "1" => "realtime",
        _ if release.ends_with("+64k") => "64k-pages",
        _ => "default",
    };
    Ok(Some(kind.to_owned()))
}

/// Reads a text file and follows links, with invalid UTF-8 replaced; returns an empty text if it is missing or too long,
/// if links to it are a loop, or if another process holds a lease on it.
fn text_if_there(root: &Root, path: &str, longest: u64) -> Result<String, RootError> {
    let Ok(path) = AbsPath::new(path) else {
        return Ok(String::new());
    };
    let bytes = bytes_if_there(root, &path, longest)?;
    // A comment or a full name in another encoding must not hide the rest of the file.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Works like [`text_if_there`] for bytes.
fn bytes_if_there(root: &Root, path: &AbsPath, longest: u64) -> Result<Vec<u8>, RootError> {
    match root.read(path, longest) {
        Err(RootError::TooLarge { .. } | RootError::WrongKind { .. }) => Ok(Vec::new()),
        Err(error) if error.is_absent() || error.is_loop() || error.is_leased() => Ok(Vec::new()),
        read => read,
    }
}

/// Lists a directory; returns nothing if it is missing, or if links to it are a loop.
fn list_if_there(root: &Root, directory: &AbsPath) -> Result<Vec<DirEntry>, RootError> {
    match root.list(directory) {
        Err(error) if error.is_not_found() || error.is_loop() => Ok(Vec::new()),
        listed => listed,
    }
}

/// Lists the entries of a directory whose names end with `suffix`.
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
