//! Counts the names that the configs give to files.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    MachineFacts,
    desired_tree::{DesiredTree, ObjectSpec},
};
use machinist_base::abs_path::AbsPath;

/// The names that the configs give to files.
#[derive(Clone, Debug, Default)]
pub(super) struct FileNames {
    /// The number of hard links in the desired config, by the file they lead to.
    pub(super) wanted: BTreeMap<AbsPath, u32>,
    /// The number of other names that a file has on the machine because of the configs, by its path: hard links of
    /// one of the configs and their files, if they are the same object now.
    pub(super) existing: BTreeMap<AbsPath, u32>,
    /// The paths of files without contents in the desired config, whose mode and owner are set in place.
    pub(super) without_content: BTreeSet<AbsPath>,
}

impl FileNames {
    pub(super) fn of(before: &DesiredTree, after: &DesiredTree, observed: &MachineFacts) -> Self {
        let mut all = Self::default();
        let mut paths = BTreeSet::new();
        let partial = after.objects.iter();
        let partial = partial.filter(|(_, wanted)| wanted.object.is_without_content());
        all.without_content = partial.map(|(path, _)| path.clone()).collect();
        for (path, wanted) in before.objects.iter().chain(&after.objects) {
            if let ObjectSpec::Hard { target, .. } = &wanted.object {
                paths.extend([path, target]);
            }
        }
        for wanted in after.objects.values() {
            if let ObjectSpec::Hard { target, .. } = &wanted.object {
                *all.wanted.entry(target.clone()).or_default() += 1;
            }
        }
        let mut files: BTreeMap<_, Vec<(&AbsPath, bool)>> = BTreeMap::new();
        for path in paths {
            // An existing name that the config only found belongs to others again when it leaves.
            let released = observed.adopted.contains(path) && !after.speaks_of(path);
            for name in observed.originals.get(path).into_iter().chain([path]) {
                if let Some(facts) = observed.objects.get(name) {
                    let file = files.entry((facts.inode, &facts.mount)).or_default();
                    file.push((name, released));
                }
            }
        }
        for names in files.values() {
            for (path, _) in names {
                let leaves = !after.speaks_of(path);
                let others = names.iter().filter(|(name, _)| name != path);
                let own = others.filter(|(_, released)| leaves || !released).count();
                let own = u32::try_from(own).unwrap_or(u32::MAX);
                all.existing.insert((*path).clone(), own);
            }
        }
        all
    }
}
