//! Which paths a plan depends on: what an observation must look at.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    ObjectKind, Observed,
    desired::{Layout, Object, Side},
};
use crate::{
    machine_config::{EntryKind, MachineConfig},
    path::AbsPath,
};

/// One path that a config speaks of, as the config spells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The path; links in its parents are not resolved.
    pub path: AbsPath,
    /// What the config wants there; none where it wants nothing to be.
    pub kind: Option<ObjectKind>,
    /// The user's home directory for a file of keys: below it no link is followed.
    pub home: Option<AbsPath>,
    /// Whether the plan edits the text that is there: keys beside a person's own.
    pub edited: bool,
    /// Nothing is said of it: it only has to be looked at, because a hard link leads there.
    pub only_seen: bool,
}

impl Asked {
    fn of(path: AbsPath, kind: Option<ObjectKind>) -> Self {
        Self {
            path,
            kind,
            home: None,
            edited: false,
            only_seen: false,
        }
    }
}

/// The paths of `config`: files, directories, links, unit files, the links that enable units, keys.
///
/// `from` is the config before when `config` is the one to reach. Of `observed` the accounts, units,
/// texts and originals must be there already; objects are not looked at.
pub fn asked(
    config: &MachineConfig,
    from: Option<&MachineConfig>,
    observed: &Observed,
) -> Vec<Asked> {
    let layout = Layout::of(config, observed, from.map_or(Side::Before, Side::After));
    let targets = config.links.values().filter(|link| link.hard);
    let targets = targets.filter_map(|link| AbsPath::new(link.target.as_str()).ok());
    let targets = targets.map(|path| Asked {
        only_seen: true,
        ..Asked::of(path, Some(ObjectKind::File))
    });
    let accounts = layout.accounts;
    let homes = accounts
        .homes
        .iter()
        .map(|home| Asked::of(home.path.clone(), Some(ObjectKind::Directory)));
    let databases: BTreeSet<_> = accounts.edits.iter().map(|edit| edit.database()).collect();
    let databases = databases
        .into_iter()
        .map(|database| Asked::of(database.path(), Some(ObjectKind::File)));
    let there = layout.objects.into_iter().map(|(path, wanted)| {
        let keys = wanted.entry.kind == EntryKind::SSHKey;
        let name = &wanted.entry.name;
        let account = accounts.users.get(name);
        let account = account
            .or_else(|| observed.users.get(name))
            .filter(|_| keys);
        let kind = match wanted.object {
            Object::File { .. } | Object::Hard { .. } => ObjectKind::File,
            Object::Directory { .. } => ObjectKind::Directory,
            Object::Link { .. } => ObjectKind::Link,
        };
        Asked {
            home: account.and_then(|account| account.home.clone()),
            edited: keys && !observed.sshd_reads_keys_directory,
            ..Asked::of(path, Some(kind))
        }
    });
    let absent = layout.absent.into_keys().map(|path| Asked::of(path, None));
    let objects: Vec<Asked> = there.chain(absent).collect();
    let known: BTreeSet<AbsPath> = objects.iter().map(|asked| asked.path.clone()).collect();
    let more = homes
        .chain(databases)
        .chain(targets)
        .filter(|asked| !known.contains(&asked.path));
    more.chain(objects).collect()
}

/// The links among `all` that stand for `unit`: its mask, its aliases, what enables it.
pub fn links_of_unit(unit: &str, all: &BTreeMap<AbsPath, String>) -> BTreeMap<AbsPath, String> {
    let units = BTreeSet::from([unit.to_owned()]);
    let standing = super::linkset::standing_for(&units, all);
    let own = AbsPath::new(format!("{}/{unit}", super::linkset::UNIT_DIR)).ok();
    all.iter()
        .filter(|(path, _)| standing.contains(*path) || Some(*path) == own.as_ref())
        .map(|(path, text)| (path.clone(), text.clone()))
        .collect()
}

/// The units that `[Install]` of `text`, the file of `unit`, brings along by `Also=`.
pub fn also(unit: &str, text: &str) -> Vec<String> {
    super::linkset::Install::read(unit, std::iter::once(text)).also
}
