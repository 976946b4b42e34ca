//! Warns of units that cannot work on this machine: names that do not match their settings, and
//! missing units.

use std::collections::BTreeSet;

use super::{
    desired_tree::{ConfigSide, DesiredTree},
    enablement::{self, UnitLookup, merged, unit_name},
    unit_catalog::UnitCatalog,
    unit_faults,
    unit_tree::{self, UnitResolution},
};
use machinist_base::reason::Reason;
use machinist_ignition::{Overwrite, Refusal, UnitFile, UnitName, service_fault};

/// Settings that list units without which a unit cannot start.
const REQUIREMENT_KEYS: [&str; 3] = ["Requires", "BindsTo", "Requisite"];

/// Adds a warning for each unit of the config that cannot start or that is never started.
pub(super) fn check(layout: &mut DesiredTree, catalogue: &UnitCatalog<'_>) {
    if matches!(catalogue.side, ConfigSide::Before) {
        return;
    }
    layout.refusals.extend(not_loaded(catalogue));
    layout.warnings.extend(unit_faults::quadlets(catalogue));
    for unit in subjects(catalogue) {
        let UnitLookup::Found(source) = catalogue.find(&unit) else {
            continue;
        };
        let file = merged(source.texts.iter().map(String::as_str));
        let warnings = [
            misnamed(&unit, &file),
            missing_activated_unit(&unit, &file, catalogue),
            missing_requirement(&unit, &file, catalogue),
            never_started(&unit, catalogue),
        ];
        layout.warnings.extend(warnings.into_iter().flatten());
        // The text of a unit that is not the config's may be unknown.
        if source.texts.first().is_some_and(|text| !text.is_empty()) {
            let faults = unit_faults::warnings(&unit, &file, catalogue);
            layout.warnings.extend(faults);
        }
    }
}

/// Refuses services that systemd would not load, neither with the drop-ins of their own entries nor
/// with those of the whole machine.
fn not_loaded(catalogue: &UnitCatalog<'_>) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    // A config that was in force was checked before.
    if matches!(catalogue.config.overwrite, Overwrite::Any) {
        return refusals;
    }
    for (name, unit) in &catalogue.config.units {
        let Some(contents) = unit.contents.as_deref().filter(|_| !unit.mask) else {
            continue;
        };
        let own =
            merged(std::iter::once(contents).chain(unit.dropins.values().map(String::as_str)));
        if name.kind() != "service" || service_fault(&own).is_none() {
            continue;
        }
        let all = catalogue.tree.all_drop_ins(name.as_str());
        let all = merged(std::iter::once(contents).chain(all.iter().map(String::as_str)));
        if let Some(fault) = service_fault(&all)
            && !catalogue.tree.has_drop_ins_of_instances(name.as_str())
        {
            let message = format!("{name} {fault}");
            refusals.push(Refusal::new(Reason::UnitInvalid, message).at(&unit.origin));
        }
    }
    refusals
}

/// The units that the config creates, changes or enables, by their real names.
fn subjects(catalogue: &UnitCatalog<'_>) -> BTreeSet<String> {
    let units = catalogue.config.units.iter();
    let entries = units.filter(|(_, unit)| !unit.mask && unit.enabled != Some(false));
    let mut all: BTreeSet<String> = entries
        .map(|(name, unit)| catalogue.real_name(name, unit))
        .collect();
    let files = catalogue.config.files.keys();
    let files = files.filter(|path| unit_tree::UNIT_DIRECTORIES.contains(&path.directory()));
    let off = |name: &str| {
        let name = UnitName::new(name).ok();
        let said = name.and_then(|name| catalogue.config.units.get(&name));
        said.is_some_and(|unit| unit.mask || unit.enabled == Some(false))
    };
    let names = files.map(|path| path.file_name().to_owned());
    all.extend(names.filter(|name| unit_name::shape(name).is_some() && !off(name)));
    all
}

/// Mounts, automounts and swaps must be named after their path, otherwise systemd does not load
/// them.
fn misnamed(unit: &str, file: &UnitFile) -> Option<String> {
    let kind = unit_name::kind(unit);
    let (section, key) = match kind {
        "mount" => ("Mount", "Where"),
        "automount" => ("Automount", "Where"),
        "swap" => ("Swap", "What"),
        _ => return None,
    };
    let path = file.last(section, key)?;
    if !path.starts_with('/') || path.contains('%') {
        return None;
    }
    let expected = format!("{}.{kind}", escape(path));
    (unit != expected).then(|| {
        format!(
            "systemd does not load {unit}: its name does not match {key}={path}; the name must be \
             {expected}"
        )
    })
}

/// Escapes a path for a unit name (systemd-escape(1), `--path`).
fn escape(path: &str) -> String {
    let parts: Vec<&str> = path
        .split('/')
        .filter(|part| !matches!(*part, "" | "."))
        .collect();
    if parts.is_empty() {
        return "-".to_owned();
    }
    let mut escaped = String::new();
    for (at, byte) in parts.join("/").bytes().enumerate() {
        match byte {
            b'/' => escaped.push('-'),
            b'.' if at == 0 => escaped.push_str("\\x2e"),
            _ if byte.is_ascii_alphanumeric() || b":_.".contains(&byte) => {
                escaped.push(char::from(byte))
            }
            _ => escaped.push_str(&format!("\\x{byte:02x}")),
        }
    }
    escaped
}

/// A timer, path or socket activates another unit, which must exist.
fn missing_activated_unit(
    unit: &str,
    file: &UnitFile,
    catalogue: &UnitCatalog<'_>,
) -> Option<String> {
    let (kind, stem) = (unit_name::kind(unit), unit_name::stem(unit));
    let given = match kind {
        "timer" => file.last("Timer", "Unit"),
        "path" => file.last("Path", "Unit"),
        "socket" => file.last("Socket", "Service"),
        _ => return None,
    };
    let each = kind == "socket" && file.last("Socket", "Accept").is_some_and(enablement::yes);
    let started = match given {
        Some(given) => given.to_owned(),
        None if each && unit_name::shape(unit) == Some(unit_name::UnitNameShape::Plain) => {
            format!("{stem}@.service")
        }
        None => format!("{stem}.service"),
    };
    let why = lacks(&started, catalogue)?;
    Some(format!("{unit} starts {started}, which {why}"))
}

fn missing_requirement(unit: &str, file: &UnitFile, catalogue: &UnitCatalog<'_>) -> Option<String> {
    let required = REQUIREMENT_KEYS
        .iter()
        .flat_map(|key| file.words("Unit", key));
    let mut missing = required.filter_map(|other| Some((lacks(&other, catalogue)?, other)));
    let (why, other) = missing.next()?;
    Some(format!(
        "{unit} cannot start: it requires {other}, which {why}"
    ))
}

/// Why a unit cannot be started; none if it can, or if that is not known in advance: devices,
/// mounts and the like appear and disappear at run time.
fn lacks(unit: &str, catalogue: &UnitCatalog<'_>) -> Option<&'static str> {
    let known = match unit_name::kind(unit) {
        "service" | "socket" | "timer" | "path" => true,
        // A tree without a complete OS has no targets.
        "target" => catalogue.tree.is_whole(),
        _ => false,
    };
    let facts = catalogue.observed.units.get(unit);
    let loaded = facts.is_some_and(|facts| facts.load.as_deref() == Some("loaded"));
    if !known || unit.contains('%') || unit_name::shape(unit).is_none() || catalogue.tree.has(unit)
    {
        return None;
    }
    match catalogue.tree.named(&catalogue.tree.real_name(unit)) {
        UnitResolution::Masked => Some("is masked"),
        _ if loaded => None,
        _ => Some("does not exist on this machine"),
    }
}

/// An enabled unit whose targets are all missing is never started.
fn never_started(unit: &str, catalogue: &UnitCatalog<'_>) -> Option<String> {
    if !catalogue.is_enabled(unit) || !catalogue.tree.is_whole() {
        return None;
    }
    let set = enablement::enable(unit, &|other| catalogue.find(other), &|_| true);
    let wanters = set.links.keys().filter_map(unit_tree::wanting_unit);
    let wanters: BTreeSet<String> = wanters.collect();
    if wanters.is_empty() || wanters.iter().any(|wanter| catalogue.tree.has(wanter)) {
        return None;
    }
    let wanters: Vec<String> = wanters.into_iter().collect();
    Some(format!(
        "{unit} is never started: it is enabled for {}, which does not exist on this machine",
        wanters.join(" and ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_escaped_as_systemd_escape_does() {
        for (path, escaped) in [
            ("/", "-"),
            ("/var/lib/my-data", "var-lib-my\\x2ddata"),
            ("//srv//.x/", "srv-.x"),
            ("/.hidden/a b", "\\x2ehidden-a\\x20b"),
            ("/ü", "\\xc3\\xbc"),
        ] {
            assert_eq!(escape(path), escaped, "{path}");
        }
    }
}
