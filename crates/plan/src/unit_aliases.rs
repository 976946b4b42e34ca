//! Checks units that have several names: two entries must not contradict each other under two names
//! of a unit, and a mask must not leave the unit behind the name running.

use std::collections::BTreeMap;

use super::{
    MachineFacts,
    desired_tree::{ConfigSide, DesiredTree, ObjectSpec},
    enablement::{self, LinkTargets, UNIT_DIR},
    machine_facts::UnitEntry,
    unit_catalog::UnitCatalog,
    unit_conflicts,
    unit_tree::{UNIT_DIRECTORIES, UnitResolution, UnitTree, unit_path},
};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::{EntryKind, MachineConfig, Refusal, Unit, UnitName};

/// Refuses aliases that enabling units would create although the name belongs to another unit:
/// `systemctl enable` creates no such link. Links that the base config has already, and names that
/// the desired config disables, do not conflict.
pub(super) fn taken(
    before: &DesiredTree,
    after: &DesiredTree,
    observed: &MachineFacts,
) -> Vec<Refusal> {
    let links = observed.unit_files.iter();
    let links: LinkTargets = links
        .filter_map(|(path, entry)| match entry {
            UnitEntry::Link(text) => Some((path.clone(), text.clone())),
            _ => None,
        })
        .collect();
    let mut refusals = Vec::new();
    for (path, wanted) in &after.objects {
        let ObjectSpec::Link { target, .. } = &wanted.object else {
            continue;
        };
        let name = wanted.asked.file_name();
        let is_name = wanted.entry.kind == EntryKind::Enablement
            && wanted.asked.directory() == UNIT_DIR
            && !before.objects.contains_key(path)
            && !after.freed.contains(path);
        let Some(facts) = observed.objects.get(path).filter(|_| is_name) else {
            continue;
        };
        let unit = &wanted.entry.name;
        let there = match &facts.target {
            Some(text) => {
                // The unit's own file may currently be a mask that the config replaces; such a link
                // is not followed.
                let own = enablement::resolve(&wanted.asked, target);
                let named = enablement::resolve(&wanted.asked, text);
                let there = enablement::follow(&wanted.asked, text, &links);
                // A file of the same name is the same unit where systemd looks for units, and nowhere else.
                let same = there.file_name() == own.file_name() && is_unit_path(&there);
                if [&named, &there].contains(&&own) || same {
                    continue;
                }
                format!("points to {there}")
            }
            None => format!("is a separate unit ({})", wanted.asked),
        };
        let message = format!(
            "cannot enable {unit} with the alias {name} (Alias=): {name} {there} on this machine"
        );
        let refusal = Refusal::new(Reason::DuplicateTarget, message).at(&wanted.entry.origin);
        refusals.push(refusal.expected("a name that no other unit uses"));
    }
    refusals
}

fn is_unit_path(path: &AbsPath) -> bool {
    let mut directories = UNIT_DIRECTORIES.iter();
    directories.any(|directory| path.directory().starts_with(directory))
}

/// Refuses entries that would not have their effect, unless the base config has the same entry.
pub(super) fn check(layout: &mut DesiredTree, catalogue: &UnitCatalog<'_>) {
    let ConfigSide::After(from) = catalogue.side else {
        return;
    };
    let new = |name: &UnitName, unit: &Unit| from.units.get(name) != Some(unit);
    refuse_contradictions(layout, catalogue, &new);
    if from != catalogue.config {
        refuse_contested(layout, catalogue);
        refuse_lost(layout, catalogue, from);
    }
    let masked = catalogue.config.units.iter().filter(|(_, unit)| unit.mask);
    let mut masked = masked.filter(|(name, unit)| new(name, unit)).peekable();
    if masked.peek().is_none() {
        return;
    }
    let there = UnitTree::without_ours(catalogue.observed, catalogue.side);
    for (name, unit) in masked {
        if matches!(there.named(name.as_str()), UnitResolution::Alias(_)) {
            mask_of_alias(layout, catalogue, &there, (name, unit));
        } else {
            unit_conflicts::of_mask(layout, &there, (name, unit));
        }
    }
}

/// Refuses to enable a unit under one name and disable it under another.
fn refuse_contradictions(
    layout: &mut DesiredTree,
    catalogue: &UnitCatalog<'_>,
    new: &dyn Fn(&UnitName, &Unit) -> bool,
) {
    let mut known: BTreeMap<String, (&UnitName, &Unit)> = BTreeMap::new();
    let units = catalogue.config.units.iter();
    for (name, unit) in units.filter(|(_, unit)| !unit.mask && unit.enabled.is_some()) {
        let real = catalogue.real_name(name, unit);
        let Some((other, first)) = known.get(&real) else {
            known.insert(real, (name, unit));
            continue;
        };
        if first.enabled != unit.enabled && (new(name, unit) || new(other, first)) {
            let message = format!(
                "{other} and {name} are the same unit on this machine, {real}: it cannot be both \
                 enabled and disabled"
            );
            let refusal = Refusal::new(Reason::DuplicateTarget, message).at(&unit.origin);
            layout.refusals.push(refusal);
        }
    }
}

/// Refuses to enable or disable a unit by an alias that several enabled units get.
fn refuse_contested(layout: &mut DesiredTree, catalogue: &UnitCatalog<'_>) {
    let units = catalogue.config.units.iter();
    let said = units.filter(|(_, unit)| !unit.mask && unit.enabled.is_some());
    for (name, unit) in said.filter(|(_, unit)| unit.contents.is_none()) {
        let Some(claiming) = catalogue.claiming(name.as_str(), unit) else {
            continue;
        };
        let claiming: Vec<&str> = claiming.iter().map(String::as_str).collect();
        let message = format!(
            "{name} is an alias (Alias=) of several units that the config or the presets enable: {}",
            claiming.join(", ")
        );
        let refusal = Refusal::new(Reason::EntryDuplicate, message).at(&unit.origin);
        let expected = "entries under the units' own names, or an alias of only one of them";
        layout.refusals.push(refusal.expected(expected));
    }
}

/// Refuses to disable a unit by an alias that only the base config gave it, while `Also=` of another unit enables it.
fn refuse_lost(layout: &mut DesiredTree, catalogue: &UnitCatalog<'_>, from: &MachineConfig) {
    let units = catalogue.config.units.iter();
    let disabled = units.filter(|(_, unit)| !unit.mask && unit.enabled == Some(false));
    let mut disabled = disabled
        .filter(|(_, unit)| unit.contents.is_none())
        .peekable();
    if disabled.peek().is_none() {
        return;
    }
    let of_base = catalogue.aliases_of_base(from);
    for (name, unit) in disabled {
        let real = catalogue.real_name(name, unit);
        let Some(enabling) = catalogue.enabled_despite(name.as_str(), &real, &of_base) else {
            continue;
        };
        let message = format!(
            "{name} is an alias of {real} only in the base config, and Also= of {enabling} enables {real}"
        );
        let refusal = Refusal::new(Reason::EntryDuplicate, message).at(&unit.origin);
        let expected = format!("an entry under the name {real}");
        layout.refusals.push(refusal.expected(expected));
    }
}

/// `systemctl mask` refuses an alias in /etc/systemd/system. A vendor's alias can be masked, but
/// the unit behind it still starts through its own links.
fn mask_of_alias(
    layout: &mut DesiredTree,
    catalogue: &UnitCatalog<'_>,
    there: &UnitTree<'_>,
    (name, unit): (&UnitName, &Unit),
) {
    let real = there.real_name(name.as_str());
    let said = UnitName::new(real.as_str());
    let said = said.ok().and_then(|real| catalogue.config.units.get(&real));
    if said.is_some_and(|said| said.mask || said.enabled == Some(false)) {
        return;
    }
    let own = unit_path(name.as_str()).is_some_and(|path| there.at(&path).is_some());
    if own || catalogue.tree.is_started(&real) {
        let message = format!(
            "{name} is an alias of {real} on this machine: masking it does not prevent {real} from \
             starting"
        );
        let refusal = Refusal::new(Reason::DuplicateTarget, message).at(&unit.origin);
        layout
            .refusals
            .push(refusal.expected(format!("a mask of {real}")));
    } else {
        layout.warnings.push(format!(
            "{name} is an alias of {real} on this machine: only the alias is masked, {real} can \
             still be started"
        ));
    }
}
