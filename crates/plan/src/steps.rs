//! Computes the step for each path, before steps are folded and ordered.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Attributes, ChangeKind, FileFacts, MachineFacts,
    desired_tree::{DesiredEntry, DesiredObject, DesiredTree, ObjectSpec},
    file_names::FileNames,
    object::ObjectKind,
    object_compare::differences,
};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::{EntryKind, Refusal};

/// One path and what happens there.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PathStep {
    pub(super) entry: DesiredEntry,
    pub(super) act: PathAction,
    pub(super) change: ChangeKind,
    /// What differs, by the names of [`super::Change::fields`].
    pub(super) fields: Vec<&'static str>,
}

/// What happens at a path.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PathAction {
    /// A new object is put at the path.
    Put(ObjectSpec),
    /// The object is kept and gets another mode or owner.
    Metadata(Attributes),
    /// A file is put at the path with the content of the original at this place.
    Copy(AbsPath, Attributes),
    /// The object is removed.
    Remove,
    /// The original is restored from the given place.
    Restore(AbsPath),
}

impl PathAction {
    /// The owner of the object after the act, if one is planned; `today` is the present owner.
    pub(super) fn owner_after(act: Option<&Self>, today: Option<u32>) -> Option<u32> {
        match act {
            Some(Self::Put(object)) => object.uid().or(today),
            Some(Self::Metadata(attributes)) => Some(attributes.uid),
            _ => today,
        }
    }
}

/// One path of the desired config with the facts about it.
#[derive(Clone, Copy)]
pub(super) struct PathFacts<'a> {
    /// The entry of the base config.
    pub(super) had: Option<&'a DesiredObject>,
    pub(super) path: &'a AbsPath,
    pub(super) observed: &'a MachineFacts,
}

/// All steps by canonical path, with their warnings and refusals.
#[derive(Clone, Debug, Default)]
pub(super) struct PathSteps {
    pub(super) at: BTreeMap<AbsPath, PathStep>,
    pub(super) warnings: Vec<String>,
    /// Warnings about objects that other programs changed, by the path in the config.
    pub(super) drift_warnings: BTreeMap<AbsPath, String>,
    /// Objects that leave the config and are not changed, with the reason.
    pub(super) left_behind: Vec<String>,
    /// Refusals with the path they concern.
    pub(super) refusals: Vec<(AbsPath, Refusal)>,
    /// The same, for originals of another kind than a file without contents.
    pub(super) kind_refusals: Vec<(AbsPath, Refusal)>,
    pub(super) adopted: BTreeSet<AbsPath>,
    /// The units that are still started at boot by links from before the base config, which stay.
    pub(super) started: BTreeSet<String>,
    /// The paths of objects in the base config.
    pub(super) ours: BTreeSet<AbsPath>,
    /// Files without content in the base config that another program has written; their content must stay.
    pub(super) written: BTreeSet<AbsPath>,
    /// The names that the configs give to files.
    pub(super) names: FileNames,
    /// Directories that contain an object of the desired config, changed or not.
    pub(super) needed: BTreeSet<AbsPath>,
}

/// Compares the tree with the desired config and, for objects that leave, with the base config.
pub(super) fn steps(
    before: &DesiredTree,
    after: &DesiredTree,
    observed: &MachineFacts,
    owners: bool,
) -> PathSteps {
    let ours = before.objects.keys().cloned().collect();
    let mut needed = BTreeSet::new();
    add_parents(after.objects.keys(), &mut needed);
    let mut steps = PathSteps {
        ours,
        names: FileNames::of(before, after, observed),
        needed,
        ..PathSteps::default()
    };
    let hard = |wanted: &DesiredObject| matches!(wanted.object, ObjectSpec::Hard { .. });
    let skipped = |wanted: &DesiredObject| after.skipped_entries.contains(&wanted.asked);
    let planned = || after.objects.iter().filter(|(_, wanted)| !skipped(wanted));
    for (path, wanted) in planned().filter(|(_, wanted)| !hard(wanted)) {
        steps.plan_entry(path, wanted, before, observed, owners);
    }
    for (path, entry) in &after.absent {
        if observed.objects.contains_key(path) {
            steps.put(
                path,
                entry,
                PathAction::Remove,
                ChangeKind::Remove,
                vec![removed_field(entry.kind)],
            );
        }
    }
    let mut leaving_directories = Vec::new();
    for (path, wanted) in &before.objects {
        if !after.speaks_of(path) {
            steps.leaving(path, wanted, observed, owners, &mut leaving_directories);
        }
    }
    steps.earlier_keys_leave(before, after, observed);
    for (path, entry) in &before.absent {
        if let Some(place) = observed.originals.get(path)
            && !after.speaks_of(path)
            && !observed.objects.contains_key(path)
        {
            let act = PathAction::Restore(place.clone());
            steps.put(
                path,
                entry,
                act,
                ChangeKind::Create,
                vec![removed_field(entry.kind)],
            );
        }
    }
    // A link that comes back to a unit of the config was there before the config.
    let back = steps.at.iter().filter(|(path, step)| {
        matches!(step.act, PathAction::Restore(_)) && after.links_of_units.contains(*path)
    });
    let back: Vec<AbsPath> = back.map(|(path, _)| path.clone()).collect();
    steps.adopted.extend(back);
    // Hard links come last, because they depend on the steps of their files.
    for (path, wanted) in planned().filter(|(_, wanted)| hard(wanted)) {
        steps.plan_entry(path, wanted, before, observed, owners);
    }
    steps.remove_directories(leaving_directories, after, observed, owners);
    steps.return_made_directories(before, after, observed, owners);
    steps.tidy_unit_directories(observed);
    steps
}

impl DesiredTree {
    pub(super) fn speaks_of(&self, path: &AbsPath) -> bool {
        self.objects.contains_key(path) || self.absent.contains_key(path)
    }
}

impl PathSteps {
    pub(super) fn put(
        &mut self,
        path: &AbsPath,
        entry: &DesiredEntry,
        act: PathAction,
        change: ChangeKind,
        fields: Vec<&'static str>,
    ) {
        let entry = entry.clone();
        self.at.insert(
            path.clone(),
            PathStep {
                entry,
                act,
                change,
                fields,
            },
        );
    }

    pub(super) fn wanted(
        &mut self,
        path: &AbsPath,
        wanted: &DesiredObject,
        before: &DesiredTree,
        observed: &MachineFacts,
        owners: bool,
    ) {
        let had = before.objects.get(path);
        let reached = PathFacts {
            had,
            path,
            observed,
        };
        self.kind_refusals.extend(reached.original_refusal(wanted));
        let facts = observed.objects.get(path);
        self.refusals.extend(reached.set_id_refusal(wanted, facts));
        let Some(facts) = facts else {
            return self.create(wanted, reached);
        };
        let mut fields = differences(wanted, facts, owners);
        if fields.is_empty() && self.parts_names(wanted, had, facts) {
            fields.push("target");
        }
        let act = match wanted.object {
            ObjectSpec::Partial { .. } => {
                let act = reached.partial(&wanted.object, facts, owners);
                fields = match &act {
                    Some(act) => changed_by(act, facts, fields),
                    None => Vec::new(),
                };
                act
            }
            ObjectSpec::Directory { mode, uid, gid } if facts.kind == ObjectKind::Directory => {
                Some(PathAction::Metadata(Attributes { mode, uid, gid }))
            }
            _ => Some(PathAction::Put(wanted.object.clone())),
        };
        let Some(act) = act.filter(|_| !fields.is_empty()) else {
            let touched =
                observed.originals.contains_key(path) || observed.modes.contains_key(path);
            if had.is_none() && !touched {
                self.adopted.insert(path.clone());
            }
            return;
        };
        let refusal = reached.disclosure_refusal(wanted, Some(facts), &act);
        self.refusals.extend(refusal);
        self.warnings
            .extend(reached.lost_set_id(wanted, facts, &act).filter(|_| owners));
        let written = had.is_some_and(|had| had.object.is_without_content()) && facts.size > 0;
        if written && facts.kind == ObjectKind::File && !matches!(act, PathAction::Metadata(_)) {
            self.written.insert(path.clone());
        }
        if let Some(had) = had {
            self.warn_of_drift(had, wanted, (path, facts, observed), owners);
        }
        self.put(path, &wanted.entry, act, ChangeKind::Modify, fields);
    }

    /// Plans an object where nothing is at present.
    fn create(&mut self, wanted: &DesiredObject, reached: PathFacts<'_>) {
        let act = reached.missing(&wanted.object);
        self.refusals
            .extend(reached.disclosure_refusal(wanted, None, &act));
        self.put(
            reached.path,
            &wanted.entry,
            act,
            ChangeKind::Create,
            vec![first_field(wanted)],
        );
        if let Some(had) = reached.had {
            self.drift_warnings
                .insert(had.asked.clone(), missing(&had.asked));
        }
    }

    /// Warns if the object differs from its state in the base config.
    fn warn_of_drift(
        &mut self,
        had: &DesiredObject,
        wanted: &DesiredObject,
        (path, facts, observed): (&AbsPath, &FileFacts, &MachineFacts),
        owners: bool,
    ) {
        if observed.leased.contains(path) {
            self.warn_of_leased(&had.asked);
            return;
        }
        let since = differences(had, facts, owners);
        if !since.is_empty() {
            let what = format!("its {} changed", since.join(" and "));
            let text = drifted(&had.asked, &what, had.object == wanted.object);
            self.drift_warnings.insert(had.asked.clone(), text);
        }
    }
}

/// Adds all directories above `paths`.
pub(super) fn add_parents<'a>(
    paths: impl Iterator<Item = &'a AbsPath>,
    parents: &mut BTreeSet<AbsPath>,
) {
    let mut last = None;
    for path in paths {
        // Consecutive paths are usually in the same directory.
        if last == Some(path.directory()) {
            continue;
        }
        last = Some(path.directory());
        for above in path.ancestors() {
            // The parents of a known directory are known as well.
            if !parents.insert(above) {
                break;
            }
        }
    }
}

/// A missing object may never have been created: a user's home is created with the user.
fn missing(path: &AbsPath) -> String {
    format!("{path} is missing: this update restores it")
}

fn drifted(path: &AbsPath, what: &str, same: bool) -> String {
    let then = if same {
        "this update restores it"
    } else {
        "this update replaces it"
    };
    format!("{path} was modified outside machinist ({what}): {then}")
}

/// The name of the field that represents the whole object.
pub(super) fn first_field(wanted: &DesiredObject) -> &'static str {
    match (wanted.entry.kind, &wanted.object) {
        (EntryKind::SSHKey, _) => "keys",
        (EntryKind::Mask, _) => "masked",
        (EntryKind::Enablement, _) => "enabled",
        (_, ObjectSpec::Link { .. } | ObjectSpec::Hard { .. }) => "target",
        (_, object) if object.kind() == ObjectKind::Directory => "kind",
        _ => "content",
    }
}

/// The fields that an act changes, by the names of [`super::Change::fields`]; those that differ from the entry come
/// first.
pub(super) fn changed_by(
    act: &PathAction,
    facts: &FileFacts,
    differs: Vec<&'static str>,
) -> Vec<&'static str> {
    let mut fields = differs;
    let also: [(bool, &str); 2] = match act {
        PathAction::Metadata(wanted) => {
            let owner = (wanted.uid, wanted.gid) != (facts.uid, facts.gid);
            [(wanted.mode != facts.mode, "mode"), (owner, "owner")]
        }
        _ => [(!fields.contains(&"kind"), "content"), (false, "")],
    };
    for (differs, field) in also {
        if differs && !fields.contains(&field) {
            fields.push(field);
        }
    }
    fields
}

fn removed_field(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::Enablement => "enabled",
        EntryKind::Mask => "masked",
        _ => "content",
    }
}
