//! Node lifecycle conditions of KEP-5683: under maintenance, draining, drained. True and False
//! describe the current state; Unknown means that it cannot be determined.

use crate::node::DesiredCondition;
use machinist_kube_api::{
    MAX_REASON_BYTES,
    keys::condition::{DRAIN, DRAINED, MAINTENANCE},
    truncate_at_char,
};
use machinist_update::{phase::Phase, reconciler::UpdateReport};

/// Always returns all three, because a client that waits for False must not have to wait for the
/// condition to exist.
pub(super) fn lifecycle(report: &UpdateReport) -> Vec<DesiredCondition> {
    let to = report.config.desired.as_ref();
    let to = to.map_or("an unknown config", |name| name.name.as_str());
    let one = |kind, is: Option<bool>, yes: (&str, String), no: (&str, &str)| {
        let (status, (reason, message)) = match is {
            Some(true) => ("True", yes),
            Some(false) => ("False", (no.0, no.1.to_owned())),
            None => (
                "Unknown",
                ("StateUnknown", "cannot read the journal".to_owned()),
            ),
        };
        DesiredCondition {
            kind,
            status,
            reason: reason.to_owned(),
            message: truncate_at_char(&message, MAX_REASON_BYTES).to_owned(),
            names: Vec::new(),
        }
    };
    let known = |is: bool| (!report.unknown).then_some(is);
    vec![
        one(
            MAINTENANCE,
            known(excludes_remediation(report)),
            ("UpdateInProgress", format!("update to {to} in progress")),
            ("NoMaintenance", "no update in progress that affects pods"),
        ),
        one(
            DRAIN,
            known(report.phase == Phase::Draining),
            ("UpdateInProgress", format!("draining for update to {to}")),
            ("NoDrain", "not draining"),
        ),
        one(
            DRAINED,
            known(is_drained(report)),
            ("DrainCompleted", format!("drained for update to {to}")),
            ("NotDrained", "not drained"),
        ),
    ]
}

/// The node is out of service on purpose, or soon will be. An update that disturbs no pod does not
/// count.
pub(super) fn excludes_remediation(report: &UpdateReport) -> bool {
    report.cordoned.is_some() || report.reboot_needed_in.is_some()
}

/// The drain finished, and no pod was admitted since.
fn is_drained(report: &UpdateReport) -> bool {
    use Phase::*;
    report.cordoned.is_some()
        && match report.phase {
            Drained | Staging | Committing | RunningActions | RebootPending | Booted
            | Verifying => true,
            // A drain preceded every change of the disk; an update that failed earlier may have
            // stopped in the middle of its drain.
            RollingBack | Failed => report.unverified,
            Uncordoning => report.failure.is_none(),
            Idle | Planned | Waiting | Fetching | Cordoned | DisablingDevices | Draining => false,
        }
}
