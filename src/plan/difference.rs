//! What has to happen to each path, before anything is folded or ordered.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    ChangeKind, Observed,
    compare::differences,
    desired::{Entry, Layout, Object, Wanted},
    observed::ObjectKind,
};
use crate::{machine_config::EntryKind, path::AbsPath};

/// One path and what happens there.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step {
    pub(super) entry: Entry,
    pub(super) act: Act,
    pub(super) change: ChangeKind,
    /// What differs, by the names of [`super::Change::fields`].
    pub(super) fields: Vec<&'static str>,
}

/// What happens at a path.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Act {
    /// A new object takes the place.
    Put(Object),
    /// A directory stays and gets another mode or owner.
    Metadata(Object),
    /// The object goes.
    Remove,
    /// What stood there before machinist comes back from the place given.
    Restore(AbsPath),
}

/// All steps by canonical path, and what is to be said about them.
#[derive(Clone, Debug, Default)]
pub(super) struct Steps {
    pub(super) at: BTreeMap<AbsPath, Step>,
    pub(super) warnings: Vec<String>,
    pub(super) adopted: BTreeSet<AbsPath>,
    /// Where the config before had something.
    pub(super) ours: BTreeSet<AbsPath>,
    /// Directories that hold something of the config to reach, changed or not.
    pub(super) needed: BTreeSet<AbsPath>,
}

/// Holds the tree against the config to reach and, for what leaves, against the one before.
pub(super) fn steps(before: &Layout, after: &Layout, observed: &Observed, owners: bool) -> Steps {
    let ours = before.objects.keys().cloned().collect();
    let mut needed = BTreeSet::new();
    add_parents(after.objects.keys(), &mut needed);
    let mut steps = Steps {
        ours,
        needed,
        ..Steps::default()
    };
    let hard = |wanted: &Wanted| matches!(wanted.object, Object::Hard { .. });
    for (path, wanted) in after.objects.iter().filter(|(_, wanted)| !hard(wanted)) {
        steps.wanted(path, wanted, before, observed, owners);
    }
    for (path, entry) in &after.absent {
        if observed.objects.contains_key(path) {
            steps.put(
                path,
                entry,
                Act::Remove,
                ChangeKind::Remove,
                vec![gone_field(entry.kind)],
            );
        }
    }
    let mut leaving_directories = Vec::new();
    for (path, wanted) in &before.objects {
        if !after.speaks_of(path) {
            steps.leaving(path, wanted, observed, owners, &mut leaving_directories);
        }
    }
    for (path, entry) in &before.absent {
        if let Some(place) = observed.originals.get(path)
            && !after.speaks_of(path)
            && !observed.objects.contains_key(path)
        {
            let act = Act::Restore(place.clone());
            steps.put(
                path,
                entry,
                act,
                ChangeKind::Create,
                vec![gone_field(entry.kind)],
            );
        }
    }
    // Last, because they follow the files that they are names of.
    for (path, wanted) in after.objects.iter().filter(|(_, wanted)| hard(wanted)) {
        steps.wanted(path, wanted, before, observed, owners);
    }
    steps.remove_directories(leaving_directories, observed);
    steps.tidy_unit_directories(observed);
    steps
}

impl Layout {
    pub(super) fn speaks_of(&self, path: &AbsPath) -> bool {
        self.objects.contains_key(path) || self.absent.contains_key(path)
    }
}

impl Steps {
    pub(super) fn put(
        &mut self,
        path: &AbsPath,
        entry: &Entry,
        act: Act,
        change: ChangeKind,
        fields: Vec<&'static str>,
    ) {
        let entry = entry.clone();
        self.at.insert(
            path.clone(),
            Step {
                entry,
                act,
                change,
                fields,
            },
        );
    }

    fn wanted(
        &mut self,
        path: &AbsPath,
        wanted: &Wanted,
        before: &Layout,
        observed: &Observed,
        owners: bool,
    ) {
        let had = before.objects.get(path);
        let Some(facts) = observed.objects.get(path) else {
            let act = Act::Put(wanted.object.clone());
            self.put(
                path,
                &wanted.entry,
                act,
                ChangeKind::Create,
                vec![first_field(wanted)],
            );
            if let Some(had) = had {
                self.warnings.push(missing(&had.asked));
            }
            return;
        };
        let mut fields = differences(wanted, facts, owners);
        if fields.is_empty() && self.parts_names(wanted, had, facts) {
            fields.push("target");
        }
        if fields.is_empty() {
            if had.is_none() && !observed.originals.contains_key(path) {
                self.adopted.insert(path.clone());
            }
            return;
        }
        if let Some(had) = had {
            let since = differences(had, facts, owners);
            if !since.is_empty() {
                let what = format!("its {} changed", since.join(" and "));
                self.warnings
                    .push(drifted(&had.asked, &what, had.object == wanted.object));
            }
        }
        let stays = matches!(wanted.object, Object::Directory { .. })
            && facts.kind == ObjectKind::Directory;
        let act = if stays {
            Act::Metadata(wanted.object.clone())
        } else {
            Act::Put(wanted.object.clone())
        };
        self.put(path, &wanted.entry, act, ChangeKind::Modify, fields);
    }
}

/// Adds all directories above `paths`.
pub(super) fn add_parents<'a>(
    paths: impl Iterator<Item = &'a AbsPath>,
    parents: &mut BTreeSet<AbsPath>,
) {
    let mut last = None;
    for path in paths {
        // What lies in one directory mostly comes in a row.
        if last == Some(path.directory()) {
            continue;
        }
        last = Some(path.directory());
        for above in path.ancestors() {
            // Everything above one that is known is known.
            if !parents.insert(above) {
                break;
            }
        }
    }
}

/// Missing may also mean that it never could be made: a user's home comes with the user.
fn missing(path: &AbsPath) -> String {
    format!("{path} is missing: this update puts it back")
}

fn drifted(path: &AbsPath, what: &str, same: bool) -> String {
    let then = if same {
        "this update puts it back"
    } else {
        "this update replaces it"
    };
    format!("{path} was changed by somebody else ({what}): {then}")
}

/// The field that stands for the whole object.
pub(super) fn first_field(wanted: &Wanted) -> &'static str {
    match (wanted.entry.kind, &wanted.object) {
        (EntryKind::SSHKey, _) => "keys",
        (EntryKind::Mask, _) => "masked",
        (EntryKind::Enablement, _) => "enabled",
        (_, Object::File { .. }) => "content",
        (_, Object::Directory { .. }) => "kind",
        (_, Object::Link { .. } | Object::Hard { .. }) => "target",
    }
}

fn gone_field(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::Enablement => "enabled",
        EntryKind::Mask => "masked",
        _ => "content",
    }
}
