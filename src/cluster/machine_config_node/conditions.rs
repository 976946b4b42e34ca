//! Adjusts the conditions of a MachineConfigNode to the last written ones and to the Node's desired
//! config.

use crate::{
    clock::Clock,
    kube_api::{
        MachineConfigNodeStatus, NOT_YET_REASON, NodeCondition, NodeConditionKind, Progress,
    },
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
    condition.kind == NodeConditionKind::Updated.as_str() && condition.status == Progress::True
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
