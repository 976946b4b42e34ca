//! Reads how a pool's rollouts proceed from the pool's annotations.

use jiff::{SignedDuration, civil::Time, civil::Weekday, tz::TimeZone};
use serde::{Deserialize, Serialize};

use machinist_base::maintenance_window::{MaintenanceWindow, MaintenanceWindows};
use machinist_kube_api::{PoolView, keys::pool_annotation as key, keys::protocol};

use super::NodeOrder;

/// How many nodes are updated first if the pool does not set it. OpenShift has no canaries.
const DEFAULT_CANARY_NODES: usize = 1;

/// How long the next grant waits for disruption budgets if the pool does not set it. OpenShift does not wait.
const BUDGET_RECOVERY_TIMEOUT: SignedDuration = SignedDuration::from_mins(10);

/// Maximum length of windows as JSON.
const MAX_WINDOWS_BYTES: usize = 4 * 1024;

/// How the rollouts of a pool proceed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutSettings {
    /// How many nodes are updated first.
    pub canary_nodes: usize,
    /// How long they run the new config before others follow.
    pub canary_soak: SignedDuration,
    /// The number of failures that stops a rollout; by the pool's size if unset.
    pub stop_after_failures: Option<usize>,
    /// When nodes may start.
    pub windows: MaintenanceWindows,
    /// The order of nodes.
    pub order: NodeOrder,
    /// How long a drain may be blocked before another node is updated instead; `None` if blocked nodes keep their
    /// grant.
    pub step_aside_after: Option<SignedDuration>,
    /// How long the next grant waits until the disruption budgets of drained pods have recovered; `None` if it waits for
    /// as long as that takes.
    pub budget_recovery_timeout: Option<SignedDuration>,
    /// How long after a config became due its rollout must have begun.
    pub start_deadline: Option<SignedDuration>,
    /// How long a reboot of these machines takes, if the administrator knows.
    pub reboot_time: Option<SignedDuration>,
}

impl Default for RolloutSettings {
    fn default() -> Self {
        Self {
            canary_nodes: DEFAULT_CANARY_NODES,
            canary_soak: SignedDuration::ZERO,
            stop_after_failures: None,
            windows: MaintenanceWindows::default(),
            order: NodeOrder::ZoneThenAge,
            step_aside_after: None,
            budget_recovery_timeout: Some(BUDGET_RECOVERY_TIMEOUT),
            start_deadline: None,
            reboot_time: None,
        }
    }
}

/// An annotation whose value cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("annotation {annotation} of {object} is {given:?}; expected {expected}")]
pub struct SettingError {
    /// The annotation.
    pub annotation: &'static str,
    /// Its object, with the kind.
    pub object: String,
    /// The value as written.
    pub given: String,
    /// The values that are accepted.
    pub expected: String,
}

impl RolloutSettings {
    /// Reads the settings of a pool, or all mistakes in them. A pool with a mistake grants nothing: a window that
    /// cannot be read must not mean "at any time".
    pub fn of(pool: &PoolView) -> Result<Self, Vec<SettingError>> {
        let mut mistakes = Vec::new();
        let mut read = Reader {
            pool,
            mistakes: &mut mistakes,
        };
        let defaults = Self::default();
        let settings = Self {
            canary_nodes: read
                .value(key::CANARY, "a number from 0", |text| text.parse().ok())
                .unwrap_or(defaults.canary_nodes),
            canary_soak: read
                .duration(key::CANARY_SOAK)
                .unwrap_or(defaults.canary_soak),
            stop_after_failures: read.value(key::STOP_AFTER_FAILURES, "a number from 1", |text| {
                text.parse().ok().filter(|count| *count > 0)
            }),
            windows: read
                .value(key::WINDOWS, WINDOWS_FORM, |text| parse_windows(text).ok())
                .unwrap_or_default(),
            order: read.order(),
            step_aside_after: read.duration(key::STEP_ASIDE_AFTER),
            budget_recovery_timeout: read
                .value(
                    key::BUDGET_RECOVERY_TIMEOUT,
                    "never, or a duration from zero such as \"10m\"",
                    |text| match text {
                        "never" => Some(None),
                        _ => parse_duration(text).map(Some),
                    },
                )
                .unwrap_or(defaults.budget_recovery_timeout),
            start_deadline: read.duration(key::START_DEADLINE),
            reboot_time: read.duration(key::REBOOT_TIME),
        };
        match mistakes.is_empty() {
            true => Ok(settings),
            false => Err(mistakes),
        }
    }
}

/// Reads one annotation after the other and collects the mistakes.
struct Reader<'a> {
    pool: &'a PoolView,
    mistakes: &'a mut Vec<SettingError>,
}

impl Reader<'_> {
    fn value<T>(
        &mut self,
        annotation: &'static str,
        expected: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Option<T> {
        let text = self.pool.annotation(annotation)?;
        let found = parse(text.trim());
        if found.is_none() {
            self.mistakes.push(SettingError {
                annotation,
                object: format!("MachineConfigPool {}", self.pool.name),
                given: text.to_owned(),
                expected: expected.to_owned(),
            });
        }
        found
    }

    fn duration(&mut self, annotation: &'static str) -> Option<SignedDuration> {
        let expected = "a duration from zero such as \"30m\" or \"1h30m\"";
        self.value(annotation, expected, parse_duration)
    }

    /// Machinist's own annotation wins over the one that is proposed for OpenShift.
    fn order(&mut self) -> NodeOrder {
        let own = self.value(
            key::ORDER,
            "ZoneThenAge, NewestFirst, or \"Label:\" and the key of a label",
            |text| match text {
                "ZoneThenAge" => Some(NodeOrder::ZoneThenAge),
                "NewestFirst" => Some(NodeOrder::NewestFirst),
                _ => {
                    let label = text.strip_prefix("Label:")?.trim();
                    (!label.is_empty()).then(|| NodeOrder::Label(label.to_owned()))
                }
            },
        );
        let proposed = self.value(
            protocol::UPDATE_ORDER,
            "OldestFirst or NewestFirst",
            |text| match text {
                "OldestFirst" => Some(NodeOrder::ZoneThenAge),
                "NewestFirst" => Some(NodeOrder::NewestFirst),
                _ => None,
            },
        );
        own.or(proposed).unwrap_or(NodeOrder::ZoneThenAge)
    }
}

fn parse_duration(text: &str) -> Option<SignedDuration> {
    let found: SignedDuration = text.parse().ok()?;
    (!found.is_negative()).then_some(found)
}

/// The form of windows in annotations, for messages.
pub(super) const WINDOWS_FORM: &str = "windows such as {\"timeZone\": \"Europe/Berlin\", \"windows\": \
     [{\"days\": [\"Sat\"], \"start\": \"22:00\", \"duration\": \"4h\"}]}";

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WindowsForm {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    time_zone: Option<String>,
    windows: Vec<WindowForm>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WindowForm {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    days: Vec<String>,
    start: String,
    duration: String,
}

/// Why a text does not define windows.
#[derive(Debug)]
pub(super) struct BadWindows;

/// Parses windows in the form of the settings `update.windows` and `update.timeZone`, as JSON.
pub(super) fn parse_windows(text: &str) -> Result<MaintenanceWindows, BadWindows> {
    if text.len() > MAX_WINDOWS_BYTES {
        return Err(BadWindows);
    }
    let form: WindowsForm = serde_json::from_str(text).map_err(|_| BadWindows)?;
    let zone = match &form.time_zone {
        None => TimeZone::UTC,
        Some(name) => TimeZone::get(name).map_err(|_| BadWindows)?,
    };
    let windows = form.windows.iter().map(window);
    Ok(MaintenanceWindows {
        windows: windows.collect::<Option<_>>().ok_or(BadWindows)?,
        zone,
    })
}

/// Formats the windows of an agent for the annotation on its Node; `None` if updates may begin at any time, or if the time
/// zone has no name, so that only the agent can tell.
pub fn format_windows(windows: &MaintenanceWindows) -> Option<String> {
    if windows.zone.iana_name().is_none() && windows.zone != TimeZone::UTC {
        return None;
    }
    let each = windows.windows.iter().map(|window| WindowForm {
        days: window.days.iter().map(|day| short_name(*day)).collect(),
        start: window.start.strftime("%H:%M").to_string(),
        duration: format!("{}s", window.duration.as_secs()),
    });
    let form = WindowsForm {
        time_zone: windows.zone.iana_name().map(str::to_owned),
        windows: each.collect(),
    };
    (!form.windows.is_empty()).then(|| serde_json::to_string(&form).unwrap_or_default())
}

fn short_name(day: Weekday) -> String {
    let mut name = format!("{day:?}");
    name.truncate(3);
    name
}

fn window(form: &WindowForm) -> Option<MaintenanceWindow> {
    let duration = parse_duration(&form.duration)?;
    let duration: std::time::Duration = duration.try_into().ok()?;
    if duration.is_zero() || duration > MaintenanceWindow::MAX_WINDOW {
        return None;
    }
    let (hour, minute) = form.start.split_once(':')?;
    let part = |text: &str| match text.len() {
        2 => text.parse::<u8>().ok().and_then(|it| it.try_into().ok()),
        _ => None,
    };
    Some(MaintenanceWindow {
        days: form
            .days
            .iter()
            .map(|day| weekday(day))
            .collect::<Option<_>>()?,
        start: Time::new(part(hour)?, part(minute)?, 0, 0).ok()?,
        duration,
    })
}

fn weekday(name: &str) -> Option<Weekday> {
    let monday = Weekday::Monday;
    let mut days = monday.cycle_forward().take(7);
    days.find(|day| short_name(*day) == name || format!("{day:?}") == name)
}
