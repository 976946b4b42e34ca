//! What an administrator can do about the holds and conditions of a pool.

use machinist_kube_api::keys;
use machinist_pool::HoldReason;

/// What an administrator can do about a hold.
pub(super) fn hold_advice(reason: HoldReason, pool: &str) -> String {
    let resume = format!("machinist resume --pool {pool}");
    let pool_edit = format!("kubectl edit mcp {pool}");
    match reason {
        HoldReason::FirstRollout | HoldReason::Paused => resume,
        HoldReason::StartDeadlineMissed => format!("to start it nevertheless: {resume}"),
        HoldReason::StoppedAfterFailures | HoldReason::CanaryFailed => format!(
            "fix the nodes or the config; then {resume}, or return to an earlier config: machinist rollback --pool {pool}"
        ),
        HoldReason::SettingsInvalid | HoldReason::LimitInvalid | HoldReason::LimitAboveQuorum => {
            format!("correct the value: {pool_edit}")
        }
        HoldReason::ConfigMissing => {
            format!("create the config again, or remove the pin: {resume}")
        }
        HoldReason::SlotsHeldByFailures => {
            format!(
                "fix the nodes; a new config reaches them, too: machinist rollback --pool {pool}"
            )
        }
        HoldReason::AllBlocked => {
            "scale the workloads up, or change their disruption budgets".to_owned()
        }
        HoldReason::NodesNotEligible | HoldReason::NodesUnavailable => {
            "repair or uncordon the nodes; for each one: machinist explain --node NODE".to_owned()
        }
        HoldReason::NodesSkipped => {
            "wait for the next config, or end it: machinist skip NODE --undo".to_owned()
        }
        HoldReason::OtherGrantor => {
            "run only one controller: remove the named object or machinist's controller".to_owned()
        }
        HoldReason::GrantsUnreadable | HoldReason::GrantsNotKept => {
            "find out which client or webhook changes the annotation".to_owned()
        }
        HoldReason::NoConfig => {
            "see the condition RenderDegraded and the pool's selector".to_owned()
        }
        HoldReason::GateClosed => format!(
            "find out why the pods of the named budgets are not ready; {} limits the wait",
            keys::pool_annotation::BUDGET_RECOVERY_TIMEOUT
        ),
        HoldReason::NotYetDue => format!(
            "wait for that time, or change it: kubectl -n {} edit upgradeconfig {}",
            keys::UPGRADE_NAMESPACE,
            keys::UPGRADE_CONFIG
        ),
        HoldReason::OutsideWindow
        | HoldReason::CanaryInProgress
        | HoldReason::CanarySoaking
        | HoldReason::WaitingForControlPlane
        | HoldReason::GrantsFull => "wait".to_owned(),
    }
}

/// What an administrator can do about a condition of a pool; empty if nothing is advised.
pub(super) fn condition_advice(kind: &str) -> &'static str {
    match kind {
        "RenderDegraded" => {
            "correct the named MachineConfig; until then the pool keeps its last config"
        }
        "NotCarriedOut" => "remove the fields; the rollout proceeds without them",
        "WindowTooShort" => "lengthen the maintenance windows of the pool or of its agents",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::advised_commands::check;

    #[test]
    fn every_advice_about_a_hold_names_commands_that_exist() {
        for reason in HoldReason::ALL {
            let advice = hold_advice(*reason, "worker");
            assert!(!advice.is_empty());
            check(&advice);
        }
        let skipped = hold_advice(HoldReason::NodesSkipped, "worker");
        assert!(skipped.contains("machinist skip NODE --undo"));
    }
}
