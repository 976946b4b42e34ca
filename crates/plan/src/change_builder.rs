//! Describes steps as changes: the difference, the reason, and the actions it needs.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Attributes, ChangeKind, FileFacts, MachineFacts, ObjectSummary, PlanChange,
    actions::ActionNeed,
    desired_tree::{DesiredEntry, DesiredTree, ObjectSpec},
    disruption::{ChangeContext, Disruption, DisruptionResolver, RequiredActions},
    kind_replacement,
    os::OsChange,
    steps::{PathAction, PathStep, PathSteps},
    text_diff,
    unit_tree::started_by,
};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::{EntryKind, EntryOrigin};

/// The maximum size in bytes of a text that a diff is shown for, before and after.
const MAX_DIFF_BYTES: usize = 64 * 1024;

/// Builds the changes of one plan.
pub(super) struct ChangeBuilder<'a> {
    pub(super) steps: &'a PathSteps,
    pub(super) after: &'a DesiredTree,
    pub(super) observed: &'a MachineFacts,
    pub(super) judge: DisruptionResolver<'a>,
    /// Paths in users' directories that are the same in both configs.
    pub(super) unchanged: &'a BTreeSet<AbsPath>,
}

impl ChangeBuilder<'_> {
    /// One change with its needs for each entry that differs.
    fn changes(&self) -> Vec<(PlanChange, RequiredActions)> {
        let mut enablement: BTreeMap<&str, Vec<(&AbsPath, &PathStep)>> = BTreeMap::new();
        let mut changes = Vec::with_capacity(self.steps.at.len());
        for (path, step) in &self.steps.at {
            // Housekeeping, such as removing an empty `x.wants`, is not reported as a change.
            if step.fields.is_empty() {
                continue;
            }
            if step.entry.kind == EntryKind::Enablement {
                enablement
                    .entry(&step.entry.name)
                    .or_default()
                    .push((path, step));
            } else {
                changes.push(self.change(path, step));
            }
        }
        changes.extend(
            enablement
                .into_iter()
                .map(|(unit, links)| self.enablement(unit, &links)),
        );
        changes.extend(self.account_changes());
        changes
    }

    fn change(&self, path: &AbsPath, step: &PathStep) -> (PlanChange, RequiredActions) {
        let entry = &step.entry;
        let given = self.judge.machine.unit_at(entry.kind, &entry.name);
        let name = given.as_ref().map_or(&*entry.name, |(_, name)| name);
        let unit = name.split('/').next().unwrap_or_default();
        let starts: Vec<String> = self
            .after
            .starts
            .get(unit)
            .into_iter()
            .flatten()
            .cloned()
            .collect();
        let asked = self
            .after
            .objects
            .get(path)
            .map_or(path, |wanted| &wanted.asked);
        let verdict = self.judge.disruption(ChangeContext {
            kind: entry.kind,
            name: &entry.name,
            change: step.change,
            starts: &starts,
            path: Some(asked),
        });
        let verdict = match self.unchanged.contains(path) {
            true => verdict.without_reboot(),
            false => verdict,
        };
        let before = self.observed.objects.get(path).map(FileFacts::summary);
        let before = before.map(Box::new);
        let after = self.result(path, step).map(Box::new);
        let what = match step.change {
            ChangeKind::Remove if self.lifts_mask(path, entry) => "mask removed".to_owned(),
            ChangeKind::Remove if self.moves_keys(path, entry) => {
                format!("removed from {path}, because sshd reads the keys elsewhere")
            }
            _ => kind_replacement::replaced(path, step, self.observed)
                .unwrap_or_else(|| describe(step)),
        };
        let what = match asked == path {
            true => what,
            false => format!("{what}; actual path {path}"),
        };
        let diff = self.diff(path, step);
        let (change, needed) = change(entry, step.change, &step.fields, &what, verdict);
        let change = PlanChange {
            before,
            after,
            diff,
            ..change
        };
        (change, needed)
    }

    /// The object that the step leaves at its path.
    fn result(&self, path: &AbsPath, step: &PathStep) -> Option<ObjectSummary> {
        match &step.act {
            PathAction::Put(object) => Some(object.summary()),
            PathAction::Metadata(attributes) => {
                let facts = self.observed.objects.get(path);
                facts.map(|facts| facts.with(*attributes).summary())
            }
            PathAction::Copy(place, attributes) => {
                let facts = self.observed.objects.get(place);
                facts.map(|facts| facts.with(*attributes).summary())
            }
            PathAction::Remove => None,
            PathAction::Restore(place) => self.observed.objects.get(place).map(FileFacts::summary),
        }
    }

    /// Whether the config removes a mask, which may be one that no config created.
    fn lifts_mask(&self, path: &AbsPath, entry: &DesiredEntry) -> bool {
        entry.kind == EntryKind::Mask && self.after.absent.contains_key(path)
    }

    /// Whether the config keeps the keys, in a file at another path.
    fn moves_keys(&self, path: &AbsPath, entry: &DesiredEntry) -> bool {
        let keys = entry.kind == EntryKind::SSHKey;
        let mut wanted = self.after.objects.iter();
        keys && wanted.any(|(at, wanted)| {
            at != path && wanted.entry.kind == entry.kind && wanted.entry.name == entry.name
        })
    }

    fn enablement(
        &self,
        unit: &str,
        links: &[(&AbsPath, &PathStep)],
    ) -> (PlanChange, RequiredActions) {
        let put = |step: &PathStep| matches!(step.act, PathAction::Put(_) | PathAction::Restore(_));
        let wanted = self.after.objects.values().any(|wanted| {
            wanted.entry.kind == EntryKind::Enablement && *wanted.entry.name == *unit
        });
        let still = wanted || self.steps.started.contains(unit);
        let kind = match (
            links.iter().any(|(_, step)| put(step)),
            links.iter().all(|(_, step)| put(step)),
        ) {
            (true, true) => ChangeKind::Create,
            (false, _) if !still => ChangeKind::Remove,
            _ => ChangeKind::Modify,
        };
        let starts: Vec<String> = links
            .iter()
            .filter(|(_, step)| put(step))
            .filter_map(|(path, _)| started_by(path))
            .collect();
        let verdict = self.judge.disruption(ChangeContext {
            kind: EntryKind::Enablement,
            name: unit,
            change: kind,
            starts: &starts,
            path: None,
        });
        let names: Vec<String> = links
            .iter()
            .map(|(path, step)| format!("{}{}", if put(step) { '+' } else { '-' }, short(path)))
            .collect();
        let preset = self.after.preset.contains(unit) && kind != ChangeKind::Remove;
        let what = format!(
            "links {}{}",
            names.join(" "),
            // Nothing in the config reads as an order to enable it.
            if preset { ", by the presets" } else { "" }
        );
        let entry = links.first().map_or_else(
            || DesiredEntry::new(EntryKind::Enablement, unit, &EntryOrigin::default()),
            |(_, step)| step.entry.clone(),
        );
        change(&entry, kind, &["enabled"], &what, verdict)
    }

    /// The changes of objects, of users and groups, and of the operating system.
    pub(super) fn all_changes(&self, os: &[OsChange]) -> Vec<(PlanChange, RequiredActions)> {
        let mut changes = self.changes();
        changes.extend(os.iter().map(|change| self.os_change(change)));
        changes
    }

    /// The changes of user and group entries.
    fn account_changes(&self) -> Vec<(PlanChange, RequiredActions)> {
        let told = self.after.accounts.changes.iter().map(|told| {
            let entry = &told.entry;
            let verdict = self.judge.disruption(ChangeContext {
                kind: entry.kind,
                name: &entry.name,
                change: told.change,
                starts: &[],
                path: None,
            });
            change(entry, told.change, &told.fields, &told.what, verdict)
        });
        told.collect()
    }

    /// The change of one part of the operating system.
    fn os_change(&self, os: &OsChange) -> (PlanChange, RequiredActions) {
        let verdict = self.judge.disruption(ChangeContext {
            kind: os.entry.kind,
            name: &os.entry.name,
            change: os.change,
            starts: &[],
            path: None,
        });
        let what = match os.change {
            ChangeKind::Create => "new",
            ChangeKind::Modify => "differs",
            ChangeKind::Remove => "removed from the config",
        };
        change(&os.entry, os.change, &[], what, verdict)
    }

    /// A diff for text that is world-readable before and after.
    fn diff(&self, path: &AbsPath, step: &PathStep) -> Option<String> {
        let PathAction::Put(ObjectSpec::File { content, mode, .. }) = &step.act else {
            return None;
        };
        let (old, facts) = (
            self.observed.texts.get(path)?,
            self.observed.objects.get(path)?,
        );
        let new = std::str::from_utf8(content.bytes()?).ok()?;
        let text = |text: &str| text.len() <= MAX_DIFF_BYTES && !text.contains('\0');
        let public = mode & 0o004 != 0 && facts.mode & 0o004 != 0 && self.is_world_accessible(path);
        (public && text(old) && text(new) && old != new)
            .then(|| text_diff::unified(path.as_str(), old, new))
    }

    fn is_world_accessible(&self, path: &AbsPath) -> bool {
        path.ancestors().all(|above| {
            self.observed
                .objects
                .get(&above)
                .is_none_or(|facts| facts.mode & 0o001 != 0)
        })
    }
}

fn change(
    entry: &DesiredEntry,
    kind: ChangeKind,
    fields: &[&str],
    what: &str,
    verdict: Disruption,
) -> (PlanChange, RequiredActions) {
    let mut why = vec![what.to_owned()];
    why.extend(verdict.why);
    why.dedup();
    let mut actions: Vec<String> = verdict.needs.iter().map(ActionNeed::to_string).collect();
    actions.dedup();
    let change = PlanChange {
        kind: entry.kind,
        name: entry.name.to_string(),
        change: kind,
        fields: fields.iter().map(|field| (*field).to_owned()).collect(),
        before: None,
        after: None,
        diff: None,
        actions,
        policy: verdict.policy,
        why: why.join("; "),
    };
    let needed = RequiredActions {
        needs: verdict.needs,
        warnings: verdict.warnings,
    };
    (change, needed)
}

/// A sentence about the change of the object.
fn describe(step: &PathStep) -> String {
    match (step.change, &step.act) {
        (_, PathAction::Restore(_)) => {
            "removed from the config; the original is restored".to_owned()
        }
        (ChangeKind::Create, PathAction::Put(ObjectSpec::Hard { target, .. })) => {
            format!("new hard link to {target}")
        }
        (_, PathAction::Put(ObjectSpec::Hard { target, .. })) => {
            format!("replaced by a hard link to {target}")
        }
        (ChangeKind::Modify, PathAction::Put(ObjectSpec::File { .. }))
            if step.fields == ["target"] =>
        {
            "hard link replaced by a separate file".to_owned()
        }
        (_, PathAction::Copy(..)) => {
            "contents removed from the config; the original contents are restored".to_owned()
        }
        (ChangeKind::Create, _) => "new".to_owned(),
        (ChangeKind::Remove, PathAction::Metadata(_)) if step.entry.kind == EntryKind::File => {
            format!(
                "removed from the config; original {} restored",
                step.fields.join(" and ")
            )
        }
        (ChangeKind::Remove, PathAction::Metadata(Attributes { mode, uid, gid })) => {
            format!(
                "removed from the config; the directory stays with mode {mode:04o} and owner {uid}:{gid}"
            )
        }
        (ChangeKind::Remove, _) => "removed from the config".to_owned(),
        (ChangeKind::Modify, _) => differs(&step.fields),
    }
}

fn differs(fields: &[&str]) -> String {
    let verb = if fields.len() == 1 {
        "differs"
    } else {
        "differ"
    };
    format!("{} {verb}", fields.join(" and "))
}

/// The path of a link relative to the unit directory.
fn short(path: &AbsPath) -> &str {
    path.as_str()
        .strip_prefix("/etc/systemd/system/")
        .unwrap_or(path.as_str())
}
