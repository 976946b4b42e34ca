//! Parses `update.windows` and `update.timeZone`.

use std::time::Duration;

use jiff::{
    civil::{Time, Weekday},
    tz::TimeZone,
};

use super::{
    extract::{Mismatches, Scalar, Setting, ValueMismatch},
    fragment::{ValueNode, ValueShape},
};
use machinist_base::maintenance_window::MaintenanceWindow;

/// Names of days; the first three letters are sufficient.
const WEEKDAYS: [(&str, Weekday); 7] = [
    ("Mon", Weekday::Monday),
    ("Tue", Weekday::Tuesday),
    ("Wed", Weekday::Wednesday),
    ("Thu", Weekday::Thursday),
    ("Fri", Weekday::Friday),
    ("Sat", Weekday::Saturday),
    ("Sun", Weekday::Sunday),
];

impl Scalar for Weekday {
    fn expected() -> String {
        "one of Mon, Tue, Wed, Thu, Fri, Sat, Sun".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        let known = WEEKDAYS.iter().find(|(name, _)| *name == text);
        known.map(|(_, day)| *day)
    }

    fn show(&self) -> String {
        let known = WEEKDAYS.iter().find(|(_, day)| day == self);
        known.map_or_else(String::new, |(name, _)| (*name).to_owned())
    }
}

impl Scalar for Time {
    fn expected() -> String {
        "a time of day such as \"02:30\"".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        let (hour, minute) = text.split_once(':')?;
        let number = |part: &str| {
            let plain = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| part.parse().ok()).flatten()
        };
        Self::new(number(hour)?, number(minute)?, 0, 0).ok()
    }

    fn show(&self) -> String {
        format!("{:02}:{:02}", self.hour(), self.minute())
    }
}

impl Scalar for TimeZone {
    fn expected() -> String {
        "the name of a time zone such as UTC or Europe/Berlin".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        Self::get(text).ok()
    }

    fn show(&self) -> String {
        self.iana_name().unwrap_or("UTC").to_owned()
    }
}

impl Setting for MaintenanceWindow {
    fn read(node: &ValueNode) -> Result<Self, Vec<ValueMismatch>> {
        let whole = || ValueMismatch::new(node, "a mapping with days, start and duration");
        let ValueShape::Map(entries) = &node.shape else {
            return Err(vec![whole()]);
        };
        let (mut days, mut start, mut duration) = (Vec::new(), None, None);
        let mut wrong = Mismatches::default();
        for (key, value) in entries {
            let below = format!(".{key}");
            match key.as_str() {
                "days" => days.extend(
                    wrong
                        .take(&below, <Vec<Weekday>>::read(value))
                        .into_iter()
                        .flatten(),
                ),
                "start" => start = wrong.take(&below, Setting::read(value)),
                "duration" => {
                    duration = wrong.take(&below, Duration::read(value));
                    if duration.is_some_and(|read| read.is_zero() || read > Self::MAX_WINDOW) {
                        wrong.add(&below, value, "a duration above zero, a week at most");
                    }
                }
                _ => wrong.add(&below, value, "only days, start and duration"),
            }
        }
        let window = start.zip(duration).map(|(start, duration)| Self {
            days,
            start,
            duration,
        });
        wrong.or(window, whole)
    }

    fn show(&self) -> serde_json::Value {
        serde_json::json!({
            "days": Setting::show(&self.days),
            "start": Scalar::show(&self.start),
            "duration": Scalar::show(&self.duration),
        })
    }
}
