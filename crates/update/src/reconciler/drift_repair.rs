//! Repairs drift if the settings request it: one path at a time, through the same transaction as an update, and
//! with a rate limit, so that machinist and another writer do not fight without end.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use super::{Reconciler, ReconcilerHooks};
use crate::{
    phase::{Phase, PhaseEvent},
    service_port::Services,
};
use machinist_base::abs_path::AbsPath;
use machinist_plan::{ActionKind, Plan};

/// Maximum number of repairs of one path within [`REPAIR_WINDOW`]. An administrator who edits the file twice notices the
/// repairs; a program that keeps rewriting it wins after that, and the log shows it.
const MAX_REPAIRS: usize = 3;
/// See [`MAX_REPAIRS`].
const REPAIR_WINDOW: Duration = Duration::from_secs(600);

/// The times of repairs by path.
#[derive(Debug, Default)]
pub(super) struct RepairLog {
    times: BTreeMap<AbsPath, VecDeque<Instant>>,
    /// The paths whose suspension is logged, with the time at which it ends.
    reported: BTreeMap<AbsPath, Instant>,
}

impl RepairLog {
    /// Returns when `path` may be repaired; `None` means now.
    pub(super) fn due(&mut self, path: &AbsPath, now: Instant) -> Option<Instant> {
        let times = self.times.get_mut(path)?;
        while times
            .front()
            .is_some_and(|then| *then + REPAIR_WINDOW <= now)
        {
            times.pop_front();
        }
        let full = times.len() >= MAX_REPAIRS;
        times
            .front()
            .filter(|_| full)
            .map(|oldest| *oldest + REPAIR_WINDOW)
    }

    pub(super) fn count(&mut self, path: &AbsPath, now: Instant) {
        self.times.entry(path.clone()).or_default().push_back(now);
    }

    /// Returns the paths whose repair is suspended.
    pub(super) fn suspended(&self, now: Instant) -> impl Iterator<Item = &AbsPath> {
        let reported = self.reported.iter();
        let suspended = reported.filter(move |(_, until)| **until > now);
        suspended.map(|(path, _)| path)
    }

    /// Returns whether this suspension is new, and records that it is logged.
    pub(super) fn report_suspension(&mut self, path: &AbsPath, until: Instant) -> bool {
        self.reported.insert(path.clone(), until) != Some(until)
    }
}

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Begins the repair of the next drifted path, if there is one.
    pub(super) fn next_repair(&mut self) -> Option<PhaseEvent> {
        // Any other desired config comes first, and repairs drift on its way.
        let idle = self.progress.phase() == Phase::Idle && self.journal.transactions.is_empty();
        let blocked = self.desired.is_blocked();
        if !idle || blocked || !self.is_base_desired() {
            return None;
        }
        let desired = self.desired.current();
        // A file comes before its hard links.
        let is_hard_link = |path: &AbsPath| {
            let link = desired
                .config()
                .and_then(|(config, _)| config.links.get(path));
            link.is_some_and(|link| link.hard)
        };
        let handling = &self.options.current().drift;
        let suspended = self.drift.suspended_repairs();
        let path = self.drift.next_repair(handling, is_hard_link);
        if self.drift.suspended_repairs() != suspended {
            self.publish();
        }
        let path = path?;
        tracing::info!(%path, "repairing drift (drift.paths or drift.default)");
        self.plan.begin_repair(path);
        Some(PhaseEvent::Desired)
    }

    /// Returns the event, or the one that ends a repair which cannot be planned.
    pub(super) const fn event_for_repair(&self, event: PhaseEvent) -> PhaseEvent {
        let is_planning = matches!(self.progress.phase(), Phase::Planned | Phase::Waiting);
        match event {
            PhaseEvent::StepFailed if is_planning && self.plan.is_repair() => PhaseEvent::Withdrawn,
            event => event,
        }
    }
}

/// Removes the reboot from a plan that repairs one path: the machine has already booted with the repaired content.
pub(super) fn without_reboot(plan: &mut Plan) {
    let reboots = |kind| matches!(kind, ActionKind::Reboot | ActionKind::SoftReboot);
    plan.actions.retain(|action| !reboots(action.kind));
    plan.cost = machinist_plan::cost(&plan.actions);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_repaired_three_times_in_ten_minutes_and_then_has_to_wait() {
        let path: AbsPath = "/etc/x".parse().unwrap();
        let (mut repairs, start) = (RepairLog::default(), Instant::now());
        let minute = |count: u64| start + Duration::from_secs(60 * count);
        for at in 0..3 {
            assert_eq!(repairs.due(&path, minute(at)), None, "{at}");
            repairs.count(&path, minute(at));
        }
        assert_eq!(repairs.due(&path, minute(3)), Some(minute(10)));
        let mut report = |until| repairs.report_suspension(&path, minute(until));
        assert_eq!([10, 10, 11].map(&mut report), [true, false, true]);
        assert_eq!(repairs.due(&"/etc/y".parse().unwrap(), minute(3)), None);
        assert_eq!(repairs.due(&path, minute(10)), None);
        repairs.count(&path, minute(10));
        assert_eq!(repairs.due(&path, minute(10)), Some(minute(11)));
    }
}
