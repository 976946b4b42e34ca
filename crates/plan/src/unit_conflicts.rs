//! Refuses files and links of a config that contradict its entry for their unit in `systemd.units`, and masks
//! that would replace a unit linked from elsewhere.

use super::{
    desired_tree::{ConfigSide, DesiredTree},
    enablement::unit_name,
    unit_catalog::UnitCatalog,
    unit_tree::{
        ConfigEntry, OVERRIDING_DIRECTORIES, UnitTree, UnitTreeEntry, config_entries, unit_path,
        wanting_unit,
    },
};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::{MachineConfig, Refusal, Unit, UnitName};

/// Refuses contradictions, unless the base config has the same entries.
pub(super) fn check(layout: &mut DesiredTree, catalogue: &UnitCatalog<'_>) {
    let ConfigSide::After(from) = catalogue.side else {
        return;
    };
    warn_of_overridden(layout, catalogue);
    let said = catalogue.config.units.iter();
    let said: Vec<(&UnitName, &Unit)> = said
        .filter(|(_, unit)| !unit.mask && (unit.enabled.is_some() || unit.lifts_mask()))
        .collect();
    if said.is_empty() {
        return;
    }
    let entries: Vec<ConfigEntry<'_>> =
        config_entries(catalogue.config, &catalogue.observed.unit_paths).collect();
    for (name, unit) in said {
        let real = catalogue.real_name(name, unit);
        for entry in &entries {
            if is_kept(catalogue.config, from, (name, unit), entry.asked) {
                continue;
            }
            let contradicted = match unit.enabled {
                Some(false) if enables(entry, name, &real, catalogue) => "enables",
                Some(true) if masks(entry, &real) => "masks",
                _ if unit.lifts_mask() && masks(entry, name.as_str()) => "masks",
                _ => continue,
            };
            layout
                .refusals
                .push(contradiction(entry, contradicted, (name, unit)));
        }
    }
}

/// Whether the base config has both entries: the machine is on such a config, which stays applicable.
fn is_kept(
    to: &MachineConfig,
    from: &MachineConfig,
    (name, unit): (&UnitName, &Unit),
    path: &AbsPath,
) -> bool {
    from.units.get(name) == Some(unit)
        && from.links.get(path) == to.links.get(path)
        && from.files.get(path) == to.files.get(path)
}

fn contradiction(
    entry: &ConfigEntry<'_>,
    contradicted: &str,
    (name, unit): (&UnitName, &Unit),
) -> Refusal {
    let list = match entry.entry {
        UnitTreeEntry::Link(_) => "storage.links",
        UnitTreeEntry::File(_) => "storage.files",
    };
    let wish = match (unit.enabled, contradicted) {
        (Some(false), _) => "enabled: false",
        (Some(true), _) => "enabled: true",
        _ => "mask: false",
    };
    let message = format!(
        "{} in {list} {contradicted} {name}, but the entry of {name} in systemd.units has {wish}",
        entry.asked
    );
    let refusal = Refusal::new(Reason::EntryDuplicate, message).at(&unit.origin);
    refusal.expected("only one of the two entries")
}

/// Whether the entry is a link that starts `real` at boot, or gives it another name.
fn enables(
    entry: &ConfigEntry<'_>,
    name: &UnitName,
    real: &str,
    catalogue: &UnitCatalog<'_>,
) -> bool {
    let link = entry.path.file_name();
    let is_link = matches!(entry.entry, UnitTreeEntry::Link(_)) && !entry.entry.is_mask();
    if !is_link || unit_name::shape(link).is_none() {
        return false;
    }
    let is_instance =
        unit_name::template(link).is_some_and(|template| template == real && link != real);
    if wanting_unit(&entry.path).is_none() {
        // A link with the name of the unit is its file. A link with another name is an alias; under that name the
        // entry concerns the unit behind it, which other links start.
        let named = link == real || is_instance || link == name.as_str();
        return !named && catalogue.tree.real_name(link) == real;
    }
    // An instance that the config enables by name is not that of its template.
    let enabled_itself = || {
        let said = UnitName::new(link).ok();
        let said = said.and_then(|said| catalogue.config.units.get(&said));
        said.is_some_and(|said| said.enabled == Some(true))
    };
    let named = catalogue.tree.real_name(link) == real;
    named || (is_instance && !enabled_itself())
}

/// Whether the entry masks the unit called `name`.
fn masks(entry: &ConfigEntry<'_>, name: &str) -> bool {
    unit_path(name).is_some_and(|path| path == entry.path) && entry.entry.is_mask()
}

/// Judges a mask by what exists on the machine without the base config: `systemctl mask` refuses to replace a link
/// to a unit file elsewhere.
pub(super) fn of_mask(
    layout: &mut DesiredTree,
    there: &UnitTree<'_>,
    (name, unit): (&UnitName, &Unit),
) {
    let Some(path) = unit_path(name.as_str()) else {
        return;
    };
    let Some(entry @ UnitTreeEntry::Link(text)) = there.at(&path) else {
        return;
    };
    if entry.is_mask() {
        return;
    }
    let message = format!(
        "{path} is a link to {text} on this machine: {name} cannot be masked, because systemctl \
         mask does not replace such a link either"
    );
    let refusal = Refusal::new(Reason::DuplicateTarget, message).at(&unit.origin);
    let expected = format!("enabled: false, or {name} without its link (systemctl disable {name})");
    layout.refusals.push(refusal.expected(expected));
}

/// Warns of units whose file or mask has no effect, because a file in another directory takes precedence.
fn warn_of_overridden(layout: &mut DesiredTree, catalogue: &UnitCatalog<'_>) {
    let units = catalogue.config.units.iter();
    for (name, _) in units.filter(|(_, unit)| unit.mask || unit.contents.is_some()) {
        let mut paths = OVERRIDING_DIRECTORIES.iter();
        let over = paths.find_map(|directory| {
            let path = AbsPath::new(format!("{directory}/{name}")).ok()?;
            catalogue.tree.at(&path).is_some().then_some(path)
        });
        if let Some(over) = over {
            let warning = format!("{name} of the config has no effect: {over} takes precedence");
            layout.warnings.push(warning);
        }
    }
}
