//! Lists entries of one kind in the unit directories: drop-ins of a unit, links, preset files.

use std::collections::BTreeMap;

use super::{Entry, UNIT_DIRECTORIES, UnitTree, is_preset};
use crate::{
    path::AbsPath,
    plan::linkset::{Links, UNIT_DIR, name},
};

impl UnitTree<'_> {
    /// The texts of the drop-ins of `unit` in parsing order.
    pub(in crate::plan) fn drop_ins(&self, unit: &str) -> Vec<String> {
        let template = name::template(unit).filter(|template| template != unit);
        let mut files: BTreeMap<&str, &Entry<'_>> = BTreeMap::new();
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
            Entry::File(text) => text.as_deref().map(str::to_owned),
            Entry::Link(_) => None,
        });
        texts.collect()
    }

    /// The links below the administrator's directory.
    pub(in crate::plan) fn links(&self) -> Links {
        let own = |path: &AbsPath| {
            path.as_str()
                .strip_prefix(UNIT_DIR)
                .is_some_and(|rest| rest.starts_with('/'))
        };
        let links = self.entries.iter().filter(|(path, _)| own(path));
        let links = links.filter_map(|(path, entry)| match entry {
            Entry::Link(text) => Some((path.clone(), (*text).to_owned())),
            Entry::File(_) => None,
        });
        links.collect()
    }

    /// The texts of preset files by path.
    pub(in crate::plan) fn presets(&self) -> BTreeMap<AbsPath, String> {
        let presets = self.entries.iter().filter(|(path, _)| is_preset(path));
        let text = |entry: &Entry<'_>| match entry {
            Entry::File(text) => text.as_deref().unwrap_or_default().to_owned(),
            Entry::Link(_) => String::new(),
        };
        presets
            .map(|(path, entry)| (path.clone(), text(entry)))
            .collect()
    }
}
