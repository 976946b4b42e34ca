//! The conditions of a MachineConfigNode beside what was written last and what the Node names.

use crate::{
    clock::Clock,
    crd::{MachineConfigNodeStatus, NOT_YET, NodeCondition, NodeConditionKind, Progress},
};

/// The status for the config that the Node names: the report names it only when the config is read, and until then it
/// is about another one.
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
        NOT_YET.clone_into(&mut condition.reason);
        condition.message = format!("{desired} is desired and not read yet");
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

/// A status that is as it was has been so since then, also over a start of the agent.
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
