//! Observes the units that the configs or the policies name: files, states, and alias and enablement links.

use std::collections::{BTreeMap, BTreeSet};

use machinist_base::abs_path::AbsPath;
use machinist_ignition::{MachineConfig, UnitName};
use machinist_plan::{MachineFacts, Policies, UnitEntry, UnitFacts};
use machinist_rootfs::{FileKind, Root, RootError};

use super::{
    MAX_TEXT_BYTES, files_in,
    linked_units::{LinkedUnits, unit_links},
    parent_resolver::ParentResolver,
    text_if_there,
};

/// Fills in the unit directories, units, their texts, and the preset files.
pub(super) fn add(
    root: &Root,
    configs: [&MachineConfig; 2],
    policies: &Policies,
    live: Option<&BTreeMap<String, UnitFacts>>,
    ends: [&mut ParentResolver<'_>; 2],
    seen: &mut MachineFacts,
) -> Result<(), RootError> {
    seen.unit_files = entries(root)?;
    originals(root, seen)?;
    let links = unit_links(configs, seen);
    let mut linked = LinkedUnits { root, ends };
    let mut todo: Vec<String> = names(configs, policies, live, seen).into_iter().collect();
    while let Some(name) = todo.pop() {
        if seen.units.contains_key(&name) {
            continue;
        }
        let mut facts = live
            .and_then(|live| live.get(&name))
            .cloned()
            .unwrap_or_default();
        drop_ins(root, &name, seen)?;
        let mut vendor_file = None;
        // This is an alias that was removed when its unit was disabled.
        let own = places(&name).find(|(directory, _)| *directory == machinist_plan::UNIT_DIR);
        if let Some((_, own)) = own
            && let Some(UnitEntry::Link(text)) = seen.unit_originals.get(&own)
        {
            todo.push(machinist_plan::resolve(&own, text).file_name().to_owned());
        }
        for (directory, path) in places(&name) {
            for text in [&seen.linked_texts_before, &seen.linked_texts] {
                let text = text.get(&path).map(String::as_str).unwrap_or_default();
                todo.extend(machinist_plan::also(&name, text, &seen.specifiers));
            }
            for target in links.get(&path).into_iter().flatten() {
                let text = linked.text_behind(target, seen);
                todo.extend(machinist_plan::also(&name, &text, &seen.specifiers));
            }
            let Some(entry) = seen.unit_files.get(&path) else {
                continue;
            };
            if let UnitEntry::Link(text) = entry {
                todo.push(machinist_plan::resolve(&path, text).file_name().to_owned());
            }
            let text = text_if_there(root, path.as_str(), MAX_TEXT_BYTES)?;
            todo.extend(machinist_plan::also(&name, &text, &seen.specifiers));
            match text.is_empty() {
                true => note_empty(root, &path, seen)?,
                false => drop(seen.texts.insert(path.clone(), text)),
            }
            if directory != machinist_plan::UNIT_DIR {
                vendor_file.get_or_insert(path);
            }
        }
        facts.vendor_file = vendor_file.or(facts.vendor_file);
        seen.units.insert(name, facts);
    }
    for directory in machinist_plan::PRESET_DIRECTORIES {
        for path in files_in(root, directory, ".preset")? {
            let text = text_if_there(root, path.as_str(), MAX_TEXT_BYTES)?;
            seen.texts.insert(path, text);
        }
    }
    Ok(())
}

/// Returns the units of which some of `names` are aliases, by existing links or by links in `originals`.
pub(crate) fn behind_aliases(
    root: &Root,
    names: &BTreeSet<String>,
    originals: &BTreeMap<AbsPath, AbsPath>,
) -> Result<BTreeSet<String>, RootError> {
    let mut found = BTreeSet::new();
    let mut todo: Vec<String> = names.iter().cloned().collect();
    while let Some(name) = todo.pop() {
        for (_, path) in places(&name) {
            for place in std::iter::once(&path).chain(originals.get(&path)) {
                if root
                    .stat(place)?
                    .is_none_or(|stat| stat.kind != FileKind::Link)
                {
                    continue;
                }
                let target = machinist_plan::resolve(&path, &root.read_link(place)?);
                let unit = target.file_name().to_owned();
                if UnitName::new(unit.as_str()).is_ok() && found.insert(unit.clone()) {
                    todo.push(unit);
                }
            }
        }
    }
    Ok(found)
}

/// Returns the possible paths of a unit's file, in order of precedence.
fn places(name: &str) -> impl Iterator<Item = (&'static str, AbsPath)> {
    let path = move |directory: &'static str| {
        let path = AbsPath::new(format!("{directory}/{name}")).ok()?;
        Some((directory, path))
    };
    machinist_plan::UNIT_DIRECTORIES
        .into_iter()
        .filter_map(path)
}

/// Records an empty file, which masks its unit. A file that is not text does not mask it.
fn note_empty(root: &Root, path: &AbsPath, seen: &mut MachineFacts) -> Result<(), RootError> {
    let stat = root.stat(path)?;
    if stat.is_some_and(|stat| stat.kind == FileKind::File && stat.size == 0) {
        seen.unit_files.insert(path.clone(), UnitEntry::Empty);
    }
    Ok(())
}

/// Lists every file and link in the unit directories, and the enablement links.
fn entries(root: &Root) -> Result<BTreeMap<AbsPath, UnitEntry>, RootError> {
    let mut found = BTreeMap::new();
    let all = machinist_plan::UNIT_DIRECTORIES.map(AbsPath::new);
    let mut directories: Vec<AbsPath> = all.into_iter().flatten().collect();
    while let Some(directory) = directories.pop() {
        for entry in super::list_if_there(root, &directory)? {
            let Ok(path) = directory.join(&entry.name) else {
                continue;
            };
            match entry.kind {
                FileKind::Link => {
                    let text = root.read_link(&path)?;
                    found.insert(path, UnitEntry::Link(text));
                }
                FileKind::File => drop(found.insert(path, UnitEntry::File)),
                FileKind::Directory if machinist_plan::is_dependency_directory(&entry.name) => {
                    directories.push(path);
                }
                _ => {}
            }
        }
    }
    Ok(found)
}

/// Reads the originals in the unit directories.
fn originals(root: &Root, seen: &mut MachineFacts) -> Result<(), RootError> {
    let within = |path: &AbsPath| {
        let mut all = machinist_plan::UNIT_DIRECTORIES.iter();
        all.any(|directory| path.as_str().starts_with(directory))
    };
    let originals = seen.originals.iter().filter(|(path, _)| within(path));
    for (path, place) in originals {
        let Some(stat) = root.stat(place)? else {
            continue;
        };
        let entry = match stat.kind {
            FileKind::Link => UnitEntry::Link(root.read_link(place)?),
            FileKind::File if stat.size == 0 => UnitEntry::Empty,
            FileKind::File => UnitEntry::File,
            _ => continue,
        };
        if entry == UnitEntry::File {
            let text = text_if_there(root, place.as_str(), MAX_TEXT_BYTES)?;
            seen.texts.insert(place.clone(), text);
        }
        seen.unit_originals.insert(path.clone(), entry);
    }
    Ok(())
}

/// Reads the drop-ins of a unit.
fn drop_ins(root: &Root, name: &str, seen: &mut MachineFacts) -> Result<(), RootError> {
    for directory in machinist_plan::UNIT_DIRECTORIES {
        for path in files_in(root, &format!("{directory}/{name}.d"), ".conf")? {
            let text = text_if_there(root, path.as_str(), MAX_TEXT_BYTES)?;
            let entry = match text.is_empty() {
                true => UnitEntry::Empty,
                false => UnitEntry::File,
            };
            seen.texts.insert(path.clone(), text);
            seen.unit_files.insert(path, entry);
        }
    }
    Ok(())
}

/// Returns the units to observe: those named, their templates, the services of their sockets, and the running
/// instances of their templates.
fn names(
    configs: [&MachineConfig; 2],
    policies: &Policies,
    live: Option<&BTreeMap<String, UnitFacts>>,
    seen: &MachineFacts,
) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = policies.unit_names();
    let paths = [&seen.unit_paths_before, &seen.unit_paths];
    for (config, paths) in configs.into_iter().zip(paths) {
        names.extend(machinist_plan::named_in(config, paths));
        for (name, unit) in &config.units {
            names.insert(name.to_string());
            names.extend(name.template().map(String::from));
            names.extend(
                name.as_str()
                    .strip_suffix(".socket")
                    .map(|stem| format!("{stem}.service")),
            );
            names.extend(
                unit.contents
                    .iter()
                    .flat_map(|text| machinist_plan::also(name.as_str(), text, &seen.specifiers)),
            );
        }
    }
    let instances = live.into_iter().flat_map(BTreeMap::keys).filter(|unit| {
        let template = UnitName::new(unit.as_str())
            .ok()
            .and_then(|name| name.template());
        template.is_some_and(|template| names.contains(template.as_str()))
    });
    let instances: Vec<String> = instances.cloned().collect();
    names.extend(instances);
    names
}
