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
    let accounts = layout.accounts;
    let homes = accounts.homes.iter().map(|home| Asked {
        path: home.path.clone(),
        kind: Some(ObjectKind::Directory),
        home: None,
        edited: false,
    });
    let databases: BTreeSet<_> = accounts.edits.iter().map(|edit| edit.database()).collect();
    let databases = databases.into_iter().map(|database| Asked {
        path: database.path(),
        kind: Some(ObjectKind::File),
        home: None,
        edited: false,
    });
    let there = layout.objects.into_iter().map(|(path, wanted)| {
        let keys = wanted.entry.kind == EntryKind::SSHKey;
        let name = &wanted.entry.name;
        let account = accounts.users.get(name);
        let account = account
            .or_else(|| observed.users.get(name))
            .filter(|_| keys);
        Asked {
            path,
            kind: Some(match wanted.object {
                Object::File { .. } => ObjectKind::File,
                Object::Directory { .. } => ObjectKind::Directory,
                Object::Link { .. } => ObjectKind::Link,
            }),
            home: account.and_then(|account| account.home.clone()),
            edited: keys && !observed.sshd_reads_keys_directory,
        }
    });
    let absent = layout.absent.into_keys().map(|path| Asked {
        path,
        kind: None,
        home: None,
        edited: false,
    });
    let objects: Vec<Asked> = there.chain(absent).collect();
    let known: BTreeSet<AbsPath> = objects.iter().map(|asked| asked.path.clone()).collect();
    let more = homes
        .chain(databases)
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
