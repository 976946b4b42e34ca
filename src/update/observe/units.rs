//! Units that the configs or the policies name: files, states, and the links that stand for them.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    machine_config::{MachineConfig, UnitName},
    path::AbsPath,
    plan::{self, Observed, Policies, UnitFacts},
    root::{Kind, Root, RootError},
};

use super::{LONGEST_TEXT, files_in, text_if_there};

/// Where the administrator's units are.
pub(super) const OWN: &str = "/etc/systemd/system";

/// Where other unit files are, the directory that wins first (systemd.unit(5)).
pub(super) const VENDOR: [&str; 4] = [
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    // Where /lib is no link to /usr/lib.
    "/lib/systemd/system",
];

/// Fills in units, their texts, and the preset files.
pub(super) fn add(
    root: &Root,
    configs: [&MachineConfig; 2],
    policies: &Policies,
    live: Option<&BTreeMap<String, UnitFacts>>,
    seen: &mut Observed,
) -> Result<(), RootError> {
    let links = links(root)?;
    let vendor = vendor_files(root)?;
    let mut todo: Vec<String> = names(configs, policies, live).into_iter().collect();
    while let Some(name) = todo.pop() {
        if seen.units.contains_key(&name) {
            continue;
        }
        let mut facts = live
            .and_then(|live| live.get(&name))
            .cloned()
            .unwrap_or_default();
        facts.vendor_file = vendor.get(&name).cloned().or(facts.vendor_file);
        facts.links = plan::links_of_unit(&name, &links);
        let own = AbsPath::new(format!("{OWN}/{name}")).ok();
        for path in own.iter().chain(&facts.vendor_file) {
            let text = text_if_there(root, path.as_str(), LONGEST_TEXT)?;
            todo.extend(plan::also(&name, &text));
            if !text.is_empty() {
                seen.texts.insert(path.clone(), text);
            }
        }
        seen.units.insert(name, facts);
    }
    for directory in plan::PRESET_DIRECTORIES {
        for path in files_in(root, directory, ".preset")? {
            let text = text_if_there(root, path.as_str(), LONGEST_TEXT)?;
            seen.texts.insert(path, text);
        }
    }
    Ok(())
}

/// The units to look at: those named, their templates, the services of their sockets, and the running
/// instances of their templates.
fn names(
    configs: [&MachineConfig; 2],
    policies: &Policies,
    live: Option<&BTreeMap<String, UnitFacts>>,
) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = policies.unit_names();
    for config in configs {
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
                    .flat_map(|text| plan::also(name.as_str(), text)),
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

/// All links below the administrator's directory that can mean something to systemd.
fn links(root: &Root) -> Result<BTreeMap<AbsPath, String>, RootError> {
    let mut links = BTreeMap::new();
    let Ok(own) = AbsPath::new(OWN) else {
        return Ok(links);
    };
    let mut directories = vec![own];
    while let Some(directory) = directories.pop() {
        for entry in super::list_if_there(root, &directory)? {
            let Ok(path) = directory.join(&entry.name) else {
                continue;
            };
            let dependencies = [".wants", ".requires", ".upholds"];
            match entry.kind {
                Kind::Link => {
                    links.insert(path.clone(), root.read_link(&path)?);
                }
                Kind::Directory
                    if dependencies
                        .iter()
                        .any(|suffix| entry.name.ends_with(suffix)) =>
                {
                    directories.push(path);
                }
                _ => {}
            }
        }
    }
    Ok(links)
}

/// The vendor's and the runtime's unit files by name; an alias leads to the file of its unit.
fn vendor_files(root: &Root) -> Result<BTreeMap<String, AbsPath>, RootError> {
    let mut files: BTreeMap<String, AbsPath> = BTreeMap::new();
    for directory in VENDOR {
        let Ok(directory) = AbsPath::new(directory) else {
            continue;
        };
        for entry in super::list_if_there(root, &directory)? {
            if files.contains_key(&entry.name) || UnitName::new(entry.name.as_str()).is_err() {
                continue;
            }
            let Ok(path) = directory.join(&entry.name) else {
                continue;
            };
            let file = match entry.kind {
                Kind::File => path,
                Kind::Link => {
                    let target = root.read_link(&path)?;
                    let name = target.rsplit('/').next().unwrap_or_default();
                    directory.join(name).unwrap_or(path)
                }
                _ => continue,
            };
            files.insert(entry.name, file);
        }
    }
    Ok(files)
}
