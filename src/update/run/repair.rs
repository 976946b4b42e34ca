//! Putting back what drifted, where the settings say so: one path at a time, through the same
//! transaction as every update, and never so often that two who disagree fight without end.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use super::{Audience, DriftAct, Updater};
use crate::{
    path::AbsPath,
    plan::{ActionKind, DriftKind, Plan},
    reason::Reason,
    update::{
        phase::{Event, Phase},
        ports::Services,
    },
};

/// How often one path is put back within [`WITHIN`]. A person who edits a file twice is told by that;
/// a program that writes it again each time wins after that, and is named in the log.
const MOST: usize = 3;
/// See [`MOST`].
const WITHIN: Duration = Duration::from_secs(600);

/// When which path was put back.
#[derive(Debug, Default)]
pub(super) struct Repairs(BTreeMap<AbsPath, VecDeque<Instant>>);

impl Repairs {
    /// When `path` may be put back: now (none), or then.
    fn due(&mut self, path: &AbsPath, now: Instant) -> Option<Instant> {
        let times = self.0.get_mut(path)?;
        while times.front().is_some_and(|then| *then + WITHIN <= now) {
            times.pop_front();
        }
        let full = times.len() >= MOST;
        times
            .front()
            .filter(|_| full)
            .map(|oldest| *oldest + WITHIN)
    }

    fn count(&mut self, path: &AbsPath, now: Instant) {
        self.0.entry(path.clone()).or_default().push_back(now);
    }
}

impl<S: Services, A: Audience> Updater<S, A> {
    /// Begins to put back the next path that drifted and is to be repaired, if there is one.
    pub(super) fn next_repair(&mut self) -> Option<Event> {
        // Anything else that is desired comes first, and puts back what drifted on its way.
        let idle = self.phase == Phase::Idle && self.journal.transactions.is_empty();
        let barred = self.desired.borrow().bar().is_some();
        if !idle || barred || !self.desired_is_base() {
            return None;
        }
        let now = Instant::now();
        // Where a user could lead the path elsewhere nothing is written; its drift stays told.
        let found = self.drift.found.iter();
        let safe = found.filter(|(_, drift)| drift.kind != DriftKind::Unsafe);
        let mut drifted: Vec<AbsPath> = safe.map(|(path, _)| path.clone()).collect();
        // A file comes before its other names.
        let desired = self.desired.borrow().clone();
        let is_hard = |path: &AbsPath| {
            let (config, _) = desired.config()?;
            Some(config.links.get(path)?.hard)
        };
        drifted.sort_by_key(|path| is_hard(path).unwrap_or(false));
        for path in drifted {
            if self.conduct.drift.act(&path) != DriftAct::Repair {
                continue;
            }
            match self.repairs.due(&path, now) {
                None => {
                    self.repairs.count(&path, now);
                    tracing::info!(%path, "is put back, as drift.paths or drift.default asks");
                    self.repair = Some(path);
                    return Some(Event::Desired);
                }
                Some(due) => {
                    let reason = Reason::Drifted;
                    tracing::warn!(%path, %reason, "is changed again and again, and left alone for now");
                    self.drift.look_again_at(due);
                }
            }
        }
        None
    }
}

/// Drops the reboot of a plan that puts one path back: the machine was started with what comes back.
pub(super) fn without_reboot(plan: &mut Plan) {
    let reboots = |kind| matches!(kind, ActionKind::Reboot | ActionKind::SoftReboot);
    plan.actions.retain(|action| !reboots(action.kind));
    plan.cost = crate::plan::cost(&plan.actions);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_put_back_three_times_in_ten_minutes_and_then_has_to_wait() {
        let path: AbsPath = "/etc/x".parse().unwrap();
        let (mut repairs, start) = (Repairs::default(), Instant::now());
        let minute = |count: u64| start + Duration::from_secs(60 * count);
        for at in 0..3 {
            assert_eq!(repairs.due(&path, minute(at)), None, "{at}");
            repairs.count(&path, minute(at));
        }
        assert_eq!(repairs.due(&path, minute(3)), Some(minute(10)));
        assert_eq!(repairs.due(&"/etc/y".parse().unwrap(), minute(3)), None);
        assert_eq!(repairs.due(&path, minute(10)), None);
        repairs.count(&path, minute(10));
        assert_eq!(repairs.due(&path, minute(10)), Some(minute(11)));
    }
}
