//! Refuses operations that this host cannot carry out, all at once and before anything is changed.

use std::collections::BTreeSet;

use super::{
    Capabilities, MachineFacts, NewObject, NodeKind, Operation, OperationKind,
    disk_space::{self, STATE_DIR},
    kind_replacement::KindReplacement,
    machine_facts::FileFacts,
    object::ObjectKind,
    recovery_units,
    steps::PathSteps,
};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::{EntryOrigin, Refusal};

/// The maximum number of operations of one update. Each is a record of a few hundred bytes in a journal that is
/// rewritten as a whole several times; MachineConfigs of a cluster contain at most some thousand files (etcd limits
/// objects to 1.5 MiB).
const MAX_OPERATIONS: usize = 50_000;

/// The refusals of this host for `operations`.
pub(super) fn refusals(
    operations: &[Operation],
    kinds: &KindReplacement<'_>,
    capabilities: Capabilities,
) -> Vec<Refusal> {
    let KindReplacement {
        steps, observed, ..
    } = *kinds;
    let mut found = Vec::new();
    if capabilities.live && !capabilities.chown && !operations.is_empty() {
        found.push(Refusal::new(
            Reason::PermissionMissing,
            "CAP_CHOWN missing: cannot set file owners, which is required on a running machine",
        ));
    }
    if operations.len() > MAX_OPERATIONS {
        let message = format!(
            "the update has {} operations, more than {MAX_OPERATIONS}",
            operations.len()
        );
        found.push(Refusal::new(Reason::ValueInvalid, message));
    }
    let busy = steps.busy();
    let mount_points = mount_points(observed);
    for operation in operations {
        if let OperationKind::Restore(place) = &operation.kind
            && !observed.objects.contains_key(place)
        {
            let target = &operation.target;
            let message = format!("cannot restore the original of {target}: {place} not found");
            let refusal = Refusal::new(Reason::MountMissing, message);
            found.push(refusal.expected("its file system to be mounted"));
        }
        let host = HostChecks {
            operation,
            steps,
            observed,
            mount_points: &mount_points,
        };
        found.extend(host.mount_point_refusal());
        let refusal = host.own_state();
        let refusal = refusal.or_else(|| kinds.refusal(&operation.target));
        found.extend(refusal.or_else(|| host.foreign_content(&busy)));
        found.extend(host.other_names());
    }
    found.extend(disk_space::refusals(operations, observed));
    if capabilities.live && !operations.is_empty() {
        found.extend(recovery_units::missing(observed));
        found.extend(recovery_units::touched(steps));
    }
    found
}

/// Why an operation cannot be carried out on the existing object at its target; none if it can.
pub(super) fn obstacle(
    operation: &Operation,
    steps: &PathSteps,
    observed: &MachineFacts,
    (busy, mount_points): (&BTreeSet<AbsPath>, &[&AbsPath]),
) -> Option<Refusal> {
    let host = HostChecks {
        operation,
        steps,
        observed,
        mount_points,
    };
    host.mount_point_refusal()
        .or_else(|| host.foreign_content(busy))
        .or_else(|| host.other_names())
}

pub(super) fn mount_points(observed: &MachineFacts) -> Vec<&AbsPath> {
    let objects = observed.objects.iter();
    let mount_points = objects.filter(|(_, facts)| facts.mount_point);
    mount_points.map(|(path, _)| path).collect()
}

struct HostChecks<'a> {
    operation: &'a Operation,
    steps: &'a PathSteps,
    observed: &'a MachineFacts,
    mount_points: &'a [&'a AbsPath],
}

impl HostChecks<'_> {
    fn refuse(&self, reason: Reason, message: String) -> Refusal {
        let origin = origin_of(self.steps, &self.operation.target);
        Refusal::new(reason, message).at(&origin)
    }

    fn facts(&self) -> Option<&FileFacts> {
        self.observed.objects.get(&self.operation.target)
    }

    fn in_place(&self) -> bool {
        matches!(self.operation.kind, OperationKind::Metadata(_))
    }

    fn mount_point_refusal(&self) -> Option<Refusal> {
        let target = &self.operation.target;
        if *target == AbsPath::root() && !self.in_place() {
            return Some(self.refuse(
                Reason::TargetIsMountPoint,
                "the root directory cannot be replaced".into(),
            ));
        }
        // A file that is itself a mount point has no space for staging, even for a change in place.
        let stays = |facts: &FileFacts| self.in_place() && facts.kind == ObjectKind::Directory;
        let mounted = |facts: &&FileFacts| facts.mount_point && !stays(facts);
        if self.facts().filter(mounted).is_some() {
            return Some(self.refuse(
                Reason::TargetIsMountPoint,
                format!("{target} is a mount point and cannot be replaced or removed"),
            ));
        }
        if let Some(inside) = self.mount_below() {
            return Some(self.refuse(
                Reason::TargetIsMountPoint,
                format!(
                    "{inside} is a mount point below {target}, which is to be replaced or removed"
                ),
            ));
        }
        if let Some(refusal) = self.on_mount() {
            return Some(refusal);
        }
        let holder = target
            .parent()
            .and_then(|parent| self.observed.objects.get_key_value(&parent));
        let own = self.observed.objects.get_key_value(target);
        let fixed = own
            .into_iter()
            .chain(holder.filter(|_| !self.in_place()))
            .find(|(_, facts)| facts.immutable)?;
        Some(self.refuse(
            Reason::Immutable,
            format!(
                "{} is immutable or append-only (lsattr), so {target} cannot be changed",
                fixed.0
            ),
        ))
    }

    /// The restriction of the mount that holds the target.
    fn on_mount(&self) -> Option<Refusal> {
        let target = &self.operation.target;
        let top = self.observed.nearest(target)?.1.mount.clone();
        let mount = self.observed.mounts.get(&top)?;
        if mount.read_only {
            let message = format!("{target} is on {top}, which is mounted read-only");
            return Some(self.refuse(Reason::ReadOnly, message));
        }
        (!mount.staging).then(|| {
            let message = format!(
                "{target} is on {top}, where machinist cannot create its staging directory"
            );
            self.refuse(Reason::PermissionMissing, message)
                .expected("a file system whose top directory belongs to root")
        })
    }

    fn mount_below(&self) -> Option<&AbsPath> {
        let target = &self.operation.target;
        let directory = self
            .facts()
            .is_some_and(|facts| facts.kind == ObjectKind::Directory);
        if self.in_place() || !directory {
            return None;
        }
        self.mount_points
            .iter()
            .copied()
            .find(|path| path.is_under(target))
    }

    fn own_state(&self) -> Option<Refusal> {
        let (target, state) = (&self.operation.target, AbsPath::new(STATE_DIR).ok()?);
        let near = state.is_under(target) || target.is_under(&state);
        (near && self.facts().is_some() && !self.in_place()).then(|| {
            let message = format!("{target} contains machinist's own state");
            self.refuse(Reason::ForeignContent, message)
        })
    }

    fn foreign_content(&self, busy: &BTreeSet<AbsPath>) -> Option<Refusal> {
        let (target, facts) = (&self.operation.target, self.facts()?);
        if self.in_place() {
            return None;
        }
        if facts.kind == ObjectKind::Link
            && self.is_directory()
            && !self.ours()
            && self.leads_to_directory()
        {
            return Some(
                self.refuse(
                    Reason::ForeignContent,
                    format!(
                        "{target} is a symbolic link \
                 to a directory, which this config would replace with a directory"
                    ),
                )
                .expected(format!(
                    "the path it points to, {}",
                    facts.target.as_deref().unwrap_or_default()
                )),
            );
        }
        if facts.kind != ObjectKind::Directory {
            return None;
        }
        if !self.steps.empties(target, self.observed, busy) {
            return Some(self.refuse(
                Reason::ForeignContent,
                format!("{target} is a directory with files that are not in this config"),
            ));
        }
        (self.observed.is_on_overlay(target) && !self.ours()).then(|| {
            self.refuse(Reason::ForeignContent, format!("{target} is a directory of an overlay's lower layer and can be neither replaced nor removed"))
        })
    }

    /// Mode and owner belong to the file and not to its name: changing them would affect its other names as well.
    fn other_names(&self) -> Option<Refusal> {
        let target = &self.operation.target;
        let names = self.steps.shared_names(target, self.observed);
        let names = names.filter(|_| self.in_place())?;
        let message = format!(
            "{target} is one of {names} hard links to a file, and the others would get its mode and owner"
        );
        let refusal = self.refuse(Reason::DuplicateTarget, message);
        Some(refusal.expected("a file with a single link, or contents"))
    }

    fn is_directory(&self) -> bool {
        matches!(
            &self.operation.kind,
            OperationKind::Put(NewObject {
                kind: NodeKind::Directory(_),
                ..
            })
        )
    }

    /// Whether the base config had an object here, or machinist created a directory for it.
    fn ours(&self) -> bool {
        let target = &self.operation.target;
        let directory = |facts: &FileFacts| facts.kind == ObjectKind::Directory;
        let made = self.observed.made.contains(target) && self.facts().is_some_and(directory);
        made || self.steps.ours.contains(target)
    }

    fn leads_to_directory(&self) -> bool {
        let target = &self.operation.target;
        let text = self
            .facts()
            .and_then(|facts| facts.target.as_deref())
            .unwrap_or_default();
        let end = super::enablement::resolve(target, text);
        self.observed
            .objects
            .get(&end)
            .is_some_and(|facts| facts.kind == ObjectKind::Directory)
    }
}

/// Whether the path belongs to machinist's own state.
pub(super) fn is_state(path: &AbsPath) -> bool {
    AbsPath::new(STATE_DIR).is_ok_and(|state| path.is_under(&state))
}

/// The origin of the config entry that caused an operation.
fn origin_of(steps: &PathSteps, target: &AbsPath) -> EntryOrigin {
    let own = steps.at.get(target);
    let below = || {
        steps
            .at
            .iter()
            .find(|(path, _)| path.is_under(target))
            .map(|(_, step)| step)
    };
    own.or_else(below)
        .map(|step| step.entry.origin.clone())
        .unwrap_or_default()
}
