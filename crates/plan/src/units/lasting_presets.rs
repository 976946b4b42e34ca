//! Warns of units whose enablement a preset file has set that the next config removes or changes: presets apply only
//! when a unit is new in the config.

use std::collections::{BTreeMap, BTreeSet};

use super::{only_drop_ins, was_left_to_presets};
use crate::{
    desired_tree::{ConfigSide, DesiredTree},
    unit_catalog::UnitCatalog,
    unit_preset::{Preset, Presets},
    unit_tree::{UnitTree, config_entries, is_preset},
};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::{Unit, UnitName};

/// Warns of the units that keep what presets of the base config have set.
pub(super) fn warn(layout: &mut DesiredTree, catalogue: &UnitCatalog<'_>, presets: &Presets) {
    let ConfigSide::After(from) = catalogue.side else {
        return;
    };
    let observed = catalogue.observed;
    let mut entries = config_entries(from, &observed.unit_paths_before);
    if !entries.any(|entry| is_preset(&entry.path)) {
        return;
    }
    let before = UnitTree::planned(from, observed, ConfigSide::Before).presets();
    let after = catalogue.tree.presets();
    if before == after {
        return;
    }
    let before = Presets::of(&before);
    let mut kept: BTreeMap<(&AbsPath, &str), BTreeSet<&UnitName>> = BTreeMap::new();
    for (name, unit) in &catalogue.config.units {
        let stays = unit.enabled.is_none() && !unit.mask;
        if !stays || !was_left_to_presets(name, catalogue, from) {
            continue;
        }
        let of = |presets| preset_of(name, unit, catalogue, presets);
        if let Some(was) = of(&before)
            && of(presets).as_ref() != Some(&was)
            && let Some(file) = before.file_for(name.as_str())
        {
            let how = match was {
                Preset::Enable(_) => "enabled",
                Preset::Disable => "disabled",
            };
            kept.entry((file, how)).or_default().insert(name);
        }
    }
    for ((file, how), units) in kept {
        let what = match after.contains_key(file) {
            true => "changes",
            false => "is removed",
        };
        let units: Vec<&str> = units.iter().map(|unit| unit.as_str()).collect();
        layout.warnings.push(format!(
            "{file} {what}, but the units that it has {how} stay so, because presets apply only when a unit is new in \
             the config: {}; set enabled for another state",
            units.join(", ")
        ));
    }
}

/// The preset of a unit; none if the presets do not change it.
fn preset_of(
    name: &UnitName,
    unit: &Unit,
    catalogue: &UnitCatalog<'_>,
    presets: &Presets,
) -> Option<Preset> {
    match catalogue.has_file(name) {
        true => Some(presets.ask(name.as_str())),
        false if only_drop_ins(unit) => presets.rule_for(name.as_str()),
        false => None,
    }
}
