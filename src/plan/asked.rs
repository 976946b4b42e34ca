//! Which paths a plan depends on: what an observation must look at.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Edit, ObjectKind, Observed,
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
    /// Its content does not matter: a hard link leads there, or the config leaves the content as it is.
    pub only_seen: bool,
    /// Bytes of the file that the config wants there; none for everything else.
    pub size: Option<u64>,
    /// The user who is to own it; none where the config does not say.
    pub owner: Option<u32>,
    /// How many names the config has for its object.
    pub names: u32,
}

impl Asked {
    fn of(path: AbsPath, kind: Option<ObjectKind>) -> Self {
        Self {
            path,
            kind,
            home: None,
            edited: false,
            only_seen: false,
            size: None,
            owner: None,
            names: 1,
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
    let names = layout.names_of_files();
    let targets = targets.map(|path| Asked {
        only_seen: true,
        names: names.get(&path).map_or(1, |more| more + 1),
        ..Asked::of(path, Some(ObjectKind::File))
    });
    let beside = layout
        .beside()
        .map(|(path, kind)| Asked::of(path, Some(kind)));
    let more = beside.chain(targets);
    let mut all: Vec<Asked> = more
        .filter(|asked| !layout.speaks_of(&asked.path))
        .collect();
    let accounts = layout.accounts;
    let there = layout.objects.into_iter().map(|(path, wanted)| {
        let keys = wanted.entry.kind == EntryKind::SSHKey;
        let name = &*wanted.entry.name;
        let account = || {
            let planned = accounts.users.get(name);
            planned.or_else(|| observed.users.get(name))
        };
        let account = keys.then(account).flatten();
        Asked {
            home: account.and_then(|account| account.home.clone()),
            edited: keys && !observed.sshd_reads_keys_directory,
            only_seen: wanted.object.is_without_content(),
            size: match &wanted.object {
                Object::File { content, .. } => Some(content.size()),
                _ => None,
            },
            owner: wanted.object.uid(),
            names: names
                .get(wanted.object.file(&path))
                .map_or(1, |more| more + 1),
            ..Asked::of(path, Some(wanted.object.kind()))
        }
    });
    all.extend(there);
    let absent = layout.absent.into_keys().map(|path| Asked::of(path, None));
    all.extend(absent);
    all
}

impl Layout {
    /// What it says something of beside objects and what is to be absent: homes of users, and the databases
    /// that hold entries.
    fn beside(&self) -> impl Iterator<Item = (AbsPath, ObjectKind)> {
        let homes = self.accounts.homes.iter();
        let homes = homes.map(|home| (home.path.clone(), ObjectKind::Directory));
        let edits = self.accounts.edits.iter();
        let databases: BTreeSet<_> = edits.map(Edit::database).collect();
        let databases = databases
            .into_iter()
            .map(|it| (it.path(), ObjectKind::File));
        homes.chain(databases)
    }

    /// How many hard links it asks for, by the files that they are names of.
    fn names_of_files(&self) -> BTreeMap<AbsPath, u32> {
        let mut names = BTreeMap::new();
        for wanted in self.objects.values() {
            if let Object::Hard { target, .. } = &wanted.object {
                *names.entry(target.clone()).or_default() += 1;
            }
        }
        names
    }

    /// Every path that it says something of.
    pub(super) fn named(&self) -> BTreeSet<AbsPath> {
        let there = self.objects.keys().chain(self.absent.keys()).cloned();
        there.chain(self.beside().map(|(path, _)| path)).collect()
    }
}

/// The units that `[Install]` of `text`, the file of `unit`, brings along by `Also=`.
pub fn also(unit: &str, text: &str) -> Vec<String> {
    super::linkset::Install::read(unit, std::iter::once(text)).also
}
