//! Adjusts the conditions of a MachineConfigNode to the last written ones and to the Node's desired
//! config.

use machinist_base::clock::Clock;
use machinist_kube_api::{
    MachineConfigNodeStatus, NOT_YET_REASON, NodeCondition, NodeConditionKind as Kind,
    NodeImageSetStatus, Progress,
};

/// The status for the desired config of the Node. The report names that config only after it is
/// read, and until then describes another one.
pub(super) fn for_the_desired(
    mut status: MachineConfigNodeStatus,
    desired: Option<&str>,
    clock: &Clock,
) -> MachineConfigNodeStatus {
    let (Some(version), Some(desired)) = (&mut status.config_version, desired) else {
        return status;
    };
    if version.desired == desired {
        return status;
    }
    desired.clone_into(&mut version.desired);
    let now = clock.now();
    for condition in status
        .conditions
        .iter_mut()
        .filter(|it| is_true_updated(it))
    {
        condition.status = Progress::False;
        NOT_YET_REASON.clone_into(&mut condition.reason);
        condition.message = format!("the desired config {desired} was not read yet");
        condition.last_transition_time = now;
    }
    status
}

fn is_true_updated(condition: &NodeCondition) -> bool {
    condition.kind == Kind::Updated.as_str() && condition.status == Progress::True
}

/// The status between `known`, the last written one, and `next`, in which the update has ended: all steps of the
/// update are done. The last steps may take less time than a write, and each step has to be seen. None if they were
/// written, or if no update has ended.
pub(super) fn completed(
    known: &MachineConfigNodeStatus,
    next: &MachineConfigNodeStatus,
) -> Option<MachineConfigNodeStatus> {
    let desired = |status: &MachineConfigNodeStatus| {
        let version = status.config_version.as_ref();
        version.map(|version| version.desired.clone())
    };
    let last = |kind: Kind| {
        let mut all = known.conditions.iter();
        let condition = all.find(|it| it.kind == kind.as_str());
        condition.map(|condition| condition.status)
    };
    let began = last(Kind::AppliedFilesAndOS).is_some_and(|status| status != Progress::False);
    let resumed = last(Kind::Resumed).is_none_or(|status| status == Progress::True);
    let ends = is_updated(next) && !is_updated(known) && desired(known) == desired(next);
    if !ends || !began || resumed {
        return None;
    }
    let updated = next.conditions.iter().find(|it| is_true_updated(it))?;
    let cordoned = last(Kind::Cordoned) == Some(Progress::True);
    let mut status = known.clone();
    status.config_version.clone_from(&next.config_version);
    for kind in Kind::ALL {
        let mut all = status.conditions.iter_mut();
        let Some(condition) = all.find(|it| it.kind == kind.as_str()) else {
            continue;
        };
        let is_done = match kind {
            Kind::Resumed | Kind::UpdateComplete => true,
            Kind::Uncordoned => cordoned,
            Kind::Updated | Kind::NodeDegraded => false,
            _ => condition.status == Progress::Unknown,
        };
        if is_done && condition.status != Progress::True {
            condition.status = Progress::True;
            kind.reason().clone_into(&mut condition.reason);
            condition.message = format!("{}: done", desired(next).unwrap_or_default());
            condition.last_transition_time = updated.last_transition_time;
        }
    }
    let now = next.conditions.iter().find(|it| is_degraded(it));
    let mut all = status.conditions.iter_mut();
    if let (Some(known), Some(now)) = (all.find(|it| is_degraded(it)), now) {
        known.clone_from(now);
    }
    Some(status)
}

/// The status `known` without the sets of images that were created again, if `next` has any: the API server accepts a
/// lower generation only in a new entry.
pub(super) fn without_reset_sets(
    known: &MachineConfigNodeStatus,
    next: &MachineConfigNodeStatus,
) -> Option<MachineConfigNodeStatus> {
    let mut status = known.clone();
    let is_kept = |before: &NodeImageSetStatus| {
        let mut sets = next.pinned_image_sets.iter();
        !sets.any(|set| set.is_reset_since(before))
    };
    status.pinned_image_sets.retain(is_kept);
    (status != *known).then_some(status)
}

fn is_degraded(condition: &NodeCondition) -> bool {
    condition.kind == Kind::NodeDegraded.as_str()
}

pub(super) fn is_updated(status: &MachineConfigNodeStatus) -> bool {
    status.conditions.iter().any(is_true_updated)
}

/// Keeps `lastTransitionTime` of conditions whose status is unchanged, also across restarts of the
/// agent.
pub(super) fn keep_times(
    status: &mut MachineConfigNodeStatus,
    known: Option<&MachineConfigNodeStatus>,
) {
    let known = known.map_or(&[][..], |known| &known.conditions);
    for condition in &mut status.conditions {
        let same = known
            .iter()
            .find(|it| it.kind == condition.kind && it.status == condition.status);
        if let Some(same) = same {
            condition.last_transition_time = same.last_transition_time;
        }
    }
}
