//! Shared helpers of the tests: pseudo-random numbers, trees, and a direct way to carry out
//! operations.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use machinist_base::abs_path::AbsPath;
use machinist_ignition::{MachineConfig, Refusal, Unit, UnitName};
use machinist_plan::{
    Capabilities, DatabaseEntries, HostKind, MachineFacts, NewObject, NodeKind, OperationKind,
    OsCapabilities, Plan, Policies,
};
use machinist_rootfs::Root;
use machinist_update::observe::{CallerFacts, observe};

/// A 64-bit generator (splitmix64), so that a seed gives the same case everywhere.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((z ^ (z >> 31)) % limit as u64).unwrap()
    }

    pub(crate) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub(crate) fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    pub(crate) fn shuffle<T>(&mut self, all: &mut [T]) {
        for at in (1..all.len()).rev() {
            all.swap(at, self.below(at + 1));
        }
    }
}

/// A number from the environment, for longer runs.
pub(crate) fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

pub(crate) const OFFLINE: Capabilities = Capabilities {
    live: false,
    chown: false,
    os: OsCapabilities::without_provider(HostKind::Unknown),
};
pub(crate) const LIVE: Capabilities = Capabilities {
    live: true,
    chown: true,
    os: OsCapabilities::without_provider(HostKind::Unknown),
};

/// A config from MachineConfig or Ignition text.
pub(crate) fn config(text: &str) -> MachineConfig {
    let mut rules = machinist_ignition::ConfigRules::default();
    rules.users.insert("ann".to_owned());
    rules.groups.insert("devs".to_owned());
    let documents = machinist_ignition::parse(text, "test.yaml", &rules)
        .unwrap_or_else(|refusals| panic!("{}", show(&refusals)));
    machinist_ignition::merge(documents, "worker", machinist_ignition::MergeOrder::AsGiven)
        .unwrap_or_else(|refusals| panic!("{}", show(&refusals)))
        .0
}

pub(crate) fn show(refusals: &[Refusal]) -> String {
    refusals
        .iter()
        .map(|refusal| format!("{refusal}\n"))
        .collect()
}

pub(crate) fn unit(config: &mut MachineConfig, name: &str, unit: Unit) {
    config.units.insert(UnitName::new(name).unwrap(), unit);
}

pub(crate) fn path(text: &str) -> AbsPath {
    text.parse().unwrap()
}

/// The observation of a machine that has the package; these trees contain all paths of the config.
pub(crate) fn observed_machine(
    root: &Root,
    (from, to): (&MachineConfig, &MachineConfig),
    policies: &Policies,
    known: CallerFacts<'_>,
) -> MachineFacts {
    let observed = observe(root, from, to, policies, known).unwrap();
    MachineFacts {
        recovery_missing: None,
        ..observed
    }
}

/// A temporary directory used as a machine.
pub(crate) struct Tree {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) root: Root,
}

impl Tree {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let root = Root::open(dir.path()).unwrap();
        Self { dir, root }
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path.trim_start_matches('/'))
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let at = self.at(path);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::write(&at, text).unwrap();
        fs::set_permissions(&at, fs::Permissions::from_mode(0o644)).unwrap();
    }

    pub(crate) fn link(&self, path: &str, target: &str) {
        let at = self.at(path);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        symlink(target, at).unwrap();
    }

    pub(crate) fn observed(
        &self,
        from: &MachineConfig,
        to: &MachineConfig,
        known: CallerFacts<'_>,
    ) -> MachineFacts {
        observed_machine(&self.root, (from, to), &Policies::default(), known)
    }

    pub(crate) fn plan(&self, from: &MachineConfig, to: &MachineConfig) -> Plan {
        let observed = self.observed(from, to, CallerFacts::default());
        machinist_plan::between(from, to, &observed, &Policies::default(), OFFLINE)
            .unwrap_or_else(|refusals| panic!("{}", show(&refusals)))
    }

    /// Carries out operations directly: no staging, no journal. Removed objects cannot be restored.
    pub(crate) fn apply(&self, plan: &Plan) {
        for operation in &plan.operations {
            let at = self.at(operation.target.as_str());
            match &operation.kind {
                OperationKind::Put(node) => {
                    remove(&at);
                    put(&at, node);
                }
                OperationKind::Remove => remove(&at),
                OperationKind::Restore(place) => {
                    remove(&at);
                    fs::rename(self.at(place.as_str()), &at).unwrap();
                }
                OperationKind::Entries(edits) => {
                    let mut there = DatabaseEntries::read(&fs::read(&at).unwrap());
                    edits.iter().for_each(|edit| edit.apply(&mut there));
                    fs::write(&at, there.bytes()).unwrap();
                }
                OperationKind::Metadata(wanted) => {
                    fs::set_permissions(&at, fs::Permissions::from_mode(wanted.mode)).unwrap();
                }
            }
        }
    }

    /// Everything in the tree: path, kind, mode, content or target.
    pub(crate) fn dump(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        walk(self.dir.path(), self.dir.path(), &mut all);
        all
    }

    /// The links below a directory with their targets.
    pub(crate) fn links(&self, below: &str) -> BTreeMap<String, String> {
        links_in(self.dir.path(), below)
    }
}

/// The links below a directory of the tree at `top`, with their targets.
pub(crate) fn links_in(top: &Path, below: &str) -> BTreeMap<String, String> {
    let prefix = below.trim_start_matches('/');
    let link = |(path, what): (String, String)| {
        Some((path.clone(), what.strip_prefix("link ")?.to_owned()))
            .filter(|_| path.starts_with(prefix))
    };
    let mut all = BTreeMap::new();
    walk(top, top, &mut all);
    all.into_iter().filter_map(link).collect()
}

fn remove(at: &Path) {
    match fs::symlink_metadata(at) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(at).unwrap(),
        Ok(_) => fs::remove_file(at).unwrap(),
        Err(_) => {}
    }
}

fn put(at: &Path, node: &NewObject) {
    match &node.kind {
        NodeKind::File(content) => fs::write(at, content.bytes().unwrap()).unwrap(),
        NodeKind::Link(target) => return symlink(target, at).unwrap(),
        NodeKind::Hard { .. } | NodeKind::Copy { .. } => {
            unreachable!("no case here asks for a hard link or has an original")
        }
        NodeKind::Directory(children) => {
            fs::create_dir(at).unwrap();
            for (name, child) in children {
                put(&at.join(name), child);
            }
        }
    }
    fs::set_permissions(at, fs::Permissions::from_mode(node.mode)).unwrap();
}

fn walk(top: &Path, at: &Path, all: &mut BTreeMap<String, String>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(at)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    for path in entries {
        let name = path.strip_prefix(top).unwrap().to_str().unwrap().to_owned();
        let found = fs::symlink_metadata(&path).unwrap();
        let mode = found.permissions().mode() & 0o7777;
        let what = if found.is_symlink() {
            format!("link {}", fs::read_link(&path).unwrap().to_str().unwrap())
        } else if found.is_dir() {
            walk(top, &path, all);
            format!("directory {mode:04o}")
        } else {
            format!(
                "file {mode:04o} {}",
                String::from_utf8_lossy(&fs::read(&path).unwrap())
            )
        };
        all.insert(name, what);
    }
}
