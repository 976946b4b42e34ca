//! Lists entries of one kind in the unit directories: drop-ins of a unit, links, preset files.

use std::collections::BTreeMap;

use super::{UNIT_DIRECTORIES, UnitTree, UnitTreeEntry, is_preset};
use crate::enablement::{LinkTargets, UNIT_DIR, unit_name};
use machinist_base::abs_path::AbsPath;

impl UnitTree<'_> {
    /// The texts of the drop-ins of `unit` in parsing order.
    pub(crate) fn drop_ins(&self, unit: &str) -> Vec<String> {
        let template = unit_name::template(unit).filter(|template| template != unit);
        let mut files: BTreeMap<&str, &UnitTreeEntry<'_>> = BTreeMap::new();
        for unit in std::iter::once(unit).chain(template.as_deref()) {
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
