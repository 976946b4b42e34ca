//! Maintenance windows: when updates may begin. Pure: the caller passes the time.

use std::time::Duration;

use jiff::{
    Timestamp, ToSpan as _,
    civil::{Time, Weekday},
    tz::TimeZone,
};

/// The windows of a machine. Without any, updates may begin at any time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaintenanceWindows {
    /// The windows.
    pub windows: Vec<MaintenanceWindow>,
    /// The time zone of their days and times.
    pub zone: TimeZone,
}

/// One window, which repeats every week.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaintenanceWindow {
    /// The days on which it opens; every day if empty.
    pub days: Vec<Weekday>,
    /// When it opens, in local time of the zone.
    pub start: Time,
    /// How long it stays open, by elapsed time; at most [`MaintenanceWindow::MAX_WINDOW`].
    pub duration: Duration,
}

impl MaintenanceWindow {
    /// One week: a longer window would never close.
    pub const MAX_WINDOW: Duration = Duration::from_secs(7 * 24 * 3600);
}

impl Default for MaintenanceWindows {
    fn default() -> Self {
        Self {
            windows: Vec::new(),
            zone: TimeZone::UTC,
        }
    }
}

/// Whether updates may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowState {
    /// They may begin.
    Open,
    /// They may not begin before `opens`.
    Closed {
        /// When the next window opens.
        opens: Timestamp,
    },
}

/// A time without a gap during which updates may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenSpan {
    /// When it begins.
    pub opens: Timestamp,
    /// When it ends; no longer part of it.
    pub closes: Timestamp,
}

impl OpenSpan {
    /// Whether it contains `now`.
    pub fn contains(&self, now: Timestamp) -> bool {
        self.opens <= now && now < self.closes
    }
}

impl MaintenanceWindows {
    /// Whether a window is open at `now`, and if not, when the next one opens.
    ///
    /// A start that the clock skips (in spring) counts from the moment after the gap, as in cron
    /// and systemd timers; one that occurs twice (in autumn) counts the first time. A window lasts
    /// for its duration, whatever the clock does meanwhile.
    pub fn state(&self, now: Timestamp) -> WindowState {
        let mut opens: Option<Timestamp> = None;
        for window in &self.windows {
            for (from, to) in window.around(now, &self.zone) {
                if from <= now && now < to {
                    return WindowState::Open;
                }
                if from > now {
                    opens = Some(opens.map_or(from, |known| known.min(from)));
                }
            }
        }
        // `None`: there are no windows, or times so far away that no calendar has them.
        opens.map_or(WindowState::Open, |opens| WindowState::Closed { opens })
    }

    /// The times from a week before `now` to a week after it at which a window is open, in order.
    /// Windows that overlap or follow each other without a gap are one span.
    pub fn spans(&self, now: Timestamp) -> Vec<OpenSpan> {
        let windows = self.windows.iter();
        let mut all: Vec<_> = windows
            .flat_map(|window| window.around(now, &self.zone))
            .collect();
        all.sort_unstable();
        let mut spans: Vec<OpenSpan> = Vec::new();
        for (opens, closes) in all {
            match spans.last_mut() {
                Some(last) if opens <= last.closes => last.closes = last.closes.max(closes),
                _ => spans.push(OpenSpan { opens, closes }),
            }
        }
        spans
    }
}

impl MaintenanceWindow {
    /// The openings from a week before `now` to a week after it.
    fn around(&self, now: Timestamp, zone: &TimeZone) -> Vec<(Timestamp, Timestamp)> {
        let today = now.to_zoned(zone.clone()).date();
        let opening = |days: i64| {
            let date = today.checked_add(days.days()).ok()?;
            if !self.days.is_empty() && !self.days.contains(&date.weekday()) {
                return None;
            }
            let from = date.to_datetime(self.start).to_zoned(zone.clone()).ok()?;
            let from = from.timestamp();
            Some((from, from.checked_add(self.duration).ok()?))
        };
        (-8..=8).filter_map(opening).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn windows(days: &[Weekday], start: (i8, i8), hours: u64, zone: &str) -> MaintenanceWindows {
        MaintenanceWindows {
            windows: vec![MaintenanceWindow {
                days: days.to_vec(),
                start: Time::new(start.0, start.1, 0, 0).unwrap(),
                duration: Duration::from_secs(hours * 3600),
            }],
            zone: TimeZone::get(zone).unwrap(),
        }
    }

    fn opens(text: &str) -> WindowState {
        WindowState::Closed { opens: at(text) }
    }

    #[test]
    fn without_maintenance_windows_every_time_is_allowed() {
        let none = MaintenanceWindows::default();
        assert_eq!(none.state(at("2026-11-21T12:00:00Z")), WindowState::Open);
    }

    #[test]
    fn a_maintenance_window_is_open_on_its_days_and_may_cross_midnight() {
        let night = windows(&[Weekday::Saturday], (23, 30), 2, "UTC");
        for (now, state) in [
            ("2026-11-21T23:29:59Z", opens("2026-11-21T23:30:00Z")),
            ("2026-11-21T23:30:00Z", WindowState::Open),
            ("2026-11-22T01:29:59Z", WindowState::Open),
            ("2026-11-22T01:30:00Z", opens("2026-11-28T23:30:00Z")),
        ] {
            assert_eq!(night.state(at(now)), state, "{now}");
        }
        let daily = windows(&[], (2, 0), 1, "UTC");
        assert_eq!(
            daily.state(at("2026-11-21T03:00:00Z")),
            opens("2026-11-22T02:00:00Z")
        );
        let week = windows(&[Weekday::Monday], (0, 0), 7 * 24, "UTC");
        assert_eq!(week.state(at("2026-11-22T23:59:59Z")), WindowState::Open);
    }

    #[test]
    fn the_earliest_of_several_maintenance_windows_counts() {
        let mut both = windows(&[Weekday::Sunday], (4, 0), 1, "UTC");
        let more = windows(&[Weekday::Saturday], (22, 0), 1, "UTC");
        both.windows.extend(more.windows);
        assert_eq!(
            both.state(at("2026-11-21T12:00:00Z")),
            opens("2026-11-21T22:00:00Z")
        );
        assert_eq!(both.state(at("2026-11-22T04:30:00Z")), WindowState::Open);
    }

    #[test]
    fn overlapping_and_adjacent_maintenance_windows_are_one_span() {
        let mut nights = windows(&[Weekday::Saturday], (22, 0), 2, "UTC");
        let sunday = windows(&[Weekday::Sunday], (0, 0), 1, "UTC");
        nights.windows.extend(sunday.windows);
        let now = at("2026-11-21T23:00:00Z");
        let spans = nights.spans(now);
        let open: Vec<_> = spans.iter().filter(|span| span.contains(now)).collect();
        let whole = OpenSpan {
            opens: at("2026-11-21T22:00:00Z"),
            closes: at("2026-11-22T01:00:00Z"),
        };
        assert_eq!(open, [&whole]);
        assert_eq!(spans.len(), 3, "a week before, this one and the next");
        assert_eq!(MaintenanceWindows::default().spans(now), []);
    }

    /// Berlin, 29 March 2026: 02:00 becomes 03:00, at 01:00 UTC.
    #[test]
    fn a_window_start_skipped_by_dst_moves_after_the_gap() {
        let skipped = windows(&[Weekday::Sunday], (2, 30), 1, "Europe/Berlin");
        let before = at("2026-03-29T00:59:59Z");
        assert_eq!(skipped.state(before), opens("2026-03-29T01:30:00Z"));
        assert_eq!(skipped.state(at("2026-03-29T01:30:00Z")), WindowState::Open);
        assert_eq!(
            skipped.state(at("2026-03-29T02:30:00Z")),
            opens("2026-04-05T00:30:00Z")
        );
    }

    #[test]
    fn a_window_across_a_dst_change_keeps_its_duration() {
        let over = windows(&[Weekday::Sunday], (1, 0), 4, "Europe/Berlin");
        // It opens at 00:00 UTC in winter time, and four hours are four hours.
        assert_eq!(over.state(at("2026-03-29T03:59:59Z")), WindowState::Open);
        assert_ne!(over.state(at("2026-03-29T04:00:00Z")), WindowState::Open);
        // 25 October: 03:00 becomes 02:00; it opens at 23:00 UTC the day before.
        assert_eq!(over.state(at("2026-10-24T23:00:00Z")), WindowState::Open);
        assert_ne!(over.state(at("2026-10-25T03:00:00Z")), WindowState::Open);
    }

    #[test]
    fn a_window_start_repeated_by_dst_counts_the_first_time() {
        let twice = windows(&[Weekday::Sunday], (2, 30), 1, "Europe/Berlin");
        // 02:30 summer time is 00:30 UTC, 02:30 winter time an hour later.
        assert_eq!(
            twice.state(at("2026-10-25T00:29:59Z")),
            opens("2026-10-25T00:30:00Z")
        );
        assert_eq!(twice.state(at("2026-10-25T01:29:59Z")), WindowState::Open);
        assert_eq!(
            twice.state(at("2026-10-25T01:30:00Z")),
            opens("2026-11-01T01:30:00Z")
        );
    }
}
