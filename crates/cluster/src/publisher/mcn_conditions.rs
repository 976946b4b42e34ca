//! Derives the conditions of a MachineConfigNode from the phase of the update.

use jiff::Timestamp;

use machinist_kube_api::{
    MAX_REASON_BYTES, NOT_YET_REASON, NodeCondition, NodeConditionKind as Kind, Progress,
    truncate_at_char,
};
use machinist_update::{phase::Phase, reconciler::UpdateReport};

/// All conditions in their order. `degraded` is the reason if the node is degraded. `before` holds
/// the previous conditions: transition times are kept while a status is unchanged, and steps that
/// were reached before a rollback stay visible.
pub fn conditions(
    report: &UpdateReport,
    settled: bool,
    degraded: Option<&str>,
    before: &[NodeCondition],
    now: Timestamp,
) -> Vec<NodeCondition> {
    let is_true = |kind: Kind| {
        let mut known = before.iter();
        known.any(|it| it.kind == kind.as_str() && it.status == Progress::True)
    };
    // The boot is verified, so the report no longer names it; the reboot still belongs to this
    // update.
    let proven = report.phase == Phase::Uncordoning && is_true(Kind::RebootedNode);
    let one = |kind: &Kind| {
        let known = before.iter().find(|it| it.kind == kind.as_str());
        let status = match (kind, degraded) {
            (Kind::NodeDegraded, Some(_)) => Progress::True,
            (Kind::NodeDegraded, None) => Progress::False,
            (Kind::Updated, _) if settled => Progress::True,
            (Kind::Updated, _) => Progress::False,
            _ if settled => Progress::False,
            _ => of(*kind, report, known.map(|it| it.status), proven),
        };
        let since = known.filter(|it| it.status == status);
        NodeCondition {
            kind: kind.as_str().to_owned(),
            status,
            reason: match status {
                Progress::False => NOT_YET_REASON,
                Progress::True | Progress::Unknown => kind.reason(),
            }
            .to_owned(),
            message: words(*kind, status, report, degraded),
            last_transition_time: since.map_or(now, |it| it.last_transition_time),
        }
    };
    Kind::ALL.iter().map(one).collect()
}

/// Progress of one step of the running update.
fn of(kind: Kind, report: &UpdateReport, known: Option<Progress>, proven: bool) -> Progress {
    // A step before the current phase is done; a step that this update does not include is not.
    let place = match report.phase {
        Phase::Idle | Phase::Planned => 0,
        Phase::Waiting | Phase::Fetching => 1,
        Phase::Cordoned => 2,
        Phase::DisablingDevices | Phase::Draining => 3,
        Phase::Drained => 4,
        Phase::Staging | Phase::Committing => 5,
        Phase::RunningActions => 6,
        Phase::RebootPending => 7,
        Phase::Booted | Phase::Verifying => 8,
        Phase::Uncordoning if report.failure.is_none() => 9,
        // During a rollback, completed steps keep their status and no step is in progress.
        Phase::Uncordoning | Phase::RollingBack | Phase::Failed => {
            return match known {
                Some(Progress::True) => Progress::True,
                _ => Progress::False,
            };
        }
    };
    let drains = report.cordoned.is_some();
    let rebooted =
        proven || report.reboot_needed_in.is_some() && report.reboot_needed_in != report.boot;
    // The phase at which the step starts, the phase at which it is done, and whether the update
    // includes it.
    let (begins, ends, applies) = match kind {
        Kind::UpdatePrepared => (1, 1, true),
        Kind::UpdateExecuted => (2, 6, true),
        Kind::Cordoned => (3, 3, drains),
        Kind::Drained => (3, 4, drains),
        Kind::AppliedFilesAndOS => (5, 6, true),
        Kind::UpdatePostActionComplete => (6, 8, !rebooted && place != 7),
        Kind::RebootedNode => (7, 8, rebooted || place == 7),
        Kind::Resumed => (9, 9, true),
        Kind::UpdateComplete => (9, 9, true),
        Kind::Uncordoned => (9, 10, drains),
        Kind::Updated | Kind::NodeDegraded => return Progress::False,
    };
    match () {
        () if !applies || place < begins => Progress::False,
        () if place < ends => Progress::Unknown,
        () => Progress::True,
    }
}

fn words(kind: Kind, status: Progress, report: &UpdateReport, degraded: Option<&str>) -> String {
    if kind == Kind::NodeDegraded {
        let said = degraded.unwrap_or("no update failure");
        return truncate_at_char(said, MAX_REASON_BYTES).to_owned();
    }
    if kind == Kind::Drained && status == Progress::Unknown && !report.blockers.is_empty() {
        let named = report.blockers.iter();
        let named = named.map(|it| format!("{}: {}", it.full_name(), it.message));
        let named = named.collect::<Vec<_>>().join("; ");
        return truncate_at_char(&named, MAX_REASON_BYTES).to_owned();
    }
    let desired = report.config.desired.as_ref();
    let to = desired.map_or("", |it| it.name.as_str());
    match status {
        Progress::True => format!("{to}: done"),
        Progress::Unknown => format!("{to}: in progress"),
        Progress::False => "not started in this update".to_owned(),
    }
}
