//! Models the planned unit directories: unit files, drop-ins, links and preset files from all parts of the config.

mod config_entries;
mod external_units;
mod listings;

use std::{borrow::Cow, collections::BTreeMap};

pub(super) use self::config_entries::{
    ConfigEntry, config_entries, creates_entry, unit_path, units_with_files,
};
pub use self::config_entries::{named_in, unit_texts};
use self::{
    config_entries::{created_entries, drop_in_path},
    external_units::{ExternalTarget, alias},
};

use super::{
    MachineFacts,
    desired_tree::ConfigSide,
    enablement::{UNIT_DIR, resolve, unit_name},
    machine_facts::UnitEntry,
    unit_preset,
};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::MachineConfig;

/// The directories of unit files, highest precedence first (systemd.unit(5)).
pub const UNIT_DIRECTORIES: [&str; 13] = [
    OVERRIDING_DIRECTORIES[0],
    OVERRIDING_DIRECTORIES[1],
    OVERRIDING_DIRECTORIES[2],
    OVERRIDING_DIRECTORIES[3],
    UNIT_DIR,
    // Units of portable services.
    "/etc/systemd/system.attached",
    "/run/systemd/system",
    "/run/systemd/system.attached",
    RUN_TIME_DIRS[2],
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    // For systems where /lib is not a link to /usr/lib.
    "/lib/systemd/system",
    RUN_TIME_DIRS[3],
];

/// The directories that take precedence over the administrator's; systemd's own interfaces and generators write there.
pub(super) const OVERRIDING_DIRECTORIES: [&str; 4] = [
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    RUN_TIME_DIRS[0],
    RUN_TIME_DIRS[1],
];

/// The directories of transient units and of those that generators create. These units cannot be enabled; the links
/// beside generated ones start them.
const RUN_TIME_DIRS: [&str; 4] = [
    "/run/systemd/transient",
    "/run/systemd/generator.early",
    "/run/systemd/generator",
    "/run/systemd/generator.late",
];

const DEPENDENCY_SUFFIXES: [&str; 3] = [".wants", ".requires", ".upholds"];

/// The target of a link that masks a unit.
const NULL_DEVICE: &str = "/dev/null";

/// The kernel's limit on followed links (path_resolution(7)).
const MAX_SYMLINKS: usize = 40;

/// Whether a directory of this name in a unit directory contains links that start units.
pub fn is_dependency_directory(name: &str) -> bool {
    DEPENDENCY_SUFFIXES
        .iter()
        .any(|suffix| name.ends_with(suffix))
}

/// The unit whose `*.wants` directory contains the link.
pub(super) fn wanting_unit(link: &AbsPath) -> Option<String> {
    let directory = link.directory().rsplit('/').next()?;
    let mut wanters = DEPENDENCY_SUFFIXES.iter();
    let wanter = wanters.find_map(|suffix| directory.strip_suffix(suffix))?;
    Some(wanter.to_owned())
}

/// Targets that a boot does not reach: a unit enabled only for these is not started.
const UNREACHED_TARGETS: [&str; 16] = [
    "shutdown.target",
    "reboot.target",
    "poweroff.target",
    "halt.target",
    "kexec.target",
    "soft-reboot.target",
    "exit.target",
    "final.target",
    "umount.target",
    "rescue.target",
    "emergency.target",
    "sleep.target",
    "suspend.target",
    "hibernate.target",
    "hybrid-sleep.target",
    "suspend-then-hibernate.target",
];

/// The unit that a link in a `*.wants` directory starts at boot.
pub(super) fn started_by(link: &AbsPath) -> Option<String> {
    let wanter = wanting_unit(link)?;
    let unit = link.file_name();
    let startable = unit_name::shape(unit) != Some(unit_name::UnitNameShape::Template)
        && unit_name::shape(&wanter) != Some(unit_name::UnitNameShape::Template);
    (startable && !UNREACHED_TARGETS.contains(&wanter.as_str())).then(|| unit.to_owned())
}

/// One entry of a unit directory in the planned tree.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum UnitTreeEntry<'a> {
    /// A file; none if its text is not known.
    File(Option<Cow<'a, str>>),
    /// A link, with its text.
    Link(&'a str),
}

impl UnitTreeEntry<'_> {
    /// Whether it masks the unit of the same name.
    pub(super) fn is_mask(&self) -> bool {
        match self {
            Self::File(text) => text.as_deref() == Some(""),
            Self::Link(text) => *text == NULL_DEVICE,
        }
    }
}

impl UnitEntry {
    /// Whether it masks the unit of the same name.
    pub(super) fn is_mask(&self) -> bool {
        match self {
            Self::File => false,
            Self::Empty => true,
            Self::Link(text) => text == NULL_DEVICE,
        }
    }
}

/// The result of resolving a unit name in the directories.
#[derive(Debug, PartialEq)]
pub(super) enum UnitResolution<'t> {
    /// A unit file at this path, with its text as far as known.
    File(AbsPath, &'t str),
    /// A transient unit, or one that a generator created.
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
    entries: BTreeMap<AbsPath, UnitTreeEntry<'a>>,
    /// Unit files outside the unit directories, by the path that a link names.
    outside: BTreeMap<AbsPath, ExternalTarget<'a>>,
    /// Names of units that the base config removed and that come back without it, with the text of each link: aliases,
    /// links to files outside, and masks.
    away: BTreeMap<AbsPath, &'a str>,
}

impl<'a> UnitTree<'a> {
    /// The directories with the entries of `config` and without those that only the base config created.
    pub(super) fn planned(
        config: &'a MachineConfig,
        observed: &'a MachineFacts,
        side: ConfigSide<'a>,
    ) -> Self {
        let mut tree = Self::without_ours(observed, side);
        tree.record_linked_units(config);
        let (names, linked) = match side {
            ConfigSide::Before => (&observed.unit_paths_before, &observed.linked_texts_before),
            ConfigSide::After(_) => (&observed.unit_paths, &observed.linked_texts),
        };
        for (path, entry) in created_entries(config, names) {
            tree.put(path, entry, observed);
        }
        for (path, text) in linked {
            let text = UnitTreeEntry::File(Some(Cow::Borrowed(text.as_str())));
            tree.entries.insert(path.clone(), text);
        }
        for (name, unit) in &config.units {
            let drop_ins = unit.dropins.iter().filter(|(_, text)| text.is_empty());
            for path in drop_ins.filter_map(|(file, _)| drop_in_path(name, file)) {
                tree.entries.remove(&path);
            }
            if unit.lifts_mask()
                && let Some(path) = unit_path(name.as_str())
            {
                tree.lift_mask(&path);
            }
        }
        tree
    }

    /// The directories without the entries of the base config, and with the originals in their place.
    pub(super) fn without_ours(observed: &'a MachineFacts, side: ConfigSide<'a>) -> Self {
        let mut tree = Self {
            outside: external_units::known(observed, side),
            ..Self::default()
        };
        for (path, entry) in &observed.unit_files {
            tree.put(path.clone(), shown(path, entry, observed), observed);
        }
        // Preset files are only in the texts.
        for (path, text) in observed.texts.iter().filter(|(path, _)| is_preset(path)) {
            let text = UnitTreeEntry::File(Some(Cow::Borrowed(text.as_str())));
            tree.entries.insert(path.clone(), text);
        }
        let ConfigSide::After(from) = side else {
            // Masks that the config lifts are gone, but its entries concern the units behind removed names.
            tree.add_removed_names(observed, false);
            return tree;
        };
        let adopted = |path: &AbsPath| observed.adopted.contains(path);
        let behind_links = observed.linked_texts_before.keys();
        for path in behind_links.filter(|path| !path.parent().is_some_and(|above| adopted(&above)))
        {
            tree.entries.remove(path);
        }
        let ours = created_entries(from, &observed.unit_paths_before);
        for (path, _) in ours.filter(|(path, _)| !adopted(path)) {
            tree.entries.remove(&path);
            if let Some(entry) = observed.unit_originals.get(&path) {
                let place = observed.originals.get(&path).unwrap_or(&path);
                let entry = shown(place, entry, observed);
                tree.entries.insert(path, entry);
            }
        }
        tree.add_removed_names(observed, true);
        tree
    }

    fn add_removed_names(&mut self, observed: &'a MachineFacts, with_masks: bool) {
        for (path, entry) in &observed.unit_originals {
            let text = match entry {
                UnitEntry::Link(text) => text,
                UnitEntry::Empty => NULL_DEVICE,
                UnitEntry::File => continue,
            };
            if self.at(path).is_none() && (with_masks || !entry.is_mask()) {
                self.away.insert(path.clone(), text);
            }
        }
    }

    fn lift_mask(&mut self, path: &AbsPath) {
        if self.at(path).is_some_and(UnitTreeEntry::is_mask) {
            self.entries.remove(path);
        }
        if self.away.get(path) == Some(&NULL_DEVICE) {
            self.away.remove(path);
        }
    }

    fn put(&mut self, path: AbsPath, entry: UnitTreeEntry<'a>, observed: &'a MachineFacts) {
        let entry = match entry {
            // Files of a stored config exist on disk.
            UnitTreeEntry::File(None) => shown(&path, &UnitEntry::File, observed),
            known => known,
        };
        self.entries.insert(path, entry);
    }

    /// The entry at a path.
    pub(super) fn at(&self, path: &AbsPath) -> Option<&UnitTreeEntry<'a>> {
        self.entries.get(path)
    }

    /// Whether the vendor's directory contains the units that every boot needs, that is, whether the tree is a
    /// whole OS.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.named("basic.target"), UnitResolution::File(..))
    }

    /// Resolves `unit` without considering its template.
    pub(super) fn named(&self, unit: &str) -> UnitResolution<'_> {
        for directory in UNIT_DIRECTORIES {
            let Ok(path) = AbsPath::new(format!("{directory}/{unit}")) else {
                return UnitResolution::Missing;
            };
            match self.entries.get(&path) {
                None => {
                    if let Some(text) = self.away.get(&path) {
                        return self.behind(unit, &path, text);
                    }
                }
                Some(_) if RUN_TIME_DIRS.contains(&directory) => return UnitResolution::Generated,
                Some(UnitTreeEntry::File(text)) => return file(path, text.as_ref()),
                Some(UnitTreeEntry::Link(text)) => return self.behind(unit, &path, text),
            }
        }
        UnitResolution::Missing
    }

    fn behind(&self, unit: &str, path: &AbsPath, text: &str) -> UnitResolution<'_> {
        let target = resolve(path, text);
        if target.as_str() == NULL_DEVICE {
            return UnitResolution::Masked;
        }
        let target = match self.outside.get(&target) {
            Some(ExternalTarget::Missing) => return UnitResolution::Missing,
            Some(ExternalTarget::File(end, text)) => return file(end.clone(), text.as_ref()),
            Some(ExternalTarget::Inside(end)) => end.clone(),
            None => target,
        };
        if let Some(other) = alias(unit, target.file_name()) {
            return UnitResolution::Alias(other);
        }
        // A unit file that is linked from elsewhere: the path of the file itself is used.
        match self.entries.get(&target).or_else(|| self.entries.get(path)) {
            Some(UnitTreeEntry::File(text)) => file(target, text.as_ref()),
            _ => file(target, None),
        }
    }

    /// The unit that `unit` is an alias of; itself if it is none.
    pub(super) fn real_name(&self, unit: &str) -> String {
        let mut real = unit.to_owned();
        for _ in 0..MAX_SYMLINKS {
            match self.named(&real) {
                UnitResolution::Alias(next) => real = next,
                UnitResolution::Missing => match self.alias_of_template(&real) {
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
        let template = unit_name::template(instance).filter(|template| template != instance)?;
        match self.named(&template) {
            UnitResolution::Alias(other) => Some(unit_name::with_instance(
                &other,
                unit_name::instance(instance),
            )),
            _ => None,
        }
    }

    /// Whether the unit will exist, by itself or as an instance of its template.
    pub(super) fn has(&self, unit: &str) -> bool {
        let real = self.real_name(unit);
        let template = unit_name::template(&real);
        let mut names = std::iter::once(real.as_str()).chain(template.as_deref());
        names.any(|name| {
            matches!(
                self.named(name),
                UnitResolution::File(..) | UnitResolution::Generated
            )
        })
    }

    /// Whether a link of another unit starts it.
    pub(super) fn is_started(&self, unit: &str) -> bool {
        let paths = self.entries.keys().filter(|path| path.file_name() == unit);
        paths.into_iter().any(|path| started_by(path).is_some())
    }
}

fn file<'t>(path: AbsPath, text: Option<&'t Cow<'_, str>>) -> UnitResolution<'t> {
    match text.map(|text| &**text) {
        Some("") => UnitResolution::Masked,
        text => UnitResolution::File(path, text.unwrap_or_default()),
    }
}

fn shown<'a>(
    path: &AbsPath,
    entry: &'a UnitEntry,
    observed: &'a MachineFacts,
) -> UnitTreeEntry<'a> {
    match entry {
        UnitEntry::Link(text) => UnitTreeEntry::Link(text),
        UnitEntry::Empty => UnitTreeEntry::File(Some(Cow::Borrowed(""))),
        UnitEntry::File => {
            let text = observed.texts.get(path);
            UnitTreeEntry::File(text.map(|text| Cow::Borrowed(text.as_str())))
        }
    }
}

pub(super) fn is_preset(path: &AbsPath) -> bool {
    unit_preset::PRESET_DIRS.contains(&path.directory()) && path.file_name().ends_with(".preset")
}
