//! Lists entries of one kind in the unit directories: drop-ins of a unit, links, preset files.

use std::collections::BTreeMap;

use super::{UNIT_DIRECTORIES, UnitTree, UnitTreeEntry, is_preset};
use crate::enablement::{LinkTargets, UNIT_DIR, unit_name};
use machinist_base::abs_path::AbsPath;

impl UnitTree<'_> {
    /// The texts of the drop-ins of `unit` in parsing order.
    pub(crate) fn drop_ins(&self, unit: &str) -> Vec<String> {
        let template = unit_name::template(unit).filter(|template| template != unit);
        self.drop_ins_of(std::iter::once(unit).chain(template.as_deref()))
    }

    /// The same with those of all units of its type or with the same beginning of the name
    /// (systemd.unit(5): `service.d`, `foo-.service.d`).
    pub(crate) fn all_drop_ins(&self, unit: &str) -> Vec<String> {
        let (prefix, kind) = (unit_name::prefix(unit), unit_name::kind(unit));
        let mut names: Vec<String> = [unit.to_owned()].into();
        names.extend(unit_name::template(unit).filter(|template| template != unit));
        let dashes = prefix.rmatch_indices('-').map(|(at, _)| at);
        let dashes = dashes.filter(|at| at + 1 < prefix.len());
        names.extend(dashes.map(|at| format!("{}-.{kind}", &prefix[..at])));
        names.push(kind.to_owned());
        self.drop_ins_of(names.iter().map(String::as_str))
    }

    /// Whether an instance of this template has drop-ins of its own.
    pub(crate) fn has_drop_ins_of_instances(&self, template: &str) -> bool {
        let is_one = |path: &AbsPath| {
            let directory = path.directory().rsplit('/').next().unwrap_or_default();
            let unit = directory.strip_suffix(".d").unwrap_or_default();
            unit != template && unit_name::template(unit).as_deref() == Some(template)
        };
        self.entries.keys().any(is_one)
    }

    fn drop_ins_of<'n>(&self, units: impl Iterator<Item = &'n str>) -> Vec<String> {
        let mut files: BTreeMap<&str, &UnitTreeEntry<'_>> = BTreeMap::new();
        for unit in units {
            for directory in UNIT_DIRECTORIES {
                let Ok(directory) = AbsPath::new(format!("{directory}/{unit}.d")) else {
                    continue;
                };
                let below = self.entries.range(directory.clone()..);
                let below =
                    below.take_while(|(path, _)| path.as_str().starts_with(directory.as_str()));
                let below = below.filter(|(path, _)| path.directory() == directory.as_str());
                for (path, entry) in below.filter(|(path, _)| path.file_name().ends_with(".conf")) {
                    files.entry(path.file_name()).or_insert(entry);
                }
            }
        }
        let texts = files.into_values().filter_map(|entry| match entry {
            UnitTreeEntry::File(text) => text.as_deref().map(str::to_owned),
            UnitTreeEntry::Link(_) => None,
        });
        texts.collect()
    }

    /// The links below the administrator's directory.
    pub(crate) fn links(&self) -> LinkTargets {
        let own = |path: &AbsPath| {
            path.as_str()
                .strip_prefix(UNIT_DIR)
                .is_some_and(|rest| rest.starts_with('/'))
        };
        let links = self.entries.iter().filter(|(path, _)| own(path));
        let links = links.filter_map(|(path, entry)| match entry {
            UnitTreeEntry::Link(text) => Some((path.clone(), (*text).to_owned())),
            UnitTreeEntry::File(_) => None,
        });
        links.collect()
    }

    /// The texts of preset files by path.
    pub(crate) fn presets(&self) -> BTreeMap<AbsPath, String> {
        let presets = self.entries.iter().filter(|(path, _)| is_preset(path));
        let text = |entry: &UnitTreeEntry<'_>| match entry {
            UnitTreeEntry::File(text) => text.as_deref().unwrap_or_default().to_owned(),
            UnitTreeEntry::Link(_) => String::new(),
        };
        presets
            .map(|(path, entry)| (path.clone(), text(entry)))
            .collect()
    }
}
