//! How long the phases of a pool's recorded updates took.

use std::collections::BTreeMap;

use serde::Serialize;

use machinist_pool::{DurationHistogram, RolloutHistory};

/// One phase of all recorded updates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PhaseTime {
    /// Its name, as in `machinist status`.
    pub(super) name: String,
    pub(super) median_seconds: i64,
    /// The time that nine of ten updates did not exceed.
    pub(super) p90_seconds: i64,
}

/// Returns the phases that took at least a second, longest first.
pub(super) fn phase_times(history: &RolloutHistory) -> Vec<PhaseTime> {
    let mut all: BTreeMap<&str, DurationHistogram> = BTreeMap::new();
    for (name, times) in history.rollouts.iter().flat_map(|it| &it.phases) {
        all.entry(name).or_default().merge(times);
    }
    let seconds = |times: &DurationHistogram, percent| {
        times.quantile(percent).map_or(0, |time| time.as_secs())
    };
    let phases = all.iter().map(|(name, times)| PhaseTime {
        name: (*name).to_owned(),
        median_seconds: seconds(times, 50),
        p90_seconds: seconds(times, 90),
    });
    let mut phases: Vec<_> = phases.filter(|it| it.p90_seconds > 0).collect();
    phases.sort_by(|a, b| (b.p90_seconds, &a.name).cmp(&(a.p90_seconds, &b.name)));
    phases
}
