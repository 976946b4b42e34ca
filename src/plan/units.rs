//! What a config says of units, as objects below `/etc/systemd/system`.

use std::collections::BTreeSet;

use super::{
    Observed,
    catalogue::Catalogue,
    desired::{Entry, Layout, Object, Place, Side, Wanted},
    linkset::{self, Links, Lookup, UNIT_DIR, name},
    preset::{Preset, Presets},
};
use crate::{
    machine_config::{EntryKind, MachineConfig, Unit, UnitName},
    path::AbsPath,
};

/// Targets that no boot reaches: a unit enabled for nothing but these is not started.
const NEVER_REACHED: [&str; 16] = [
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

/// Adds unit files, drop-ins, masks and the links of enablement.
pub(super) fn add(layout: &mut Layout, config: &MachineConfig, place: &Place<'_>, side: Side<'_>) {
    for (name, unit) in &config.units {
        add_files(layout, place, name, unit);
    }
    let catalogue = Catalogue {
        config,
        observed: place.observed,
        side,
    };
    let presets = Presets::of(&place.observed.texts);
    let links = all_links(place.observed);
    // What is said outright comes first; what is left as it is fills the gaps.
    for (name, unit) in &config.units {
        let wish = wish(name, unit, side, &presets);
        if !unit.mask && wish != Wish::Unsaid {
            Enabling {
                layout,
                place,
                catalogue: &catalogue,
                links: &links,
            }
            .apply(name, unit, wish);
        }
    }
    for (name, unit) in &config.units {
        if wish(name, unit, side, &presets) == Wish::Unsaid && brought(unit) {
            let kept = links
                .iter()
                .filter(|(path, _)| !has_its_own_say(path, config, side));
            keep(
                layout,
                place,
                name,
                unit,
                &kept
                    .map(|(path, text)| (path.clone(), text.clone()))
                    .collect(),
            );
        }
    }
}

/// What a config wants of a unit's enablement.
#[derive(Clone, Debug, PartialEq)]
enum Wish {
    /// Said by the config: enabled.
    Enabled,
    /// Said by the config: disabled.
    Disabled,
    /// Not said, and the unit is new: what the presets say.
    Preset(Preset),
    /// Not said: as it is.
    Unsaid,
}

fn wish(name: &UnitName, unit: &Unit, side: Side<'_>, presets: &Presets) -> Wish {
    match (unit.enabled, side) {
        (Some(true), _) => Wish::Enabled,
        (Some(false), _) => Wish::Disabled,
        // Presets are for units that this config brings: a drop-in for a unit of the vendor must not
        // turn that unit on or off.
        (None, Side::After(from)) if unit.contents.is_some() => match from.units.get(name) {
            Some(known) if brought(known) && known.enabled.is_none() => Wish::Unsaid,
            _ => Wish::Preset(presets.ask(name.as_str())),
        },
        (None, _) => Wish::Unsaid,
    }
}

/// Whether a unit file comes with the config; of a masked unit nothing but the mask does.
fn brought(unit: &Unit) -> bool {
    unit.contents.is_some() && !unit.mask
}

fn add_files(layout: &mut Layout, place: &Place<'_>, name: &UnitName, unit: &Unit) {
    let Ok(path) = AbsPath::new(format!("{UNIT_DIR}/{name}")) else {
        return;
    };
    if unit.mask {
        let entry = Entry::new(EntryKind::Mask, name.as_str(), &unit.origin);
        layout.add(place, &path, entry, Object::link("/dev/null"));
    } else if let Some(text) = &unit.contents {
        let entry = Entry::new(EntryKind::Unit, name.as_str(), &unit.origin);
        layout.add(place, &path, entry, Object::unit_file(text));
    }
    for (file, text) in &unit.dropins {
        let Ok(path) = AbsPath::new(format!("{UNIT_DIR}/{name}.d/{file}")) else {
            continue;
        };
        let entry = Entry::new(EntryKind::DropIn, format!("{name}/{file}"), &unit.origin);
        if text.is_empty() {
            layout.absent.insert(place.of(&path), entry);
        } else {
            layout.add(place, &path, entry, Object::unit_file(text));
        }
    }
}

/// All links below the unit directory that observation found for the units it looked at.
fn all_links(observed: &Observed) -> Links {
    observed
        .units
        .values()
        .flat_map(|facts| &facts.links)
        .map(|(path, text)| (path.clone(), text.clone()))
        .collect()
}

struct Enabling<'a, 'b> {
    layout: &'a mut Layout,
    place: &'a Place<'b>,
    catalogue: &'a Catalogue<'a>,
    links: &'a Links,
}

impl Enabling<'_, '_> {
    fn apply(&mut self, name: &UnitName, unit: &Unit, wish: Wish) {
        let entry = Entry::new(EntryKind::Enablement, name.as_str(), &unit.origin);
        match wish {
            Wish::Enabled => self.enable(&entry, unit, &[name.to_string()], true),
            Wish::Preset(Preset::Enable(names)) => self.enable(&entry, unit, &names, false),
            Wish::Disabled => self.disable(&entry, name, self.newly_said(name, unit)),
            // A preset disables the unit alone, without those of its `Also=`.
            Wish::Preset(Preset::Disable) => self.disable(&entry, name, false),
            Wish::Unsaid => {}
        }
    }

    fn enable(&mut self, entry: &Entry, unit: &Unit, names: &[String], said: bool) {
        let mut own = BTreeSet::new();
        for name in names {
            match self.catalogue.find(name) {
                Lookup::Found(_) => {}
                Lookup::Masked => {
                    self.layout.warnings.push(format!(
                        "{name} is to be enabled but is masked on this machine: it stays off"
                    ));
                    continue;
                }
                Lookup::Missing => {
                    self.layout.warnings.push(format!(
                        "{name} is to be enabled and does not exist on this machine: skipped"
                    ));
                    continue;
                }
            }
            let stop = |other: &str| self.catalogue.says(other);
            let set = linkset::enable(name, &|other| self.catalogue.find(other), &stop);
            if said && set.links.is_empty() && set.also.is_empty() && set.complaints.is_empty() {
                self.layout.warnings.push(format!(
                    "{name} is to be enabled and has no [Install] section: enabling it does nothing"
                ));
            }
            self.layout.warnings.extend(set.complaints);
            own.extend(set.links.keys().cloned());
            let starts = set.links.keys().filter_map(started_by);
            self.layout
                .starts
                .entry(entry.name.to_string())
                .or_default()
                .extend(starts);
            for (path, target) in set.links {
                self.layout
                    .add(self.place, &path, entry.clone(), Object::link(target));
            }
        }
        // The links of a unit that the config brings are exactly those it asks for; those of a
        // vendor's unit may have been added to by others.
        if unit.contents.is_some() {
            let units = BTreeSet::from([entry.name.to_string()]);
            let mut extra = linkset::standing_for(&units, self.links);
            extra.extend(self.kept_away(&units));
            self.clear(entry, extra.into_iter().filter(|path| !own.contains(path)));
        }
    }

    /// `Also=` of a disabled unit turns its companions off once, when it is disabled. Later another
    /// unit or a person may have turned them on again.
    fn newly_said(&self, name: &UnitName, unit: &Unit) -> bool {
        match self.catalogue.side {
            Side::Before => true,
            Side::After(from) => from.units.get(name) != Some(unit),
        }
    }

    fn disable(&mut self, entry: &Entry, name: &UnitName, companions: bool) {
        let find = |other: &str| self.catalogue.find(other);
        let stop = |other: &str| !companions || self.catalogue.says(other);
        let family = linkset::family(name.as_str(), &find, &stop);
        let mut paths = linkset::standing_for(&family, self.links);
        paths.extend(self.kept_away(&family));
        paths.extend(
            linkset::enable(name.as_str(), &find, &stop)
                .links
                .into_keys(),
        );
        self.clear(entry, paths.into_iter());
    }

    /// Links of these units that stood there before machinist and were taken away: still to be gone, and
    /// to come back when nothing is said of the units any more.
    fn kept_away(&self, units: &BTreeSet<String>) -> BTreeSet<AbsPath> {
        let observed = self.place.observed;
        let originals = observed.originals.iter();
        let below = originals.filter(|(path, _)| path.as_str().starts_with(UNIT_DIR));
        let (mut links, mut unseen) = (Links::new(), BTreeSet::new());
        for (path, place) in below.filter(|(path, _)| !self.was_replaced(path)) {
            match observed.objects.get(place) {
                Some(original) => {
                    links.extend(original.target.clone().map(|text| (path.clone(), text)));
                }
                // Not looked at yet: this is asked to learn what to look at.
                None => drop(unseen.insert(path.clone())),
            }
        }
        unseen.extend(linkset::standing_for(units, &links));
        unseen
    }

    /// Whether the config before had a unit file or a mask there.
    fn was_replaced(&self, path: &AbsPath) -> bool {
        let (Side::After(from), Ok(name)) = (self.catalogue.side, UnitName::new(path.file_name()))
        else {
            return false;
        };
        let own = path
            .parent()
            .is_some_and(|parent| parent.as_str() == UNIT_DIR);
        let unit = from.units.get(&name).filter(|_| own);
        unit.is_some_and(|unit| unit.mask || unit.contents.is_some())
    }

    fn clear(&mut self, entry: &Entry, paths: impl Iterator<Item = AbsPath>) {
        for path in paths {
            let path = self.place.of(&path);
            self.layout
                .absent
                .entry(path)
                .or_insert_with(|| entry.clone());
        }
    }
}

/// The unit that a link of a `*.wants` directory starts at boot.
pub(super) fn started_by(link: &AbsPath) -> Option<String> {
    let parent = link.parent()?;
    let directory = parent.file_name();
    let wanter = [".wants", ".requires", ".upholds"]
        .iter()
        .find_map(|suffix| directory.strip_suffix(suffix))?;
    let unit = link.file_name();
    let startable = name::shape(unit) != Some(name::Shape::Template)
        && name::shape(wanter) != Some(name::Shape::Template);
    (startable && !NEVER_REACHED.contains(&wanter)).then(|| unit.to_owned())
}

/// Whether this is the link of an instance that one of the configs enables or disables by name: then
/// its template, of which nothing is said, does not keep it.
fn has_its_own_say(link: &AbsPath, config: &MachineConfig, side: Side<'_>) -> bool {
    let (Side::After(from), Ok(unit)) = (side, UnitName::new(link.file_name())) else {
        return false;
    };
    let says = |config: &MachineConfig| {
        config
            .units
            .get(&unit)
            .is_some_and(|unit| unit.enabled.is_some())
    };
    says(config) || (says(from) && !config.units.contains_key(&unit))
}

/// The links there are stay: nothing was said of them, and they belong to the unit.
fn keep(layout: &mut Layout, place: &Place<'_>, name: &UnitName, unit: &Unit, links: &Links) {
    for path in linkset::standing_for(&BTreeSet::from([name.to_string()]), links) {
        let canonical = place.of(&path);
        if layout.objects.contains_key(&canonical) || layout.absent.contains_key(&canonical) {
            continue;
        }
        let target = links.get(&path).cloned().unwrap_or_default();
        let entry = Entry::new(EntryKind::Enablement, name.as_str(), &unit.origin);
        layout
            .starts
            .entry(name.to_string())
            .or_default()
            .extend(started_by(&path));
        layout.objects.insert(
            canonical,
            Wanted {
                entry,
                asked: path,
                object: Object::link(target),
            },
        );
    }
}
