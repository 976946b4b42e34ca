//! Translates the units of a config into objects below `/etc/systemd/system`.

mod kept_links;
mod lasting_presets;
mod lifted_masks;
mod unit_files;

use std::collections::BTreeSet;

use self::kept_links::{existing, has_own_enablement, instances_enabled_themselves, keep};
use super::{
    desired_tree::{
        ConfigSide, DesiredEntry, DesiredObject, DesiredTree, ObjectSpec, PathResolver,
    },
    enablement::{self, LinkTargets, UNIT_DIR, UnitLookup, unit_name},
    machine_facts::UnitEntry,
    unit_aliases,
    unit_catalog::{EnabledUnits, UnitCatalog},
    unit_check, unit_conflicts, unit_faults,
    unit_preset::{Preset, Presets},
    unit_tree,
};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::{EntryKind, MachineConfig, Refusal, Unit, UnitName};

/// Adds unit files, drop-ins, masks and enablement links.
pub(super) fn add(
    layout: &mut DesiredTree,
    config: &MachineConfig,
    place: &PathResolver<'_>,
    side: ConfigSide<'_>,
) {
    for (name, unit) in &config.units {
        unit_files::add(layout, place, name, unit);
    }
    lifted_masks::lift_masks(layout, config, place, side);
    let mut catalogue = UnitCatalog::new(config, place.observed, side);
    let presets = Presets::of(&catalogue.tree.presets());
    let enabled = to_be_enabled(&catalogue, &presets);
    catalogue.name_units(&enabled);
    catalogue.left_to_presets = left_to_presets(&catalogue, &presets);
    unit_aliases::check(layout, &catalogue);
    unit_conflicts::check(layout, &catalogue);
    unit_check::check(layout, &catalogue);
    lasting_presets::warn(layout, &catalogue, &presets);
    let links = catalogue.tree.links();
    let base = match side {
        ConfigSide::After(from) if has_same_disabled(config, from) => {
            Some(UnitCatalog::new(from, place.observed, ConfigSide::Before))
        }
        _ => None,
    };
    let base = base.as_ref();
    // Explicit settings come first; units without a setting keep the remaining links.
    for (name, unit) in &config.units {
        let wish = desired_enablement(name, unit, &catalogue, &presets);
        // A mask alone leaves the links, as `systemctl mask` does.
        let applies = !unit.mask || wish == DesiredEnablement::Disabled;
        if applies && wish != DesiredEnablement::Unset {
            EnablementPlanner {
                layout,
                place,
                catalogue: &catalogue,
                base,
                links: &links,
            }
            .apply(name, unit, wish);
        }
    }
    for (name, unit) in &config.units {
        let wish = desired_enablement(name, unit, &catalogue, &presets);
        EnablementPlanner {
            layout,
            place,
            catalogue: &catalogue,
            base,
            links: &links,
        }
        .keep_unset(name, unit, &wish, &presets);
    }
}

/// Whether the config disables a unit by the same entry as the base config.
fn has_same_disabled(config: &MachineConfig, from: &MachineConfig) -> bool {
    let mut units = config.units.iter();
    units.any(|(name, unit)| unit.enabled == Some(false) && from.units.get(name) == Some(unit))
}

/// The units that the presets and the config enable, by the names in the config.
fn to_be_enabled(catalogue: &UnitCatalog<'_>, presets: &Presets) -> EnabledUnits {
    let EnabledUnits {
        mut by_presets,
        mut said,
    } = EnabledUnits::default();
    let units = catalogue.config.units.iter();
    for (name, unit) in units.filter(|(_, unit)| !unit.mask) {
        match desired_enablement(name, unit, catalogue, presets) {
            DesiredEnablement::Enabled => said.push(name.to_string()),
            DesiredEnablement::Preset(Preset::Enable(names)) => by_presets.extend(names),
            _ => {}
        }
    }
    EnabledUnits { by_presets, said }
}

/// The units whose own entries leave their enablement to the presets: `Also=` of a disabled unit has no effect on them.
fn left_to_presets(catalogue: &UnitCatalog<'_>, presets: &Presets) -> BTreeSet<String> {
    let mut left = BTreeSet::new();
    let units = catalogue.config.units.iter();
    for (name, unit) in units.filter(|(_, unit)| !unit.mask) {
        if let DesiredEnablement::Preset(preset) =
            desired_enablement(name, unit, catalogue, presets)
        {
            left.insert(catalogue.real_name(name, unit));
            if let Preset::Enable(names) = preset {
                left.extend(names.iter().map(|name| catalogue.tree.real_name(name)));
            }
        }
    }
    left
}

/// The desired enablement of a unit.
#[derive(Clone, Debug, PartialEq)]
enum DesiredEnablement {
    /// The config enables the unit.
    Enabled,
    /// The config disables the unit.
    Disabled,
    /// The config does not set it and the unit is new: the preset decides.
    Preset(Preset),
    /// The config does not set it: the enablement stays unchanged.
    Unset,
}

fn desired_enablement(
    name: &UnitName,
    unit: &Unit,
    catalogue: &UnitCatalog<'_>,
    presets: &Presets,
) -> DesiredEnablement {
    let has_file = catalogue.has_file(name);
    match (unit.enabled, catalogue.side) {
        (Some(true), _) => DesiredEnablement::Enabled,
        (Some(false), _) => DesiredEnablement::Disabled,
        // Presets apply to units that are new in the config, with a file or with drop-ins only,
        // like in OpenShift's daemon.
        (None, ConfigSide::After(from)) if has_file || only_drop_ins(unit) => {
            match was_left_to_presets(name, catalogue, from) {
                true => DesiredEnablement::Unset,
                false if has_file => DesiredEnablement::Preset(presets.ask(name.as_str())),
                // Without a preset rule, a drop-in does not enable a unit of the vendor.
                false => presets
                    .rule_for(name.as_str())
                    .map_or(DesiredEnablement::Unset, DesiredEnablement::Preset),
            }
        }
        (None, _) => DesiredEnablement::Unset,
    }
}

/// Whether the base config left the unit to the presets as well: then they do not apply again.
fn was_left_to_presets(name: &UnitName, catalogue: &UnitCatalog<'_>, from: &MachineConfig) -> bool {
    let had_file = catalogue.had_file(name);
    let silent = |known: &Unit| {
        let same = had_file == catalogue.has_file(name);
        same && (had_file || only_drop_ins(known)) && known.enabled.is_none()
    };
    from.units.get(name).is_some_and(silent)
}

/// Whether the config contains only drop-ins for the unit.
fn only_drop_ins(unit: &Unit) -> bool {
    let texts = || unit.dropins.values().any(|text| !text.is_empty());
    unit.contents.is_none() && !unit.mask && texts()
}

/// The file and field of an entry, in front of a message. A stored config has none.
fn place_of(entry: &DesiredEntry, requested: bool) -> String {
    let mut place = Refusal::new(Reason::ValueInvalid, "").at(&entry.origin);
    if requested && let Some(unit) = &entry.origin.field {
        place = place.field(format!("{unit}.enabled"));
    }
    place.place()
}

struct EnablementPlanner<'a, 'b> {
    layout: &'a mut DesiredTree,
    place: &'a PathResolver<'b>,
    catalogue: &'a UnitCatalog<'a>,
    /// The units of the base config, if both configs disable a unit by the same entry.
    base: Option<&'a UnitCatalog<'a>>,
    links: &'a LinkTargets,
}

impl EnablementPlanner<'_, '_> {
    fn apply(&mut self, name: &UnitName, unit: &Unit, wish: DesiredEnablement) {
        let real = self.catalogue.real_name(name, unit);
        let entry = DesiredEntry::new(EntryKind::Enablement, real.as_str(), &unit.origin);
        let has_file = self.catalogue.has_file(name);
        match wish {
            DesiredEnablement::Enabled => self.enable(&entry, &[real], (true, has_file)),
            // An entry under another name of the unit sets its enablement.
            DesiredEnablement::Preset(_) if self.catalogue.sets_enablement(&real) => {}
            DesiredEnablement::Preset(Preset::Enable(names)) => {
                self.layout.preset.insert(real);
                self.enable(&entry, &names, (false, has_file));
            }
            DesiredEnablement::Disabled => {
                let newly = self.is_newly_set(name, unit, &real);
                self.disable(&entry, &[&real, name.as_str()], newly);
                if !newly {
                    self.keep_companions_removed(&entry, &real);
                }
            }
            // A preset disables the unit only, not the units in its `Also=`.
            DesiredEnablement::Preset(Preset::Disable) => self.disable(&entry, &[&real], false),
            DesiredEnablement::Unset => {}
        }
    }

    /// Keeps the links of a unit whose enablement the config does not set.
    fn keep_unset(
        &mut self,
        name: &UnitName,
        unit: &Unit,
        wish: &DesiredEnablement,
        presets: &Presets,
    ) {
        let (config, side) = (self.catalogue.config, self.catalogue.side);
        let (place, links) = (self.place, self.links);
        let has_file = self.catalogue.has_file(name);
        let catalogue = self.catalogue;
        // An alias that the config enables is no other unit.
        let is_alias = |path: &AbsPath| {
            let link = path.file_name();
            unit_name::shape(link) == Some(unit_name::UnitNameShape::Plain)
                && catalogue.is_enabled(name.as_str())
                && catalogue.tree.real_name(link) == name.as_str()
        };
        let kept = || -> LinkTargets {
            let kept = links
                .iter()
                .filter(|(path, _)| is_alias(path) || !has_own_enablement(path, config, side));
            kept.map(|(path, text)| (path.clone(), text.clone()))
                .collect()
        };
        let enabled_instances = instances_enabled_themselves(links, config);
        match wish {
            DesiredEnablement::Preset(_) if has_file => {
                let mut found = kept();
                found.extend(enabled_instances);
                let found = existing(place, name, unit, &found);
                self.layout.found_links.extend(found);
            }
            DesiredEnablement::Unset if has_file => {
                let all = existing(place, name, unit, links).map(|(path, _)| path);
                self.layout.links_of_units.extend(all);
                keep(self.layout, place, name, unit, &kept());
                let own = existing(place, name, unit, &enabled_instances);
                self.layout.instance_links.extend(own);
                self.keep_preset(name, unit, presets);
            }
            // Only a unit that was in the base config without a setting can have lost links to the presets. For any other
            // one the plan restores the links that the base config removed.
            DesiredEnablement::Unset if only_drop_ins(unit) && self.followed_presets(name) => {
                self.keep_preset(name, unit, presets);
            }
            _ => {}
        }
    }

    fn followed_presets(&self, name: &UnitName) -> bool {
        match self.catalogue.side {
            ConfigSide::Before => true,
            ConfigSide::After(from) => was_left_to_presets(name, self.catalogue, from),
        }
    }

    /// Enables units for one entry. `requested`: the config requests it; `has_file`: the config contains the unit.
    fn enable(
        &mut self,
        entry: &DesiredEntry,
        names: &[String],
        (requested, has_file): (bool, bool),
    ) {
        let mut own = BTreeSet::new();
        for name in names {
            let name = &self.catalogue.tree.real_name(name);
            let why_not = match self.catalogue.find(name) {
                UnitLookup::Found(_) => None,
                UnitLookup::Masked => Some("it is masked on this machine"),
                UnitLookup::Generated => Some("it is transient or created by a generator"),
                // An alias that does not resolve.
                UnitLookup::Missing | UnitLookup::Alias(_) => {
                    Some("it does not exist on this machine")
                }
            };
            if let Some(why_not) = why_not {
                // A preset is not an explicit request: there may be drop-ins for a unit that is not
                // installed.
                // A unit that a generator will create has its own warning.
                let generated = unit_faults::is_quadlet(name, self.catalogue);
                if (requested || has_file) && !generated {
                    let warning = format!(
                        "{}cannot enable {name}: {why_not}",
                        place_of(entry, requested)
                    );
                    self.layout.warnings.push(warning);
                }
                continue;
            }
            let stop = |other: &str| self.catalogue.sets_enablement(other);
            let mut set = enablement::enable(name, &|other| self.catalogue.find(other), &stop);
            // An instance that the config disables by name is not enabled through its template.
            set.links
                .retain(|path, _| !self.catalogue.is_disabled(path.file_name()));
            if requested && set.links.is_empty() && set.also.is_empty() && set.complaints.is_empty()
            {
                self.layout.warnings.push(format!(
                    "{name} has no [Install] section: enabling it has no effect"
                ));
            }
            self.layout.warnings.extend(set.complaints);
            own.extend(set.links.keys().cloned());
            let starts = set.links.keys().filter_map(unit_tree::started_by);
            self.layout
                .starts
                .entry(entry.name.to_string())
                .or_default()
                .extend(starts);
            for (path, target) in set.links {
                self.layout
                    .add(self.place, &path, entry.clone(), ObjectSpec::link(target));
            }
        }
        // Links that others made stay, as with `systemctl enable`. Those that were removed when the unit was
        // disabled do not come back.
        if has_file {
            let mut away = self.removed_originals(&BTreeSet::from([entry.name.to_string()]));
            away.retain(|path| !own.contains(path) && !self.links.contains_key(path));
            self.clear(entry, away.into_iter());
        }
    }

    /// `Also=` of a disabled unit disables its companions once, when the unit is disabled or gets a companion, also
    /// from a drop-in of its template. Later another unit or a user may have enabled them again.
    fn is_newly_set(&self, name: &UnitName, unit: &Unit, real: &str) -> bool {
        let ConfigSide::After(from) = self.catalogue.side else {
            return true;
        };
        let companions = |catalogue: &UnitCatalog<'_>| {
            enablement::family(real, &|other| catalogue.find(other), &|_| false)
        };
        let gains = |base| !companions(self.catalogue).is_subset(&companions(base));
        from.units.get(name) != Some(unit) || self.base.is_some_and(gains)
    }

    /// Disables a unit, given by its real name and by the name in the config: links to that name may lead nowhere.
    fn disable(&mut self, entry: &DesiredEntry, names: &[&str], companions: bool) {
        let Some(name) = names.first() else {
            return;
        };
        let find = |other: &str| self.catalogue.find(other);
        let stop = |other: &str| {
            let catalogue = self.catalogue;
            let decided = catalogue.sets_enablement(other);
            !companions || decided || catalogue.left_to_presets.contains(other)
        };
        let own: BTreeSet<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut family = enablement::family(name, &find, &stop);
        family.extend(own.iter().cloned());
        let mut away = self.removed_originals(&family);
        let standing = match self.catalogue.side {
            // A link of a companion was made after the unit was disabled.
            ConfigSide::Before => {
                away.retain(|path| !self.links.contains_key(path));
                &own
            }
            ConfigSide::After(_) => &family,
        };
        let mut paths = enablement::links_naming(standing, self.links);
        paths.extend(away);
        let links = enablement::enable(name, &find, &stop).links.into_keys();
        // A name that belongs to another unit is not removed with this one.
        paths.extend(links.filter(|path| self.catalogue.tree.at(path).is_none()));
        self.clear(entry, paths.into_iter());
    }

    /// Links of companions that were removed when the unit was disabled and are still missing: they
    /// are restored only when the config no longer sets the unit's enablement.
    fn keep_companions_removed(&mut self, entry: &DesiredEntry, name: &str) {
        let find = |other: &str| self.catalogue.find(other);
        let stop = |other: &str| self.catalogue.sets_enablement(other);
        let family = enablement::family(name, &find, &stop);
        let mut away = self.removed_originals(&family);
        away.retain(|path| !self.links.contains_key(path));
        self.clear(entry, away.into_iter());
    }

    /// Original links of these units that were removed: they stay absent, and are restored when the
    /// config no longer sets the units' enablement.
    fn removed_originals(&self, units: &BTreeSet<String>) -> BTreeSet<AbsPath> {
        let originals = self.place.observed.unit_originals.iter();
        let below = originals.filter(|(path, _)| {
            let below = path.as_str().strip_prefix(UNIT_DIR);
            below.is_some_and(|rest| rest.starts_with('/'))
        });
        let links = below.filter_map(|(path, entry)| match entry {
            UnitEntry::Link(text) if !self.was_replaced(path) => Some((path.clone(), text.clone())),
            _ => None,
        });
        enablement::links_naming(units, &links.collect())
    }

    /// Whether the base config had an object of its own there.
    fn was_replaced(&self, path: &AbsPath) -> bool {
        let names = &self.place.observed.unit_paths_before;
        matches!(self.catalogue.side, ConfigSide::After(from) if unit_tree::creates_entry(from, names, path))
    }

    /// Keeps the result of the presets for a unit that the config has only drop-ins for: the links
    /// that the presets created are managed, and those that they removed can be restored later.
    fn keep_preset(&mut self, name: &UnitName, unit: &Unit, presets: &Presets) {
        let real = self.catalogue.real_name(name, unit);
        // An entry under another name of the unit sets its enablement: links that the presets removed, such as that
        // name, come back when it is enabled.
        if self.catalogue.sets_enablement(&real) {
            return;
        }
        let entry = DesiredEntry::new(EntryKind::Enablement, real.as_str(), &unit.origin);
        self.keep_made(&entry, name, presets);
        let gone = self.removed_originals(&BTreeSet::from([real]));
        let gone = gone
            .into_iter()
            .filter(|path| !self.links.contains_key(path));
        self.clear(&entry, gone.collect::<Vec<_>>().into_iter());
    }

    /// Keeps the links that enabling the unit creates, those of instances and of `Also=` included.
    fn keep_made(&mut self, entry: &DesiredEntry, name: &UnitName, presets: &Presets) {
        let mut units = BTreeSet::from([entry.name.to_string()]);
        match presets.rule_for(name.as_str()) {
            // The presets enable a template through its instances.
            Some(Preset::Enable(names)) => {
                units.extend(names.iter().map(|name| self.catalogue.tree.real_name(name)));
            }
            None if self.catalogue.has_file(name) => {}
            // The presets made no links: others enabled the unit or its companions.
            Some(Preset::Disable) | None => return,
        }
        let find = |other: &str| self.catalogue.find(other);
        let stop = |other: &str| self.catalogue.sets_enablement(other);
        let made: LinkTargets = units
            .iter()
            .flat_map(|unit| enablement::enable(unit, &find, &stop).links)
            .collect();
        for (path, target) in made {
            let canonical = self.place.of(&path);
            let disabled = self.catalogue.is_disabled(path.file_name());
            if self.links.get(&path) == Some(&target)
                && !disabled
                && !self.layout.speaks_of(&canonical)
            {
                let wanted = DesiredObject {
                    entry: entry.clone(),
                    asked: path,
                    object: ObjectSpec::link(target),
                };
                self.layout.objects.insert(canonical, wanted);
            }
        }
    }

    fn clear(&mut self, entry: &DesiredEntry, paths: impl Iterator<Item = AbsPath>) {
        for path in paths {
            let path = self.place.of(&path);
            self.layout
                .absent
                .entry(path)
                .or_insert_with(|| entry.clone());
        }
    }
}
