//! Lists the objects whose mode and owner an update sets. They decide who controls the paths below
//! them once the update is done.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Attributes, MachineFacts, NewObject, NodeKind, OperationKind,
    desired_tree::{ConfigSide, DesiredTree},
    home_dirs,
    object::ObjectKind,
    operations_fold,
    steps::steps,
    unsafe_paths::{self, SkippableEntries},
};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::MachineConfig;

/// The objects that an update creates or changes, by canonical path.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlannedObjects {
    /// The directories that it creates or whose mode or owner it changes.
    pub directories: BTreeMap<AbsPath, Attributes>,
    /// The files that stay and get another mode or owner.
    pub files: BTreeMap<AbsPath, Attributes>,
    /// The paths at which it puts, restores or removes an object.
    pub replaced: BTreeSet<AbsPath>,
}

/// Whether an update between these configs may change the mode or owner of a directory that exists,
/// or create one with another owner than root.
pub fn may_change_directories(from: &MachineConfig, to: &MachineConfig) -> bool {
    let none = from.directories.is_empty() && to.directories.is_empty();
    !none || to.has_account_entries()
}

/// The objects that the update from one config to the other creates or changes. Refusals are left
/// out. `owners` is false if owners cannot be set here.
pub fn planned_objects(
    from: &MachineConfig,
    to: &MachineConfig,
    observed: &MachineFacts,
    owners: bool,
) -> PlannedObjects {
    let mut before = DesiredTree::of(from, observed, ConfigSide::Before);
    let mut after = DesiredTree::of(to, observed, ConfigSide::After(from));
    let unchanged = unsafe_paths::unchanged(&before, &after, observed);
    let skippable = SkippableEntries::of(&unchanged, [&before, &after], observed);
    unsafe_paths::refuse_unsafe_paths(&mut before, &mut after, observed, None, &skippable);
    let mut steps = steps(&before, &after, observed, owners);
    steps.make_homes(&after, observed);
    unsafe_paths::skip_refused(&mut steps, &mut after, observed, to, &skippable);
    skippable.skip_hard_links(&mut steps, &mut after, observed);
    let (mut operations, _) = operations_fold::operations(&steps, &after, observed);
    home_dirs::fill_new_homes(&mut operations, &after, observed);
    let mut planned = PlannedObjects::default();
    for operation in operations {
        let target = operation.target;
        let facts = observed.objects.get(&target);
        match operation.kind {
            OperationKind::Metadata(attributes) => {
                let directory = facts.is_some_and(|facts| facts.kind == ObjectKind::Directory);
                match directory {
                    true => planned.directories.insert(target, attributes),
                    false => planned.files.insert(target, attributes),
                };
                continue;
            }
            OperationKind::Put(node) => planned.add_new(&target, &node),
            OperationKind::Restore(place) => {
                let original = observed.objects.get(&place);
                let original = original.filter(|facts| facts.kind == ObjectKind::Directory);
                let attributes = original.map(|facts| (target.clone(), facts.attributes()));
                planned.directories.extend(attributes);
            }
            OperationKind::Remove | OperationKind::Entries(_) => {}
        }
        planned.replaced.insert(target);
    }
    planned
}

impl PlannedObjects {
    /// Adds the directories of a new tree.
    fn add_new(&mut self, at: &AbsPath, node: &NewObject) {
        let NodeKind::Directory(children) = &node.kind else {
            return;
        };
        let NewObject { mode, uid, gid, .. } = *node;
        let attributes = Attributes { mode, uid, gid };
        self.directories.insert(at.clone(), attributes);
        for (name, child) in children {
            if let Ok(path) = at.join(name) {
                self.add_new(&path, child);
            }
        }
    }

    /// Whether the object at `path`, or a directory above it, is replaced or removed.
    pub fn replaces(&self, path: &AbsPath) -> bool {
        let mut above = path.ancestors();
        self.replaced.contains(path) || above.any(|above| self.replaced.contains(&above))
    }
}
