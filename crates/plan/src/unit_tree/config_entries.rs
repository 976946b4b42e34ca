//! Lists the entries of the unit directories that a config creates: units, files and links.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use super::{UNIT_DIRECTORIES, UnitTreeEntry, is_dependency_directory, is_preset};
use crate::enablement::{UNIT_DIR, resolve, unit_name};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::{Content, MachineConfig, Unit, UnitName};

/// A file or link of a config in a unit or preset directory.
pub(crate) struct ConfigEntry<'a> {
    /// The path in the config.
    pub(crate) asked: &'a AbsPath,
    /// The path in the directory.
    pub(crate) path: AbsPath,
    pub(crate) entry: UnitTreeEntry<'a>,
}

/// The files and links of a config in the unit and preset directories; an unknown text is `None`.
/// `names` is [`Observed::unit_paths`](super::Observed::unit_paths) of the config.
pub(crate) fn config_entries<'a>(
    config: &'a MachineConfig,
    names: &'a BTreeMap<AbsPath, AbsPath>,
) -> impl Iterator<Item = ConfigEntry<'a>> {
    let entry = |asked: &'a AbsPath, entry: UnitTreeEntry<'a>| {
        let path = names.get(asked).unwrap_or(asked);
        is_ours(path).then(|| ConfigEntry {
            asked,
            path: path.clone(),
            entry,
        })
    };
    let files = config.files.iter();
    // An entry without contents keeps the machine's content.
    let files = files.filter_map(move |(path, file)| {
        let content = file.content.as_ref()?;
        entry(path, UnitTreeEntry::File(text(content)))
    });
    let links = config.links.iter();
    let links = links.filter_map(move |(path, link)| {
        let shown = match link.hard {
            true => UnitTreeEntry::File(hard_text(config, &link.target)),
            false => UnitTreeEntry::Link(&link.target),
        };
        entry(path, shown)
    });
    files.chain(links)
}

/// The entries of the unit and preset directories that a config creates; an unknown text is `None`.
pub(super) fn created_entries<'a>(
    config: &'a MachineConfig,
    names: &'a BTreeMap<AbsPath, AbsPath>,
) -> impl Iterator<Item = (AbsPath, UnitTreeEntry<'a>)> {
    let entries = config_entries(config, names).map(|entry| (entry.path, entry.entry));
    let units = config.units.iter().flat_map(|(name, unit)| {
        let own = own_entry(unit);
        let own = own.and_then(|entry| Some((unit_path(name.as_str())?, entry)));
        let texts = unit.dropins.iter().filter(|(_, text)| !text.is_empty());
        let drop_ins = texts.filter_map(|(file, text)| {
            let text = UnitTreeEntry::File(Some(Cow::Borrowed(text.as_str())));
            Some((drop_in_path(name, file)?, text))
        });
        own.into_iter().chain(drop_ins)
    });
    entries.chain(units)
}

fn own_entry(unit: &Unit) -> Option<UnitTreeEntry<'_>> {
    match &unit.contents {
        _ if unit.mask => Some(UnitTreeEntry::Link("/dev/null")),
        Some(text) => Some(UnitTreeEntry::File(Some(Cow::Borrowed(text.as_str())))),
        None => None,
    }
}

fn text(content: &Content) -> Option<Cow<'_, str>> {
    content.bytes().map(String::from_utf8_lossy)
}

fn hard_text<'a>(config: &'a MachineConfig, target: &str) -> Option<Cow<'a, str>> {
    let file = config.files.get(&AbsPath::new(target).ok()?)?;
    file.content.as_ref().and_then(text)
}

/// Whether a config creates a file or link at this path of the unit directories.
pub(crate) fn creates_entry(
    config: &MachineConfig,
    names: &BTreeMap<AbsPath, AbsPath>,
    path: &AbsPath,
) -> bool {
    created_entries(config, names).any(|(brought, _)| brought == *path)
}

/// The units of which a config contains the file, as a unit or as a file.
pub(crate) fn units_with_files(
    config: &MachineConfig,
    names: &BTreeMap<AbsPath, AbsPath>,
) -> BTreeSet<String> {
    let is_file = |(path, entry): &(AbsPath, UnitTreeEntry<'_>)| {
        UNIT_DIRECTORIES.contains(&path.directory())
            && matches!(entry, UnitTreeEntry::File(_))
            && !entry.is_mask()
    };
    let files = created_entries(config, names).filter(is_file);
    files.map(|(path, _)| path.file_name().to_owned()).collect()
}

/// The path of this unit's file in the administrator's directory.
pub(crate) fn unit_path(unit: &str) -> Option<AbsPath> {
    AbsPath::new(format!("{UNIT_DIR}/{unit}")).ok()
}

pub(super) fn drop_in_path(name: &UnitName, file: &str) -> Option<AbsPath> {
    AbsPath::new(format!("{UNIT_DIR}/{name}.d/{file}")).ok()
}

/// Whether systemd reads the object at this path as a unit, a drop-in, a link that starts a unit,
/// or a preset.
fn is_ours(path: &AbsPath) -> bool {
    let directory = path.directory();
    let (above, name) = directory.rsplit_once('/').unwrap_or_default();
    let nested = is_dependency_directory(name) || name.ends_with(".d");
    is_preset(path)
        || UNIT_DIRECTORIES.contains(&directory)
        || (nested && UNIT_DIRECTORIES.contains(&above))
}

/// The texts of the units and drop-ins that a config contains, by unit.
pub fn unit_texts<'a>(
    config: &'a MachineConfig,
    names: &'a BTreeMap<AbsPath, AbsPath>,
) -> BTreeMap<String, Vec<Cow<'a, str>>> {
    let mut texts: BTreeMap<String, Vec<Cow<'a, str>>> = BTreeMap::new();
    for (path, entry) in created_entries(config, names) {
        let directory = path.directory().rsplit('/').next().unwrap_or_default();
        let unit = directory.strip_suffix(".d").unwrap_or(path.file_name());
        if let UnitTreeEntry::File(Some(text)) = entry {
            texts.entry(unit.to_owned()).or_default().push(text);
        }
    }
    texts
}

/// The units that the files and links of a config name, in addition to those in its list of units.
pub fn named_in(config: &MachineConfig, names: &BTreeMap<AbsPath, AbsPath>) -> Vec<String> {
    let mut found = Vec::new();
    for (path, entry) in created_entries(config, names) {
        let directory = path.directory().rsplit('/').next().unwrap_or_default();
        found.push(path.file_name().to_owned());
        found.extend(directory.strip_suffix(".d").map(str::to_owned));
        if let UnitTreeEntry::Link(text) = entry {
            found.push(resolve(&path, text).file_name().to_owned());
        }
    }
    found.retain(|name| unit_name::shape(name).is_some());
    found
}
