//! Observes unit files outside the unit directories that links in those directories lead to
//! (`systemctl link`).

use std::collections::{BTreeMap, BTreeSet};

use machinist_base::abs_path::AbsPath;
use machinist_ignition::MachineConfig;
use machinist_plan::{MachineFacts, UnitEntry};
use machinist_rootfs::{FileKind, Root};

use super::{MAX_TEXT_BYTES, parent_resolver::ParentResolver};

/// Returns the targets outside the unit directories that links in these directories name, by the
/// path of the link: existing links, links that the configs create, and originals.
pub(super) fn unit_links(
    configs: [&MachineConfig; 2],
    seen: &MachineFacts,
) -> BTreeMap<AbsPath, BTreeSet<AbsPath>> {
    let there = seen.unit_files.iter().chain(&seen.unit_originals);
    let there = there.filter_map(|(path, entry)| match entry {
        UnitEntry::Link(text) => Some((path, text)),
        _ => None,
    });
    let names = [&seen.unit_paths_before, &seen.unit_paths];
    let ours = configs.into_iter().zip(names);
    let ours = ours.flat_map(|(config, names)| {
        let links = config.links.iter().filter(|(_, link)| !link.hard);
        links.map(|(path, link)| (names.get(path).unwrap_or(path), &link.target))
    });
    let mut found: BTreeMap<AbsPath, BTreeSet<AbsPath>> = BTreeMap::new();
    for (path, text) in there.chain(ours) {
        let target = machinist_plan::resolve(path, text);
        let is_inside = machinist_plan::UNIT_DIRECTORIES.contains(&target.directory());
        if machinist_plan::UNIT_DIRECTORIES.contains(&path.directory())
            && !is_inside
            && target.as_str() != "/dev/null"
        {
            found.entry(path.clone()).or_default().insert(target);
        }
    }
    found
}

/// Follows these links in the current and in the planned tree.
pub(super) struct LinkedUnits<'a, 'p> {
    pub(super) root: &'a Root,
    pub(super) ends: [&'a mut ParentResolver<'p>; 2],
}

impl LinkedUnits<'_, '_> {
    /// Returns the text of the unit file that a link to `target` leads to in the planned tree.
    pub(super) fn linked_text(&mut self, target: &AbsPath, seen: &mut MachineFacts) -> String {
        let [today, planned] = &mut self.ends;
        let mut text = String::new();
        for (places, ends) in [
            (today, &mut seen.unit_ends_before),
            (planned, &mut seen.unit_ends),
        ] {
            // A target that cannot be observed counts as unknown.
            let Ok(end) = places.end(target) else {
                continue;
            };
            let found = self.root.stat(&end).ok().flatten();
            let found = found.is_some_and(|stat| stat.kind == FileKind::File);
            if found && let Ok(read) = self.root.read_text(&end, MAX_TEXT_BYTES) {
                text.clone_from(&read);
                seen.texts.insert(end.clone(), read);
            }
            ends.insert(target.clone(), found.then_some(end));
        }
        text
    }
}
