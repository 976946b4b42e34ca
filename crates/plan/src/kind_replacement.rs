//! Decides whether an object of another kind than the config wants may be replaced.
//!
//! A file or a symbolic link replaces a file or a link if `overwrite` is true. A directory replaces
//! nothing, and nothing replaces a directory or an object of the operating system's layout. An
//! object that the base config created belongs to machinist, and its kind may change.

use super::{
    ChangeKind, FileFacts, LinkEnd, MachineFacts, ObjectKind,
    desired_tree::{DesiredObject, DesiredTree},
    machine_facts::is_layout,
    steps::{PathAction, PathStep, PathSteps},
};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::{MachineConfig, Overwrite, Refusal};

/// The rules for one update.
pub(super) struct KindReplacement<'a> {
    pub(super) to: &'a MachineConfig,
    pub(super) after: &'a DesiredTree,
    pub(super) steps: &'a PathSteps,
    pub(super) observed: &'a MachineFacts,
}

impl<'a> KindReplacement<'a> {
    pub(super) const fn new(
        to: &'a MachineConfig,
        after: &'a DesiredTree,
        steps: &'a PathSteps,
        observed: &'a MachineFacts,
    ) -> Self {
        Self {
            to,
            after,
            steps,
            observed,
        }
    }

    /// Why the object at `target` cannot be replaced by one of another kind; none if it can, or if
    /// its kind does not change.
    pub(super) fn refusal(&self, target: &AbsPath) -> Option<Refusal> {
        let (step, facts) = (
            self.steps.at.get(target)?,
            self.observed.objects.get(target)?,
        );
        let wanted = match &step.act {
            PathAction::Put(object) => object.kind(),
            PathAction::Copy(..) => ObjectKind::File,
            PathAction::Metadata(_) | PathAction::Remove | PathAction::Restore(_) => return None,
        };
        let DesiredObject { asked, object, .. } = self.after.objects.get(target)?;
        let layout = is_layout(target) || self.observed.layout_targets.contains(target);
        let same_kind = wanted == facts.kind;
        if (same_kind && !(layout && is_retargeted(wanted, step)))
            || self.put_by_base(target, facts)
        {
            return None;
        }
        let may = match &self.to.overwrite {
            Overwrite::Any => true,
            Overwrite::Except(paths) => {
                let replaces = wanted != ObjectKind::Directory && !paths.contains(asked);
                replaces && matches!(facts.kind, ObjectKind::File | ObjectKind::Link)
            }
        };
        if may && !layout {
            return None;
        }
        let resolved = match asked == target {
            true => String::new(),
            false => format!(" ({target})"),
        };
        let there = describe(target, facts, self.observed);
        let why = match layout {
            true => "; it is part of the operating system's layout and is never replaced",
            false => "",
        };
        let wanted_kind = match same_kind {
            true => "a symbolic link with another target",
            false => noun(wanted),
        };
        let message = format!("{asked}{resolved} must be {wanted_kind}, but {there} exists{why}");
        let refusal = Refusal::new(Reason::KindDiffers, message).at(&step.entry.origin);
        let expected = match object.is_without_content() {
            true => None,
            false => self.expected(target, wanted, facts, layout),
        };
        Some(match expected {
            Some(expected) => refusal.expected(expected),
            None => refusal,
        })
    }

    /// Whether the base config created the object, rather than found it or changed only its mode
    /// and owner.
    fn put_by_base(&self, target: &AbsPath, facts: &FileFacts) -> bool {
        let observed = self.observed;
        let original = observed.originals.get(target);
        let original = original.and_then(|place| observed.objects.get(place));
        let directory = ObjectKind::Directory;
        let found =
            original.is_some_and(|found| found.kind == directory && facts.kind == directory);
        let found = found || observed.adopted.contains(target);
        let made = observed.made.contains(target) && facts.kind == directory;
        let ours = made || self.steps.ours.contains(target);
        ours && !found && !observed.modes.contains_key(target)
    }

    fn expected(
        &self,
        target: &AbsPath,
        wanted: ObjectKind,
        facts: &FileFacts,
        layout: bool,
    ) -> Option<String> {
        let end = self.observed.link_ends.get(target);
        let leads = end.filter(|end| end.kind == Some(wanted));
        match (leads, wanted, facts.kind) {
            (Some(end), ..) => Some(format!("the path it points to, {}", end.path)),
            (_, ObjectKind::File | ObjectKind::Link, ObjectKind::File | ObjectKind::Link)
                if !layout =>
            {
                Some("overwrite: true, to replace it".to_owned())
            }
            _ => None,
        }
    }
}

/// Whether a link gets another target.
fn is_retargeted(wanted: ObjectKind, step: &PathStep) -> bool {
    wanted == ObjectKind::Link && step.fields.contains(&"target")
}

pub(super) const fn noun(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::File => "a regular file",
        ObjectKind::Directory => "a directory",
        ObjectKind::Link => "a symbolic link",
        ObjectKind::Other => "a device, socket or FIFO",
    }
}

/// A description of the object of another kind that a step replaces; none if the kind does not
/// change.
pub(super) fn replaced(path: &AbsPath, step: &PathStep, observed: &MachineFacts) -> Option<String> {
    let facts = observed.objects.get(path)?;
    let replaces = step.change == ChangeKind::Modify && step.fields.contains(&"kind");
    replaces.then(|| format!("replaces {}", describe(path, facts, observed)))
}

/// Describes an existing object: its kind, how many objects it contains, and its link target.
pub(super) fn describe(path: &AbsPath, facts: &FileFacts, observed: &MachineFacts) -> String {
    match facts.kind {
        ObjectKind::File => format!("a regular file of {} bytes", facts.size),
        ObjectKind::Directory => directory(below(path, observed)),
        ObjectKind::Other => noun(facts.kind).to_owned(),
        ObjectKind::Link => {
            let text = facts.target.as_deref().unwrap_or_default();
            // A link that is not followed ends at itself.
            let end = observed.link_ends.get(path).filter(|end| end.path != *path);
            let end = end.map_or_else(String::new, |LinkEnd { path, kind, below }| {
                let resolved = match path.as_str() == text {
                    true => String::new(),
                    false => format!("{path}, "),
                };
                let what = match kind {
                    None => "which does not exist".to_owned(),
                    Some(ObjectKind::Directory) => directory(below.map(|count| (count, true))),
                    Some(kind) => noun(*kind).to_owned(),
                };
                format!(" ({resolved}{what})")
            });
            format!("a symbolic link to {text}{end}")
        }
    }
}

/// `below`: the number of objects, and whether these are all.
fn directory(below: Option<(usize, bool)>) -> String {
    match below {
        Some((0, true)) => "an empty directory".to_owned(),
        Some((1, true)) => "a directory with 1 object below it".to_owned(),
        Some((count, true)) => format!("a directory with {count} objects below it"),
        Some((count, false)) => format!("a directory with at least {count} objects below it"),
        None => "a directory".to_owned(),
    }
}

/// How many objects are below a listed directory, and whether these are all: longer paths than the system's limit are
/// not looked at.
fn below(directory: &AbsPath, observed: &MachineFacts) -> Option<(usize, bool)> {
    observed.children.get(directory)?;
    let listed = observed.children.range(directory.clone()..);
    let listed = listed.filter(|(path, _)| path.is_under(directory));
    let (mut count, mut all) = (0, true);
    for (path, names) in listed {
        count += names.len();
        all &= names.iter().all(|name| path.join(name).is_ok());
    }
    Some((count, all))
}
