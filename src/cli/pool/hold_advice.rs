//! What an administrator can do about the holds and conditions of a pool.

use machinist_kube_api::keys;
use machinist_pool::HoldReason;

/// What an administrator can do about a hold of a pool, which may be pinned to a config.
pub(super) fn hold_advice(reason: HoldReason, pool: &str, pin: Option<&str>) -> String {
    let resume = resume_command(reason, pool, pin);
    let pool_edit = format!("kubectl edit mcp {pool}");
    match reason {
        HoldReason::FirstRollout | HoldReason::Paused => resume,
        HoldReason::StartDeadlineMissed => format!("to start it nevertheless: {resume}"),
        HoldReason::StoppedAfterFailures | HoldReason::CanaryFailed => match pin {
            None => format!(
                "fix the nodes or the config; then {resume}, or return to an earlier config: machinist rollback --pool {pool}"
            ),
            Some(_) => format!("fix the nodes; then {resume}"),
        },
        HoldReason::SettingsInvalid | HoldReason::LimitInvalid | HoldReason::LimitAboveQuorum => {
            format!("correct the value: {pool_edit}")
        }
        HoldReason::ConfigMissing => {
            format!("create the config again, or remove the pin: machinist resume --pool {pool}")
        }
        HoldReason::SlotsHeldByFailures => {
            format!(
                "fix the nodes; a new config reaches them, too: machinist rollback --pool {pool}"
            )
        }
        HoldReason::AllBlocked => {
            "change the named disruption budgets, or scale up the workloads of those that require a number of available pods".to_owned()
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

/// The command that starts the rollout. `resume` ends a pin: it would roll out the newest config, from which the pool was
/// rolled back.
fn resume_command(reason: HoldReason, pool: &str, pin: Option<&str>) -> String {
    let resume = format!("machinist resume --pool {pool}");
    let unpause = match reason {
        HoldReason::Paused => " --unpause",
        _ => "",
    };
    match pin {
        None => resume,
        Some(pin) => format!(
            "machinist rollback --pool {pool} --to {pin}{unpause}, or for the newest config: {resume}"
        ),
    }
}

/// What an administrator can do about a condition of a pool; empty if nothing is advised.
pub(super) fn condition_advice(kind: &str) -> &'static str {
    match kind {
        "RenderDegraded" => {
            "correct the named MachineConfig, or what makes the API server refuse it; until then the pool keeps its last config"
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
            for pin in [None, Some("rendered-worker-1")] {
                let advice = hold_advice(*reason, "worker", pin);
                assert!(!advice.is_empty());
                check(&advice);
            }
        }
        let pinned = hold_advice(HoldReason::Paused, "worker", Some("rendered-worker-1"));
        assert!(
            pinned.contains("--to rendered-worker-1 --unpause"),
            "{pinned}"
        );
        let skipped = hold_advice(HoldReason::NodesSkipped, "worker", None);
        assert!(skipped.contains("machinist skip NODE --undo"));
    }
}
