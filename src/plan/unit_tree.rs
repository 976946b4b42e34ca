//! Models the planned unit directories: unit files, drop-ins, links and preset files from all parts
//! of the config.

mod brought;
mod linked;
mod listing;

use std::{borrow::Cow, collections::BTreeMap};

pub use self::brought::named_in;
pub(super) use self::brought::{brings, unit_path};
use self::{
    brought::{brought, drop_in_path},
    linked::{Outside, alias},
};

use super::{
    Observed,
    desired::Side,
    linkset::{UNIT_DIR, name, resolve},
    observed::UnitEntry,
    preset,
    units::started_by,
};
use crate::{machine_config::MachineConfig, path::AbsPath};

/// The directories of unit files, highest precedence first (systemd.unit(5)).
pub const UNIT_DIRECTORIES: [&str; 7] = [
    UNIT_DIR,
    "/run/systemd/system",
    GENERATED[0],
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    // For systems where /lib is not a link to /usr/lib.
    "/lib/systemd/system",
    GENERATED[1],
];

/// The directories where generators create units. These are started by the links beside them and
/// cannot be enabled.
const GENERATED: [&str; 2] = ["/run/systemd/generator", "/run/systemd/generator.late"];

const DEPENDENCIES: [&str; 3] = [".wants", ".requires", ".upholds"];

/// The kernel's limit on followed links (path_resolution(7)).
const MOST_LINKS: usize = 40;

/// Whether a directory of this name in a unit directory contains links that start units.
pub fn is_dependency_directory(name: &str) -> bool {
    DEPENDENCIES.iter().any(|suffix| name.ends_with(suffix))
}

/// The unit whose `*.wants` directory contains the link.
pub(super) fn wanter(link: &AbsPath) -> Option<String> {
    let directory = link.directory().rsplit('/').next()?;
    let mut wanters = DEPENDENCIES.iter();
    let wanter = wanters.find_map(|suffix| directory.strip_suffix(suffix))?;
    Some(wanter.to_owned())
}

/// One entry of a unit directory in the planned tree.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Entry<'a> {
    /// A file; none if its text is not known.
    File(Option<Cow<'a, str>>),
    /// A link, with its text.
    Link(&'a str),
}

impl Entry<'_> {
    /// Whether it masks the unit of the same name.
    pub(super) fn is_mask(&self) -> bool {
        match self {
            Self::File(text) => text.as_deref() == Some(""),
            Self::Link(text) => *text == "/dev/null",
        }
    }
}

impl UnitEntry {
    /// Whether it masks the unit of the same name.
    pub(super) fn is_mask(&self) -> bool {
        match self {
            Self::File => false,
            Self::Empty => true,
            Self::Link(text) => text == "/dev/null",
        }
    }
}

/// The result of resolving a unit name in the directories.
#[derive(Debug, PartialEq)]
pub(super) enum Named<'t> {
    /// A unit file at this path, with its text as far as known.
    File(AbsPath, &'t str),
    /// A unit that a generator created.
    Generated,
    /// A link to the null device, or an empty file.
    Masked,
    /// An alias of this unit.
    Alias(String),
    Missing,
}

/// All entries by path.
#[derive(Clone, Debug, Default)]
pub(super) struct UnitTree<'a> {
    entries: BTreeMap<AbsPath, Entry<'a>>,
    /// Unit files outside the unit directories, by the path that a link names.
    outside: BTreeMap<AbsPath, Outside<'a>>,
    /// Links to such files that were removed when their units were disabled, by path.
    away: BTreeMap<AbsPath, &'a str>,
}

impl<'a> UnitTree<'a> {
    /// The directories with the entries of `config` and without those that only the base config
    /// created.
    pub(super) fn planned(
        config: &'a MachineConfig,
        observed: &'a Observed,
        side: Side<'a>,
    ) -> Self {
        let mut tree = Self::without_ours(observed, side);
        tree.take_down_linked(config, observed, side);
        let names = match side {
            Side::Before => &observed.unit_paths_before,
            Side::After(_) => &observed.unit_paths,
        };
        for (path, entry) in brought(config, names) {
            tree.put(path, entry, observed);
        }
        for (name, unit) in &config.units {
            let drop_ins = unit.dropins.iter().filter(|(_, text)| text.is_empty());
            for path in drop_ins.filter_map(|(file, _)| drop_in_path(name, file)) {
                tree.entries.remove(&path);
            }
            if unit.lifts_mask()
                && let Some(path) = unit_path(name.as_str())
                && tree.at(&path).is_some_and(Entry::is_mask)
            {
                tree.entries.remove(&path);
            }
        }
        tree
    }

    /// The directories without the entries of the base config, and with the originals in their
    /// place.
    pub(super) fn without_ours(observed: &'a Observed, side: Side<'a>) -> Self {
        let mut tree = Self {
            outside: linked::known(observed, side),
            ..Self::default()
        };
        for (path, entry) in &observed.unit_files {
            tree.put(path.clone(), shown(path, entry, observed), observed);
        }
        // Preset files are only in the texts.
        for (path, text) in observed.texts.iter().filter(|(path, _)| is_preset(path)) {
            let text = Entry::File(Some(Cow::Borrowed(text.as_str())));
            tree.entries.insert(path.clone(), text);
        }
        let Side::After(from) = side else {
            return tree;
        };
        let ours = brought(from, &observed.unit_paths_before);
        for (path, _) in ours.filter(|(path, _)| !observed.adopted.contains(path)) {
            tree.entries.remove(&path);
            if let Some(entry) = observed.unit_originals.get(&path) {
                let place = observed.originals.get(&path).unwrap_or(&path);
                let entry = shown(place, entry, observed);
                tree.entries.insert(path, entry);
            }
        }
        tree
    }

    fn put(&mut self, path: AbsPath, entry: Entry<'a>, observed: &'a Observed) {
        let entry = match entry {
            // Files of a stored config exist on disk.
            Entry::File(None) => shown(&path, &UnitEntry::File, observed),
            known => known,
        };
        self.entries.insert(path, entry);
    }

    /// The entry at a path.
    pub(super) fn at(&self, path: &AbsPath) -> Option<&Entry<'a>> {
        self.entries.get(path)
    }

    /// Whether the vendor's directory contains the units that every boot needs, that is, whether
    /// the tree is a whole OS.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.named("basic.target"), Named::File(..))
    }

    /// Resolves `unit` without considering its template.
    pub(super) fn named(&self, unit: &str) -> Named<'_> {
        for directory in UNIT_DIRECTORIES {
            let Ok(path) = AbsPath::new(format!("{directory}/{unit}")) else {
                return Named::Missing;
            };
            match self.entries.get(&path) {
                None => {
                    if let Some(text) = self.away.get(&path) {
                        return self.behind(unit, &path, text);
                    }
                }
                Some(_) if GENERATED.contains(&directory) => return Named::Generated,
                Some(Entry::File(text)) => return file(path, text.as_ref()),
                Some(Entry::Link(text)) => return self.behind(unit, &path, text),
            }
        }
        Named::Missing
    }

    fn behind(&self, unit: &str, path: &AbsPath, text: &str) -> Named<'_> {
        let target = resolve(path, text);
        if target.as_str() == "/dev/null" {
            return Named::Masked;
        }
        let target = match self.outside.get(&target) {
            Some(Outside::Missing) => return Named::Missing,
            Some(Outside::File(end, text)) => return file(end.clone(), text.as_ref()),
            Some(Outside::Inside(end)) => end.clone(),
            None => target,
        };
        if let Some(other) = alias(unit, target.file_name()) {
            return Named::Alias(other);
        }
        // A unit file that is linked from elsewhere: the path of the file itself is used.
        match self.entries.get(&target).or_else(|| self.entries.get(path)) {
            Some(Entry::File(text)) => file(target, text.as_ref()),
            _ => file(target, None),
        }
    }

    /// The unit that `unit` is an alias of; itself if it is none.
    pub(super) fn real_name(&self, unit: &str) -> String {
        let mut real = unit.to_owned();
        for _ in 0..MOST_LINKS {
            match self.named(&real) {
                Named::Alias(next) => real = next,
                Named::Missing => match self.alias_of_template(&real) {
                    Some(next) => real = next,
                    None => break,
                },
                _ => break,
            }
        }
        real
    }

    /// `getty@tty1.service` for `autovt@tty1.service`, if only the templates exist.
    fn alias_of_template(&self, instance: &str) -> Option<String> {
        let template = name::template(instance).filter(|template| template != instance)?;
        match self.named(&template) {
            Named::Alias(other) => Some(name::with_instance(&other, name::instance(instance))),
            _ => None,
        }
    }

    /// Whether the unit will exist, by itself or as an instance of its template.
    pub(super) fn has(&self, unit: &str) -> bool {
        let real = self.real_name(unit);
        let template = name::template(&real);
        let mut names = std::iter::once(real.as_str()).chain(template.as_deref());
        names.any(|name| matches!(self.named(name), Named::File(..) | Named::Generated))
    }

    /// Whether a link of another unit starts it.
    pub(super) fn is_started(&self, unit: &str) -> bool {
        let paths = self.entries.keys().filter(|path| path.file_name() == unit);
        paths.into_iter().any(|path| started_by(path).is_some())
    }
}

fn file<'t>(path: AbsPath, text: Option<&'t Cow<'_, str>>) -> Named<'t> {
    match text.map(|text| &**text) {
        Some("") => Named::Masked,
        text => Named::File(path, text.unwrap_or_default()),
    }
}

fn shown<'a>(path: &AbsPath, entry: &'a UnitEntry, observed: &'a Observed) -> Entry<'a> {
    match entry {
        UnitEntry::Link(text) => Entry::Link(text),
        UnitEntry::Empty => Entry::File(Some(Cow::Borrowed(""))),
        UnitEntry::File => {
            let text = observed.texts.get(path);
            Entry::File(text.map(|text| Cow::Borrowed(text.as_str())))
        }
    }
}

fn is_preset(path: &AbsPath) -> bool {
    preset::DIRECTORIES.contains(&path.directory()) && path.file_name().ends_with(".preset")
}
