//! Keeps the existing links of units whose enablement the config does not set.

use std::collections::BTreeSet;

use crate::{
    MachineFacts,
    desired_tree::{
        ConfigSide, DesiredEntry, DesiredObject, DesiredTree, ObjectSpec, PathResolver,
    },
    enablement::{self, LinkTargets, unit_name},
    unit_tree,
};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::{EntryKind, MachineConfig, Unit, UnitName};

/// Whether this is the link of an instance that one of the configs enables or disables by name:
/// then its template, which has no explicit setting, does not keep it.
pub(super) fn has_own_enablement(
    link: &AbsPath,
    config: &MachineConfig,
    side: ConfigSide<'_>,
) -> bool {
    let (ConfigSide::After(from), Ok(unit)) = (side, UnitName::new(link.file_name())) else {
        return false;
    };
    let sets = |config: &MachineConfig| {
        config
            .units
            .get(&unit)
            .is_some_and(|unit| unit.enabled.is_some())
    };
    sets(config) || (sets(from) && !config.units.contains_key(&unit))
}

/// The links of instances that the config enables by name.
pub(super) fn instances_enabled_themselves(
    links: &LinkTargets,
    config: &MachineConfig,
) -> LinkTargets {
    let is_enabled = |link: &AbsPath| {
        let unit = UnitName::new(link.file_name()).ok();
        let unit = unit.filter(|unit| unit.template().is_some());
        let unit = unit.and_then(|unit| config.units.get(&unit));
        unit.is_some_and(|unit| unit.enabled == Some(true))
    };
    let links = links.iter().filter(|(path, _)| is_enabled(path));
    links
        .map(|(path, text)| (path.clone(), text.clone()))
        .collect()
}

/// Whether a link under another name leads to a file outside the unit directories that only has the unit's name.
fn is_of_others(path: &AbsPath, name: &UnitName, links: &LinkTargets) -> bool {
    let text = links.get(path).map(String::as_str).unwrap_or_default();
    let end = enablement::follow(path, text, links);
    let link = path.file_name();
    let named =
        link == name.as_str() || unit_name::template(link).as_deref() == Some(name.as_str());
    !named && !unit_tree::UNIT_DIRECTORIES.contains(&end.directory())
}

/// Keeps the existing links: the config does not set the enablement, and the links belong to the
/// unit.
pub(super) fn keep(
    layout: &mut DesiredTree,
    place: &PathResolver<'_>,
    name: &UnitName,
    unit: &Unit,
    links: &LinkTargets,
) {
    for (canonical, wanted) in existing(place, name, unit, links) {
        if layout.speaks_of(&canonical) {
            continue;
        }
        layout
            .starts
            .entry(name.to_string())
            .or_default()
            .extend(unit_tree::started_by(&wanted.asked));
        layout.objects.insert(canonical, wanted);
    }
}

/// The existing links that belong to the unit, by canonical path.
pub(super) fn existing<'a>(
    place: &'a PathResolver<'_>,
    name: &'a UnitName,
    unit: &'a Unit,
    links: &'a LinkTargets,
) -> impl Iterator<Item = (AbsPath, DesiredObject)> + 'a {
    let all = enablement::links_naming(&BTreeSet::from([name.to_string()]), links);
    let own = all
        .into_iter()
        .filter(|path| !is_of_others(path, name, links));
    own.map(|path| {
        let target = links.get(&path).cloned().unwrap_or_default();
        let wanted = DesiredObject {
            entry: DesiredEntry::new(EntryKind::Enablement, name.as_str(), &unit.origin),
            object: ObjectSpec::link(target),
            asked: path,
        };
        (place.of(&wanted.asked), wanted)
    })
}

impl DesiredTree {
    /// The paths of existing links that [`Self::keep_found_links`] may keep.
    pub(crate) fn maybe_kept(&self) -> impl Iterator<Item = &AbsPath> {
        self.found_links.keys().chain(self.instance_links.keys())
    }

    /// Keeps the links that existed before the config came, so that they stay when it leaves; not those of the base
    /// config, which go.
    pub(crate) fn keep_found_links(&mut self, before: &Self, observed: &MachineFacts) {
        for (path, wanted) in std::mem::take(&mut self.found_links) {
            let theirs = !before.speaks_of(&path)
                || observed.adopted.contains(&path)
                // The config replaced the link.
                || observed.originals.contains_key(&path);
            if theirs && !self.speaks_of(&path) {
                self.objects.insert(path, wanted);
            }
        }
        // `systemctl enable` of an instance leaves the links that its template brought, and those of others; those of
        // its own entry go with the entry.
        for (path, wanted) in std::mem::take(&mut self.instance_links) {
            let by_template = |before: &DesiredObject| before.entry.name == wanted.entry.name;
            if before.objects.get(&path).is_none_or(by_template) && !self.speaks_of(&path) {
                self.objects.insert(path, wanted);
            }
        }
    }
}
