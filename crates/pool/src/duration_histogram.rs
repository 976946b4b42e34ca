//! A histogram of durations, small enough for an annotation.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

/// Each power of two is divided into this many buckets, so that a quantile is at most a quarter too high.
const BUCKETS_PER_OCTAVE: u32 = 4;

/// Durations from here on, about twelve days, share the last bucket.
const MAX_SECONDS: u64 = 1 << 20;

/// Counts of durations in whole seconds, by bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DurationHistogram {
    counts: BTreeMap<u32, u32>,
}

impl DurationHistogram {
    /// Counts one duration.
    pub fn record(&mut self, duration: SignedDuration) {
        let count = self.counts.entry(bucket(duration)).or_default();
        *count = count.saturating_add(1);
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (bucket, count) in &other.counts {
            let sum = self.counts.entry(*bucket).or_default();
            *sum = sum.saturating_add(*count);
        }
    }

    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.counts.values().map(|count| u64::from(*count)).sum()
    }

    /// Returns the duration that `percent` of all durations do not exceed, rounded up to the end of its bucket; `None`
    /// if there are none.
    pub fn quantile(&self, percent: u64) -> Option<SignedDuration> {
        let rank = (self.count() * percent.min(100)).div_ceil(100).max(1);
        let mut passed = 0;
        let found = self.counts.iter().find(|(_, count)| {
            passed += u64::from(**count);
            passed >= rank
        });
        found.map(|(bucket, _)| SignedDuration::from_secs(end_seconds(*bucket)))
    }
}

/// The bucket of a duration: 0 to 3 for as many seconds, then four per power of two.
fn bucket(duration: SignedDuration) -> u32 {
    let seconds = u64::try_from(duration.as_secs()).unwrap_or(0);
    let seconds = seconds.min(MAX_SECONDS);
    let Some(octave) = seconds.checked_ilog2().and_then(|log| log.checked_sub(2)) else {
        return u32::try_from(seconds).unwrap_or(0);
    };
    let quarter = u32::try_from(seconds >> octave).unwrap_or(0);
    octave * BUCKETS_PER_OCTAVE + quarter
}

/// The longest duration of a bucket, in seconds.
fn end_seconds(bucket: u32) -> i64 {
    if bucket < 2 * BUCKETS_PER_OCTAVE {
        return i64::from(bucket);
    }
    // The text may come from another writer.
    let octave = (bucket / BUCKETS_PER_OCTAVE - 1).min(18);
    let quarter = i64::from(bucket % BUCKETS_PER_OCTAVE + BUCKETS_PER_OCTAVE);
    ((quarter + 1) << octave) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_is_at_most_a_quarter_below_the_end_of_its_bucket() {
        for seconds in (0..5000).chain((5000..1_000_000).step_by(997)) {
            let end = end_seconds(bucket(SignedDuration::from_secs(seconds)));
            assert!(
                end >= seconds && end <= seconds + seconds / 4,
                "{seconds}: {end}"
            );
            let next = end_seconds(bucket(SignedDuration::from_secs(end + 1)));
            assert!(next > end, "{end} is the last second of its bucket");
        }
    }

    #[test]
    fn quantiles_come_from_merged_counts() {
        let mut all = DurationHistogram::default();
        assert_eq!(all.quantile(90), None);
        for seconds in 1..=7 {
            all.record(SignedDuration::from_secs(seconds));
        }
        let mut other = DurationHistogram::default();
        for _ in 0..3 {
            other.record(SignedDuration::from_secs(100));
        }
        all.merge(&other);
        let at = |percent| all.quantile(percent).map(|it| it.as_secs());
        assert_eq!((all.count(), at(0), at(50)), (10, Some(1), Some(5)));
        assert_eq!((at(70), at(90)), (Some(7), Some(111)));
    }

    #[test]
    fn a_histogram_of_another_writer_never_panics() {
        let odd: DurationHistogram =
            serde_json::from_str("{\"4294967295\":4294967295,\"0\":1}").unwrap();
        assert!(odd.quantile(100).is_some());
        let mut both = odd.clone();
        both.merge(&odd);
        assert!(both.count() > 1);
    }
}
