//! Lists the paths that a plan depends on, for the observation of the machine.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Edit, MachineFacts, ObjectKind, SpecifierFacts,
    desired_tree::{ConfigSide, DesiredTree, ObjectSpec},
    ssh_keys,
};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::{EntryKind, MachineConfig};

/// One path that a config mentions, as spelled in the config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedPath {
    /// The path; links in its parents are not resolved.
    pub path: AbsPath,
    /// The kind of object that the config wants there; none if the path must be absent.
    pub kind: Option<ObjectKind>,
    /// The user's home directory if the path is a file of SSH keys: no link is followed below it.
    pub home: Option<AbsPath>,
    /// Whether the plan edits the existing text, because the file holds managed keys beside the
    /// user's own.
    pub edited: bool,
    /// The content does not matter: a hard link leads there, or the config does not set the
    /// content.
    pub only_seen: bool,
    /// The size in bytes of the file that the config wants there; none for other objects.
    pub size: Option<u64>,
    /// The uid of the wanted owner; none if the config does not set it.
    pub owner: Option<u32>,
    /// How many names the config gives to this object.
    pub names: u32,
    /// The path of the file if the config wants a hard link here.
    pub file: Option<AbsPath>,
    /// Whether an entry of the config describes the object at this path.
    pub described: bool,
}

impl ObservedPath {
    /// Whether the config wants a file here whose contents it does not set.
    pub fn is_without_content(&self) -> bool {
        let file = self.kind == Some(ObjectKind::File) && self.file.is_none();
        file && self.described && self.only_seen
    }

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
            file: None,
            described: false,
        }
    }
}

/// The paths of `config`: files, directories, links, unit files, the links that enable units, and
/// keys.
///
/// `from` is the base config if `config` is the desired one. Of `observed` the accounts, units,
/// texts and originals must already be filled in; its objects are not used.
pub fn asked(
    config: &MachineConfig,
    from: Option<&MachineConfig>,
    observed: &MachineFacts,
) -> Vec<ObservedPath> {
    let layout = DesiredTree::of(
        config,
        observed,
        from.map_or(ConfigSide::Before, ConfigSide::After),
    );
    let targets = config.links.values().filter(|link| link.hard);
    let targets = targets.filter_map(|link| AbsPath::new(link.target.as_str()).ok());
    let names = layout.names_of_files();
    let targets = targets.map(|path| ObservedPath {
        only_seen: true,
        names: names.get(&path).map_or(1, |more| more + 1),
        ..ObservedPath::of(path, Some(ObjectKind::File))
    });
    let beside = layout
        .beside()
        .map(|(path, kind)| ObservedPath::of(path, Some(kind)));
    let more = beside.chain(targets);
    let found = layout
        .maybe_kept()
        .map(|path| ObservedPath::of(path.clone(), Some(ObjectKind::Link)));
    let more = more.chain(found);
    let mut all: Vec<ObservedPath> = more
        .filter(|asked| !layout.speaks_of(&asked.path))
        .collect();
    let accounts = layout.accounts;
    let there = layout.objects.into_iter().chain(layout.earlier_keys);
    let there = there.map(|(path, wanted)| {
        let keys = wanted.entry.kind == EntryKind::SSHKey;
        let name = &*wanted.entry.name;
        let account = || {
            let planned = accounts.users.get(name);
            planned.or_else(|| observed.users.get(name))
        };
        let account = keys.then(account).flatten();
        ObservedPath {
            home: account.and_then(|account| account.home.clone()),
            edited: keys && ssh_keys::is_shared(&wanted.asked),
            only_seen: wanted.object.is_without_content(),
            size: match &wanted.object {
                ObjectSpec::File { content, .. } => Some(content.size()),
                _ => None,
            },
            owner: wanted.object.uid(),
            names: names
                .get(wanted.object.file(&path))
                .map_or(1, |more| more + 1),
            file: Some(wanted.object.file(&path))
                .filter(|file| **file != path)
                .cloned(),
            described: true,
            ..ObservedPath::of(path, Some(wanted.object.kind()))
        }
    });
    all.extend(there);
    let absent = layout.absent.into_keys().map(|path| ObservedPath {
        described: true,
        ..ObservedPath::of(path, None)
    });
    all.extend(absent);
    all
}

impl DesiredTree {
    /// The paths in the layout beside objects and absent paths: homes of users, and the account
    /// databases.
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

    /// The number of hard links that the layout wants, by the file they lead to.
    fn names_of_files(&self) -> BTreeMap<AbsPath, u32> {
        let mut names = BTreeMap::new();
        for wanted in self.objects.values() {
            if let ObjectSpec::Hard { target, .. } = &wanted.object {
                *names.entry(target.clone()).or_default() += 1;
            }
        }
        names
    }

    /// Every path that the layout mentions.
    pub(super) fn named(&self) -> BTreeSet<AbsPath> {
        let there = self.objects.keys().chain(self.absent.keys()).cloned();
        there.chain(self.beside().map(|(path, _)| path)).collect()
    }
}

/// The units that `Also=` in the `[InstallSection]` section of `text`, the file of `unit`, adds.
pub fn also(unit: &str, text: &str, machine: &SpecifierFacts) -> Vec<String> {
    super::enablement::InstallSection::read(unit, std::iter::once(text), machine).also
}
