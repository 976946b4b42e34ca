//! The drift of the machine, and what is needed to find and to repair it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    DriftAction, DriftHandling,
    drift_repair::RepairLog,
    drift_watch::{DirtyPaths, DriftWatch},
};
use machinist_base::{
    abs_path::AbsPath, digest::Digest, error_chain::chain, rate_limit::LogRates, reason::Reason,
};
use machinist_plan::DriftEntry;
use machinist_rootfs::Root;

/// The known drift, and the watch that finds more of it.
#[derive(Debug, Default)]
pub(super) struct DriftState {
    watch: DriftWatch,
    /// The base whose paths are watched.
    watched_base: Option<Digest>,
    /// Drift by path.
    found: BTreeMap<AbsPath, DriftEntry>,
    repairs: RepairLog,
    log: DriftLog,
}

/// Limits the lines about drift, which a user can cause at will by changing a path all the time.
#[derive(Debug)]
struct DriftLog {
    by_path: LogRates,
    total: LogRates,
}

impl Default for DriftLog {
    /// A path that an administrator edits gets all its lines, and so does a config with many drifted paths.
    fn default() -> Self {
        Self {
            by_path: LogRates::new(Duration::from_secs(60), 10),
            total: LogRates::new(Duration::from_secs(10), 200),
        }
    }
}

impl DriftLog {
    /// Whether to log a line about the path now; if so, the number of lines that were suppressed before it.
    fn take(&self, path: &AbsPath) -> Option<u64> {
        let of_path = self.by_path.take(path.as_str())?;
        let of_all = self.total.take("drift")?;
        Some(of_path + of_all)
    }
}

impl DriftState {
    /// Waits until an owned path is modified; waits forever if nothing is watched. Cancel-safe.
    pub(super) async fn wait_for_change(&mut self) -> DirtyPaths {
        self.watch.wait_for_change().await
    }

    /// Records that the paths of a base are watched from now on. Returns false if they are already.
    pub(super) fn begin_watch(&mut self, base: Digest) -> bool {
        self.watched_base.replace(base) != Some(base)
    }

    /// Makes the loop watch the base again, with a full check, when it next waits.
    pub(super) const fn rearm(&mut self) {
        self.watched_base = None;
    }

    /// Ends the watch until the open update is over. A full scan that is due then would be due again at once.
    pub(super) const fn suspend(&mut self) {
        self.watched_base = None;
        self.watch.cancel_full_scan();
    }

    pub(super) const fn set_full_scan(&mut self, then: Instant) {
        self.watch.set_full_scan(then);
    }

    /// Watches the paths. The periodic scan finds the drift of paths that cannot be watched.
    pub(super) fn watch_paths(&mut self, root: &Root, paths: &[AbsPath]) {
        if let Err(error) = self.watch.arm(root, paths) {
            tracing::warn!(
                "cannot watch all managed files; other drift is found by the periodic scan: {}",
                chain(&error)
            );
        }
    }

    /// Returns the known drift.
    pub(super) fn entries(&self) -> Vec<DriftEntry> {
        self.found.values().cloned().collect()
    }

    /// Returns the drifted paths whose repair is suspended.
    pub(super) fn suspended_repairs(&self) -> BTreeSet<AbsPath> {
        let suspended = self.repairs.suspended(Instant::now());
        let drifted = suspended.filter(|path| self.found.contains_key(*path));
        drifted.cloned().collect()
    }

    /// Returns whether the path differs, and a local user may have caused it.
    pub(super) fn is_by_user(&self, path: &AbsPath) -> bool {
        self.found.get(path).is_some_and(|drift| drift.by_user)
    }

    /// Records the result of a check, and logs what has changed. `checked` has the paths that were checked; `None`
    /// means all.
    pub(super) fn record(
        &mut self,
        checked: Option<&BTreeSet<AbsPath>>,
        found: Vec<DriftEntry>,
        handling: &DriftHandling,
    ) {
        let before = std::mem::take(&mut self.found);
        let is_unchecked = |path: &AbsPath| checked.is_some_and(|checked| !checked.contains(path));
        let unchecked = before.iter().filter(|(path, _)| is_unchecked(path));
        let mut now: BTreeMap<_, _> = unchecked
            .map(|(path, drift)| (path.clone(), drift.clone()))
            .collect();
        let reported = found
            .into_iter()
            .filter(|drift| handling.act(&drift.path) != DriftAction::Ignore);
        now.extend(reported.map(|drift| (drift.path.clone(), drift)));
        for (path, drift) in &now {
            if before.get(path) != Some(drift)
                && let Some(suppressed) = self.log.take(path)
            {
                tracing::warn!(reason = %Reason::Drifted, suppressed, "{drift}");
            }
        }
        for path in before.keys().filter(|path| !now.contains_key(path)) {
            if let Some(suppressed) = self.log.take(path) {
                tracing::info!(%path, suppressed, "matches the config again");
            }
        }
        self.found = now;
    }

    /// Returns the next path to repair, and counts its repair. A path that changes too often has to wait; `is_last`
    /// marks paths that are repaired after the others.
    pub(super) fn next_repair(
        &mut self,
        handling: &DriftHandling,
        is_last: impl Fn(&AbsPath) -> bool,
    ) -> Option<AbsPath> {
        let now = Instant::now();
        // A path that a user could redirect is not written, and a repair never reboots; such drift stays reported.
        let safe = self.found.iter().filter(|(_, drift)| drift.is_repairable());
        let mut drifted: Vec<AbsPath> = safe.map(|(path, _)| path.clone()).collect();
        drifted.sort_by_key(is_last);
        for path in drifted {
            if handling.act(&path) != DriftAction::Repair {
                continue;
            }
            match self.repairs.due(&path, now) {
                None => {
                    self.repairs.count(&path, now);
                    return Some(path);
                }
                Some(due) => {
                    if self.repairs.report_suspension(&path, due) {
                        let reason = Reason::Drifted;
                        tracing::warn!(%path, %reason, "{path} changes repeatedly, so its repair is suspended");
                    }
                    self.watch.schedule_full_scan(due);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machinist_plan::DriftKind;

    fn drift(path: &AbsPath) -> DriftEntry {
        DriftEntry {
            path: path.clone(),
            kind: DriftKind::Content,
            entry: None,
            kinds: None,
            by_user: true,
            leased: false,
        }
    }

    #[test]
    fn a_path_that_changes_all_the_time_causes_few_log_lines() {
        let (mut state, handling) = (DriftState::default(), DriftHandling::default());
        let path = |number: usize| -> AbsPath { format!("/home/bob/{number}").parse().unwrap() };
        for _ in 0..1000 {
            state.record(None, vec![drift(&path(0))], &handling);
            state.record(None, Vec::new(), &handling);
        }
        let next = state.log.take(&path(0));
        assert_eq!(next, None, "the limit of the path is used up");
        let other = state.log.take(&path(1));
        assert!(other.is_some(), "another path has its own");
        for number in 1..1000 {
            state.record(None, vec![drift(&path(number))], &handling);
        }
        let next = state.log.take(&path(1000));
        assert_eq!(next, None, "the limit of all is used up");
    }
}
