//! Where unit names lead, in the tree as planned.

use std::collections::BTreeMap;

use super::{
    Observed,
    desired::Side,
    linkset::{self, Lookup, UnitSource, name, resolve},
    observed::UnitEntry,
    unit_tree::{self, Named, UnitTree, unit_path},
};
use crate::machine_config::{MachineConfig, Unit, UnitName};

/// Where unit names lead, and what the config says of the units behind them.
pub(super) struct Catalogue<'a> {
    pub(super) config: &'a MachineConfig,
    pub(super) observed: &'a Observed,
    pub(super) side: Side<'a>,
    /// The unit directories as the config will make them.
    pub(super) tree: UnitTree<'a>,
    /// Names that enabling units of the config gives them.
    aliases: BTreeMap<String, String>,
    /// What the config says of enabling units, by their real names.
    said: BTreeMap<String, bool>,
}

impl<'a> Catalogue<'a> {
    pub(super) fn new(config: &'a MachineConfig, observed: &'a Observed, side: Side<'a>) -> Self {
        Self {
            config,
            observed,
            side,
            tree: UnitTree::planned(config, observed, side),
            aliases: BTreeMap::new(),
            said: BTreeMap::new(),
        }
    }

    /// Takes down the names that these units get by being enabled, and then what the config says of which unit.
    pub(super) fn name_units(&mut self, enabled: impl Iterator<Item = String>) {
        let units = &self.config.units;
        let says = |other: &str| {
            let unit = UnitName::new(other).ok().and_then(|name| units.get(&name));
            unit.is_some_and(|unit| !unit.mask && unit.enabled.is_some())
        };
        for unit in enabled {
            let set = linkset::enable(&unit, &|other| self.find(other), &says);
            self.aliases.extend(set.names);
        }
        let units = self.config.units.iter().filter(|(_, unit)| !unit.mask);
        let said =
            units.filter_map(|(name, unit)| Some((self.real_name(name, unit), unit.enabled?)));
        self.said = said.collect();
    }

    /// Whether the config itself says if this unit is enabled; then no other unit's `Also=` does.
    pub(super) fn says(&self, name: &str) -> bool {
        self.said.contains_key(name)
    }

    /// Whether the config enables this unit.
    pub(super) fn is_enabled(&self, name: &str) -> bool {
        self.said.get(name) == Some(&true)
    }

    /// Whether the config disables this unit.
    pub(super) fn is_disabled(&self, name: &str) -> bool {
        self.said.get(name) == Some(&false)
    }

    /// The unit that an entry of the config concerns: the one behind its name, unless the entry brings a file
    /// of that name. A name that an enabled unit gets is that unit's whatever has it today: a link of the config
    /// before is replaced, and one of others refuses the plan (`aliases::taken`). An alias that disabling its unit
    /// took away is still known from the originals.
    pub(super) fn real_name(&self, name: &UnitName, unit: &Unit) -> String {
        let name = name.as_str();
        if unit.contents.is_some() || unit.mask {
            return name.to_owned();
        }
        if let Some(real) = self.aliases.get(name) {
            return real.clone();
        }
        if self.tree.named(name) == Named::Missing
            && let Some(path) = unit_path(name)
            && let Some(UnitEntry::Link(text)) = self.observed.unit_originals.get(&path)
        {
            let target = resolve(&path, text);
            let behind = Some(target.file_name()).filter(|other| name::shape(other).is_some());
            return self.tree.real_name(behind.unwrap_or(name));
        }
        self.tree.real_name(name)
    }

    /// What a unit name leads to.
    pub(super) fn find(&self, name: &str) -> Lookup {
        let real = self.tree.real_name(name);
        if real != name {
            return Lookup::Alias(real);
        }
        let template = name::template(name).filter(|template| template != name);
        match (self.file(name), template) {
            (Lookup::Missing, Some(template)) => match self.file(&template) {
                Lookup::Found(mut source) => {
                    source.texts.truncate(1);
                    source.texts.extend(self.tree.drop_ins(name));
                    source.link = source.linked.then(|| source.path.clone());
                    Lookup::Found(source)
                }
                other => other,
            },
            (found, _) => found,
        }
    }

    fn file(&self, name: &str) -> Lookup {
        match self.tree.named(name) {
            Named::File(path, text) => {
                let mut texts = vec![text.to_owned()];
                texts.extend(self.tree.drop_ins(name));
                let linked = !unit_tree::UNIT_DIRECTORIES.contains(&path.directory());
                let link = self.tree.link_of_linked(name, &path).filter(|_| linked);
                Lookup::Found(UnitSource {
                    path: path.to_string(),
                    texts,
                    linked,
                    link,
                })
            }
            Named::Masked => Lookup::Masked,
            Named::Generated => Lookup::Generated,
            Named::Alias(real) => Lookup::Alias(real),
            Named::Missing => Lookup::Missing,
        }
    }
}
