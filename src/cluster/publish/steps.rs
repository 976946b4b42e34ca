//! The conditions of a MachineConfigNode, from the phase of the update.

use jiff::Timestamp;

use crate::{
    crd::{NOT_YET, NodeCondition, NodeConditionKind as Kind, Progress, REASON_LIMIT, cut},
    update::{phase::Phase, run::UpdateReport},
};

/// All conditions in their order. `degraded` is why the node is, `before` what was said last: times
/// stay while a status does, and what was reached before an undo stays visible.
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
    // The boot is proven, so that the report names it no longer; it stays a part of this update.
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
                Progress::False => NOT_YET,
                Progress::True | Progress::Unknown => kind.reason(),
            }
            .to_owned(),
            message: words(*kind, status, report, degraded),
            last_transition_time: since.map_or(now, |it| it.last_transition_time),
        }
    };
    Kind::ALL.iter().map(one).collect()
}

/// How far a step is in an update that goes on.
fn of(kind: Kind, report: &UpdateReport, known: Option<Progress>, proven: bool) -> Progress {
    // Where a phase is beyond a step, the step is done; steps that this update does not have are not.
    let place = match report.phase {
        Phase::Idle | Phase::Planned => 0,
        Phase::Waiting => 1,
        Phase::Cordoned => 2,
        Phase::Withholding | Phase::Draining => 3,
        Phase::Drained => 4,
        Phase::Staging | Phase::Committing => 5,
        Phase::Acting => 6,
        Phase::RebootPending => 7,
        Phase::Booted | Phase::Verifying => 8,
        Phase::Uncordoning if report.failure.is_none() => 9,
        // On the way back the steps that were reached stay as they were; nothing goes on.
        Phase::Uncordoning | Phase::Undoing | Phase::Failed => {
            return match known {
                Some(Progress::True) => Progress::True,
                _ => Progress::False,
            };
        }
    };
    let drains = report.cordoned.is_some();
    let rebooted =
        proven || report.reboot_needed_in.is_some() && report.reboot_needed_in != report.boot;
    // From which place on it is under way, and from which on it is done.
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
        let said = degraded.unwrap_or("the last update did not fail");
        return cut(said, REASON_LIMIT).to_owned();
    }
    if kind == Kind::Drained && status == Progress::Unknown && !report.blockers.is_empty() {
        let named = report.blockers.iter();
        let named = named.map(|it| format!("{}: {}", it.place(), it.message));
        let named = named.collect::<Vec<_>>().join("; ");
        return cut(&named, REASON_LIMIT).to_owned();
    }
    let desired = report.config.desired.as_ref();
    let to = desired.map_or("", |it| it.name.as_str());
    match status {
        Progress::True => format!("{to}: done"),
        Progress::Unknown => format!("{to}: under way"),
        Progress::False => "not in this update yet".to_owned(),
    }
}
