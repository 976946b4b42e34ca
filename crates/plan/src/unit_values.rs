//! Judges values for which systemd ignores a setting of a timer, socket or path unit. Only values that are certainly
//! invalid count as such: those with specifiers are valid here.

use super::enablement::{self, unit_name};
use machinist_ignition::UnitFile;

/// The time spans of which a timer needs one, unless it has another trigger (systemd.timer(5)).
const TIMER_SPANS: [&str; 5] = [
    "OnActiveSec",
    "OnBootSec",
    "OnStartupSec",
    "OnUnitActiveSec",
    "OnUnitInactiveSec",
];

/// The same, if they are true.
const TIMER_FLAGS: [&str; 2] = ["OnClockChange", "OnTimezoneChange"];

/// The units of time spans (systemd.time(7)).
const SPAN_UNITS: [&str; 29] = [
    "usec", "us", "µs", "μs", "msec", "ms", "seconds", "second", "sec", "s", "minutes", "minute",
    "min", "m", "hours", "hour", "hr", "h", "days", "day", "d", "weeks", "week", "w", "months",
    "month", "years", "year", "y",
];

/// The words for a whole calendar expression (systemd.time(7)).
const CALENDAR_WORDS: [&str; 11] = [
    "minutely",
    "hourly",
    "daily",
    "weekly",
    "monthly",
    "quarterly",
    "semiannually",
    "semi-annually",
    "yearly",
    "annually",
    "anually",
];

const WEEKDAYS: [&str; 14] = [
    "monday",
    "mon",
    "tuesday",
    "tue",
    "wednesday",
    "wed",
    "thursday",
    "thu",
    "friday",
    "fri",
    "saturday",
    "sat",
    "sunday",
    "sun",
];

/// The settings of sockets that accept connections.
const CONNECTED_KEYS: [&str; 2] = ["ListenStream", "ListenSequentialPacket"];

/// The other settings of sockets: systemd refuses them with `Accept=yes`.
const UNCONNECTED_KEYS: [&str; 6] = [
    "ListenDatagram",
    "ListenFIFO",
    "ListenSpecial",
    "ListenNetlink",
    "ListenMessageQueue",
    "ListenUSBFunction",
];

/// The settings of which a path unit needs one (systemd.path(5)).
const WATCH_KEYS: [&str; 5] = [
    "PathExists",
    "PathExistsGlob",
    "PathChanged",
    "PathModified",
    "DirectoryNotEmpty",
];

/// Why systemd refuses a timer.
pub(super) fn timer_fault(file: &UnitFile) -> Option<String> {
    let is_set = |key: &&str| file.last("Timer", key).is_some_and(enablement::yes);
    let invalid = match invalid_values(file, "Timer", &TIMER_SPANS, |_, span| is_span(span)) {
        Ok(()) => return None,
        Err(invalid) => invalid,
    };
    let calendar = |_: &str, value: &str| is_calendar(value);
    match invalid_values(file, "Timer", &["OnCalendar"], calendar) {
        _ if TIMER_FLAGS.iter().any(is_set) => None,
        Ok(()) => None,
        Err(more) => Some(
            [more, invalid]
                .into_iter()
                .flatten()
                .next()
                .unwrap_or_else(|| "it has no On…= setting, such as OnCalendar=".to_owned()),
        ),
    }
}

/// Why systemd refuses a socket.
pub(super) fn socket_fault(file: &UnitFile) -> Option<String> {
    let is_valid = |key: &str, value: &str| match key {
        "ListenFIFO" | "ListenSpecial" | "ListenUSBFunction" => is_path(value),
        "ListenNetlink" | "ListenMessageQueue" => true,
        _ => is_address(value),
    };
    let connected = invalid_values(file, "Socket", &CONNECTED_KEYS, is_valid);
    let unconnected = invalid_values(file, "Socket", &UNCONNECTED_KEYS, is_valid);
    let accepts = file.last("Socket", "Accept").is_some_and(enablement::yes);
    let service = file.last("Socket", "Service");
    match (connected, unconnected) {
        (Err(invalid), Err(more)) => Some(
            invalid
                .or(more)
                .unwrap_or_else(|| "it has no Listen…= setting, such as ListenStream=".to_owned()),
        ),
        (_, Ok(())) if accepts => {
            Some("Accept=yes is only for ListenStream= and ListenSequentialPacket=".to_owned())
        }
        _ if accepts && service.is_some_and(|name| unit_name::kind(name) == "service") => Some(
            "Accept=yes starts an instance for each connection, so it excludes Service=".to_owned(),
        ),
        _ => None,
    }
}

/// Why systemd refuses a path unit.
pub(super) fn path_fault(file: &UnitFile) -> Option<String> {
    let invalid = invalid_values(file, "Path", &WATCH_KEYS, |_, path| is_path(path)).err()?;
    Some(invalid.unwrap_or_else(|| {
        "it has no path to watch, such as PathExists= or DirectoryNotEmpty=".to_owned()
    }))
}

/// Looks for a valid value of these keys. If there is none, returns the first invalid one in words, if any.
fn invalid_values(
    file: &UnitFile,
    section: &str,
    keys: &[&str],
    is_valid: impl Fn(&str, &str) -> bool,
) -> Result<(), Option<String>> {
    let mut invalid = None;
    for key in keys {
        for value in file.values(section, key) {
            if value.contains('%') || is_valid(key, value) {
                return Ok(());
            }
            invalid.get_or_insert_with(|| format!("{key}={value} is not valid"));
        }
    }
    Err(invalid)
}

fn is_path(value: &str) -> bool {
    value.starts_with('/')
}

/// Whether systemd may accept the address of a socket: a path, a name, a port, or an address with a port.
fn is_address(value: &str) -> bool {
    let is_port = |text: &str| text.parse().is_ok_and(|port: u16| port > 0);
    match value.as_bytes() {
        [b'/' | b'@', more @ ..] => return !more.is_empty(),
        [b'[', ..] => {
            let port = value.rsplit_once("]:").map(|(_, port)| port);
            return port.is_some_and(is_port);
        }
        _ => {}
    }
    if let Some(vsock) = value.strip_prefix("vsock") {
        return vsock.matches(':').count() > 1;
    }
    match value.split_once(':') {
        Some((address, port)) => is_ipv4(address) && is_port(port),
        None => is_port(value),
    }
}

fn is_ipv4(address: &str) -> bool {
    let parts = address.split('.');
    let fits = |part: &str| number(part).is_some_and(|number| number <= 255);
    parts.clone().count() == 4 && parts.into_iter().all(fits)
}

/// Whether systemd may accept a time span such as `1h 30min`.
fn is_span(value: &str) -> bool {
    if value == "infinity" {
        return true;
    }
    let is_number = |c: char| c.is_ascii_digit() || c == '.' || c == '+';
    let mut words = value.split(|c: char| is_number(c) || c.is_ascii_whitespace());
    value.contains(|c: char| c.is_ascii_digit())
        && words.all(|word| word.is_empty() || word == "M" || SPAN_UNITS.contains(&word))
}

/// Whether systemd may accept a calendar expression. Ranges, repetitions and time zones are not looked into.
fn is_calendar(value: &str) -> bool {
    let mut words = value.split_ascii_whitespace().peekable();
    let first = words.peek().copied().unwrap_or_default();
    if first.starts_with(|c: char| c.is_ascii_alphabetic()) {
        words.next();
        let lower = first.to_ascii_lowercase();
        let is_whole = CALENDAR_WORDS.contains(&lower.as_str());
        let mut days = lower.split([',', '-']).flat_map(|days| days.split(".."));
        if is_whole {
            return true;
        }
        if !days.all(|day| day.is_empty() || WEEKDAYS.contains(&day)) {
            return false;
        }
    }
    words.all(|word| {
        let is_time = word.contains(':');
        match is_time {
            true => fits(word.split(':'), &[24, 60, 60]),
            false if word.starts_with(|c: char| c.is_ascii_alphabetic()) => true,
            false => fits_date(word),
        }
    })
}

/// Whether each plain number of a time is below its limit.
fn fits<'w>(parts: impl Iterator<Item = &'w str>, limits: &[u32]) -> bool {
    let mut parts = parts.zip(limits);
    parts.all(|(part, limit)| number(part).is_none_or(|number| number < *limit))
}

/// Whether the plain numbers of a date, with or without a year, are a month and a day.
fn fits_date(word: &str) -> bool {
    let parts: Vec<&str> = word.split('-').collect();
    let (month, day) = match parts[..] {
        [_, month, day] | [month, day] => (month, day),
        _ => return true,
    };
    let within = |part, most| number(part).is_none_or(|number| (1..=most).contains(&number));
    within(month, 12) && within(day, 31)
}

fn number(part: &str) -> Option<u32> {
    let digits = part.bytes().all(|byte| byte.is_ascii_digit());
    part.parse().ok().filter(|_| digits)
}
