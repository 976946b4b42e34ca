//! Resolves unit names in the planned tree.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    MachineFacts,
    desired_tree::ConfigSide,
    enablement::{self, UnitLookup, UnitSource, resolve, unit_name},
    machine_facts::UnitEntry,
    unit_tree::{self, UnitResolution, UnitTree, unit_path},
};
use machinist_ignition::{MachineConfig, Unit, UnitName};

/// The units that are to be enabled, by their names in the config.
#[derive(Default)]
pub(super) struct EnabledUnits {
    pub(super) by_presets: Vec<String>,
    /// Those that the config enables: an alias that units of both lists get belongs to these.
    pub(super) said: Vec<String>,
}

/// Resolves unit names and holds the config's settings of the units behind them.
pub(super) struct UnitCatalog<'a> {
    pub(super) config: &'a MachineConfig,
    pub(super) observed: &'a MachineFacts,
    pub(super) side: ConfigSide<'a>,
    /// The unit directories as planned.
    pub(super) tree: UnitTree<'a>,
    /// Aliases that enabling the config's units creates.
    aliases: BTreeMap<String, String>,
    /// Aliases that several units get which the presets enable, with these units.
    contested: BTreeMap<String, BTreeSet<String>>,
    /// Aliases that a unit gets which the presets enable, and another one which the config enables, with these units.
    shared: BTreeMap<String, BTreeSet<String>>,
    /// The units that the config or the presets enable.
    enabled: Vec<String>,
    /// Units whose own entries leave their enablement to the presets, by their real names.
    pub(super) left_to_presets: BTreeSet<String>,
    /// Whether the config enables or disables a unit, by the unit's real name.
    said: BTreeMap<String, bool>,
    /// The units of which the config contains the file.
    files: BTreeSet<String>,
    /// The same for the base config.
    files_before: BTreeSet<String>,
}

impl<'a> UnitCatalog<'a> {
    pub(super) fn new(
        config: &'a MachineConfig,
        observed: &'a MachineFacts,
        side: ConfigSide<'a>,
    ) -> Self {
        let tree = UnitTree::planned(config, observed, side);
        Self {
            config,
            observed,
            side,
            tree,
            aliases: BTreeMap::new(),
            contested: BTreeMap::new(),
            shared: BTreeMap::new(),
            enabled: Vec::new(),
            left_to_presets: BTreeSet::new(),
            said: BTreeMap::new(),
            files: match side {
                ConfigSide::Before => {
                    unit_tree::units_with_files(config, &observed.unit_paths_before)
                }
                ConfigSide::After(_) => unit_tree::units_with_files(config, &observed.unit_paths),
            },
            files_before: match side {
                ConfigSide::Before => BTreeSet::new(),
                ConfigSide::After(from) => {
                    unit_tree::units_with_files(from, &observed.unit_paths_before)
                }
            },
        }
    }

    /// Whether the config contains the file of this unit, as a unit or as a file.
    pub(super) fn has_file(&self, name: &UnitName) -> bool {
        self.files.contains(name.as_str())
    }

    /// Whether the base config contains the file of this unit.
    pub(super) fn had_file(&self, name: &UnitName) -> bool {
        self.files_before.contains(name.as_str())
    }

    /// Records the aliases of these enabled units, and then the enablement settings of the config.
    pub(super) fn name_units(&mut self, enabled: &EnabledUnits) {
        let units = &self.config.units;
        let said = |name: &UnitName| units.get(name).filter(|unit| !unit.mask)?.enabled;
        let sets = |other: &str| {
            UnitName::new(other).is_ok_and(|name| {
                let template = name.template().as_ref().and_then(said);
                said(&name).is_some() || template == Some(false)
            })
        };
        let names =
            |unit: &String| enablement::enable(unit, &|other| self.find(other), &sets).names;
        let mut claimed: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (alias, unit) in enabled.by_presets.iter().flat_map(names) {
            claimed.entry(alias).or_default().insert(unit);
        }
        let said: BTreeMap<String, String> = enabled.said.iter().flat_map(names).collect();
        let mut aliases: BTreeMap<String, String> = claimed
            .iter()
            .filter_map(|(alias, units)| Some((alias.clone(), units.last()?.clone())))
            .collect();
        let mut shared = claimed.clone();
        shared.retain(|alias, units| {
            let unit = said.get(alias).cloned();
            unit.is_some_and(|unit| units.insert(unit) && units.len() > 1)
        });
        self.shared = shared;
        claimed.retain(|alias, units| units.len() > 1 && !said.contains_key(alias));
        aliases.extend(said);
        (self.aliases, self.contested) = (aliases, claimed);
        self.enabled = [&enabled.by_presets[..], &enabled.said[..]].concat();
        let units = self.config.units.iter().filter(|(_, unit)| !unit.mask);
        let said =
            units.filter_map(|(name, unit)| Some((self.real_name(name, unit), unit.enabled?)));
        self.said = said.collect();
    }

    /// The units that get the name of an entry as an alias, if it is unclear which of them the entry concerns. An
    /// entry that enables a unit by an alias concerns the unit that the config enables.
    pub(super) fn claiming(&self, name: &str, unit: &Unit) -> Option<&BTreeSet<String>> {
        let shared = || {
            self.shared
                .get(name)
                .filter(|_| unit.enabled == Some(false))
        };
        self.contested.get(name).or_else(shared)
    }

    /// Whether the config itself sets the enablement of this unit, or disables its template; then `Also=` of other
    /// units has no effect on it.
    pub(super) fn sets_enablement(&self, name: &str) -> bool {
        let template = unit_name::template(name).filter(|template| template != name);
        self.said.contains_key(name) || template.is_some_and(|template| self.is_disabled(&template))
    }

    /// Whether the config enables this unit.
    pub(super) fn is_enabled(&self, name: &str) -> bool {
        self.said.get(name) == Some(&true)
    }

    /// Whether the config disables this unit.
    pub(super) fn is_disabled(&self, name: &str) -> bool {
        self.said.get(name) == Some(&false)
    }

    /// The unit that an entry of the config concerns: the unit behind its name, unless the entry contains a file of
    /// that name. A name that an enabled unit gets belongs to that unit even if another unit has it today: a link of
    /// the base config is replaced, and a link of others refuses the plan (`aliases::taken`). An alias that was
    /// removed when its unit was disabled is still known from the originals.
    pub(super) fn real_name(&self, name: &UnitName, unit: &Unit) -> String {
        let name = name.as_str();
        if unit.contents.is_some() || unit.mask {
            return name.to_owned();
        }
        if let Some(real) = self.aliases.get(name) {
            return real.clone();
        }
        if self.tree.named(name) == UnitResolution::Missing
            && let Some(real) = self.removed_alias(name)
        {
            return real;
        }
        self.tree.real_name(name)
    }

    /// The unit that `name` was an alias of before the link was removed with its unit.
    fn removed_alias(&self, name: &str) -> Option<String> {
        let path = unit_path(name)?;
        let Some(UnitEntry::Link(text)) = self.observed.unit_originals.get(&path) else {
            return None;
        };
        let target = resolve(&path, text);
        unit_name::shape(target.file_name())?;
        Some(self.tree.real_name(target.file_name()))
    }

    /// The aliases that the units of the base config get, with the units.
    pub(super) fn aliases_of_base(&self, from: &MachineConfig) -> BTreeMap<String, String> {
        let base = UnitCatalog::new(from, self.observed, ConfigSide::Before);
        let units = from.units.iter();
        let units = units.filter(|(_, unit)| !unit.mask && unit.enabled != Some(false));
        let names = units.flat_map(|(name, unit)| {
            let real = base.real_name(name, unit);
            enablement::enable(&real, &|other| base.find(other), &|_| false).names
        });
        names.collect()
    }

    /// The enabled unit whose `Also=` enables `real`, if `name` is an alias of it only because of a link that the base
    /// config made: that link goes, and then nothing connects the entry of `name` with `real`.
    pub(super) fn enabled_despite(
        &self,
        name: &str,
        real: &str,
        of_base: &BTreeMap<String, String>,
    ) -> Option<&str> {
        let path = unit_path(name)?;
        let stays =
            self.aliases.contains_key(name) || self.observed.unit_originals.contains_key(&path);
        if stays || of_base.get(name).is_none_or(|unit| unit != real) {
            return None;
        }
        let enables = |unit: &&String| {
            let family = enablement::family(unit, &|other| self.find(other), &|_| false);
            unit.as_str() != real && family.contains(real)
        };
        self.enabled.iter().find(enables).map(String::as_str)
    }

    /// Looks up a unit name. Like in [`Self::real_name`], a name that an enabled unit gets belongs to that unit, unless
    /// the config contains a file of that name.
    pub(super) fn find(&self, name: &str) -> UnitLookup {
        let alias = self.aliases.get(name);
        let alias = alias.filter(|_| !self.files.contains(name));
        let named = alias.map_or(name, String::as_str);
        let real = self.tree.real_name(named);
        if real != name {
            return UnitLookup::Alias(real);
        }
        let template = unit_name::template(name).filter(|template| template != name);
        let found = match (self.file(name), template) {
            (UnitLookup::Missing, Some(template)) => match self.file(&template) {
                UnitLookup::Found(mut source) => {
                    source.texts.truncate(1);
                    source.texts.extend(self.tree.drop_ins(name));
                    source.link = source.linked.then(|| source.path.clone());
                    UnitLookup::Found(source)
                }
                other => other,
            },
            (found, _) => found,
        };
        match (&found, self.removed_alias(name)) {
            (UnitLookup::Missing, Some(real)) if real != name => UnitLookup::Alias(real),
            _ => found,
        }
    }

    fn file(&self, name: &str) -> UnitLookup {
        match self.tree.named(name) {
            UnitResolution::File(path, text) => {
                let mut texts = vec![text.to_owned()];
                texts.extend(self.tree.drop_ins(name));
                let linked = !unit_tree::UNIT_DIRECTORIES.contains(&path.directory());
                let link = self.tree.link_of_linked(name, &path).filter(|_| linked);
                UnitLookup::Found(UnitSource {
                    path: path.to_string(),
                    texts,
                    linked,
                    link,
                    specifiers: Arc::clone(&self.observed.specifiers),
                })
            }
            UnitResolution::Masked => UnitLookup::Masked,
            UnitResolution::Generated => UnitLookup::Generated,
            UnitResolution::Alias(real) => UnitLookup::Alias(real),
            UnitResolution::Missing => UnitLookup::Missing,
        }
    }
}
