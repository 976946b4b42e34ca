//! Observes the units that the configs or the policies name: files, states, and alias and enablement links.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

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
    let planned = [&seen.unit_paths_before, &seen.unit_paths].map(Clone::clone);
    let planned = configs.into_iter().zip(&planned);
    let mut reader = UnitReader {
        root,
        linked: LinkedUnits { root, ends },
        links,
        planned: planned
            .map(|(config, paths)| machinist_plan::unit_texts(config, paths))
            .collect(),
    };
    let mut todo: Vec<String> = names(configs, policies, live, seen).into_iter().collect();
    while let Some(name) = todo.pop() {
        if seen.units.contains_key(&name) {
            continue;
        }
        let mut facts = live
            .and_then(|live| live.get(&name))
            .cloned()
            .unwrap_or_default();
        let mut found = reader.read(&name, seen)?;
        // An instance has the settings of its template.
        let template = UnitName::new(name.as_str()).ok();
        let template = template.and_then(|name| name.template());
        if let Some(template) = template.filter(|template| template.as_str() != name) {
            found
                .texts
                .extend(reader.read(template.as_str(), seen)?.texts);
            todo.push(template.to_string());
        }
        let also = |text: &String| machinist_plan::also(&name, text, &seen.specifiers);
        todo.extend(found.texts.iter().flat_map(also));
        todo.extend(found.aliased);
        facts.vendor_file = found.vendor_file.or(facts.vendor_file);
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

/// What the machine and the configs have of one unit.
#[derive(Default)]
struct UnitTexts {
    /// The texts of its files and drop-ins.
    texts: Vec<String>,
    /// The units that links of its name lead to.
    aliased: Vec<String>,
    vendor_file: Option<AbsPath>,
}

struct UnitReader<'a, 'p> {
    root: &'a Root,
    linked: LinkedUnits<'a, 'p>,
    links: BTreeMap<AbsPath, BTreeSet<AbsPath>>,
    /// The texts in the configs, by unit.
    planned: Vec<BTreeMap<String, Vec<Cow<'a, str>>>>,
}

impl UnitReader<'_, '_> {
    /// Reads the files and drop-ins of a unit.
    fn read(&mut self, name: &str, seen: &mut MachineFacts) -> Result<UnitTexts, RootError> {
        let mut found = UnitTexts::default();
        let planned = self.planned.iter().filter_map(|texts| texts.get(name));
        let planned = planned.flatten().map(|text| text.clone().into_owned());
        found.texts.extend(planned);
        found.texts.extend(drop_ins(self.root, name, seen)?);
        // This is an alias that was removed when its unit was disabled.
        let own = places(name).find(|(directory, _)| *directory == machinist_plan::UNIT_DIR);
        if let Some((_, own)) = own
            && let Some(UnitEntry::Link(text)) = seen.unit_originals.get(&own)
        {
            let target = machinist_plan::resolve(&own, text);
            found.aliased.push(target.file_name().to_owned());
        }
        for (directory, path) in places(name) {
            for text in [&seen.linked_texts_before, &seen.linked_texts] {
                found.texts.extend(text.get(&path).cloned());
            }
            for target in self.links.get(&path).into_iter().flatten() {
                found.texts.push(self.linked.linked_text(target, seen));
            }
            let Some(entry) = seen.unit_files.get(&path) else {
                continue;
            };
            if let UnitEntry::Link(text) = entry {
                let target = machinist_plan::resolve(&path, text);
                found.aliased.push(target.file_name().to_owned());
            }
            let text = text_if_there(self.root, path.as_str(), MAX_TEXT_BYTES)?;
            found.texts.push(text.clone());
            match text.is_empty() {
                true => note_empty(self.root, &path, seen)?,
                false => drop(seen.texts.insert(path.clone(), text)),
            }
            if directory != machinist_plan::UNIT_DIR {
                found.vendor_file.get_or_insert(path);
            }
        }
        Ok(found)
    }
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

/// Reads the drop-ins of a unit and returns their texts.
fn drop_ins(root: &Root, name: &str, seen: &mut MachineFacts) -> Result<Vec<String>, RootError> {
    let mut texts = Vec::new();
    for directory in machinist_plan::UNIT_DIRECTORIES {
        for path in files_in(root, &format!("{directory}/{name}.d"), ".conf")? {
            let text = text_if_there(root, path.as_str(), MAX_TEXT_BYTES)?;
            let entry = match text.is_empty() {
                true => UnitEntry::Empty,
                false => UnitEntry::File,
            };
            texts.push(text.clone());
            seen.texts.insert(path.clone(), text);
            seen.unit_files.insert(path, entry);
        }
    }
    Ok(texts)
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
        for name in config.units.keys() {
            names.insert(name.to_string());
            names.extend(name.template().map(String::from));
            names.extend(
                name.as_str()
                    .strip_suffix(".socket")
                    .map(|stem| format!("{stem}.service")),
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
