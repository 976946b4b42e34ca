//! The state of one unit, and whether a started unit has stayed up.

use std::collections::HashMap;

use zbus::OwnedVariant;

/// The state of a unit at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitState {
    /// The unit's first name; an alias is resolved.
    pub name: String,
    /// Whether the unit was loaded.
    pub load: LoadState,
    /// The state common to all kinds of units.
    pub active: ActiveState,
    /// The state specific to this kind of unit, such as `running`, `exited`, `auto-restart`.
    pub sub: String,
    /// `enabled`, `disabled`, `masked`, `static`, …; empty for a unit without a file.
    pub file_state: String,
    /// The id of the current or last run, 32 hexadecimal digits; `None` before the first one.
    pub invocation_id: Option<String>,
    /// The files have changed since systemd read them.
    pub need_daemon_reload: bool,
    /// A reload is possible right now.
    pub can_reload: bool,
    /// The unit can be started only as a dependency of others.
    pub refuse_manual_start: bool,
    /// The unit can be stopped only as a dependency of others.
    pub refuse_manual_stop: bool,
    /// Properties that only services have.
    pub service: Option<ServiceState>,
}

/// Properties of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceState {
    /// `Type=`: `simple`, `oneshot`, `notify`, …
    pub service_type: String,
    /// How the last run ended: `success`, `exit-code`, `signal`, `timeout`, `oom-kill`, ….
    pub result: String,
    /// The main process; `None` if it does not run.
    pub main_pid: Option<u32>,
    /// How often systemd has restarted it automatically since its last explicit start.
    pub n_restarts: u32,
}

/// `LoadState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadState {
    /// Loaded.
    Loaded,
    /// There is no such unit.
    NotFound,
    /// Masked: a link to `/dev/null`.
    Masked,
    /// Refused, because a setting is invalid.
    BadSetting,
    /// Could not be read.
    Error,
    /// Another state (`stub`, `merged`).
    Other,
}

/// `ActiveState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ActiveState {
    /// Active.
    Active,
    /// Active, and reloading its configuration.
    Reloading,
    /// Active, and its mounts are being refreshed (newer systemd).
    Refreshing,
    /// Not started, or ended successfully.
    Inactive,
    /// Ended with a failure.
    Failed,
    /// Being started.
    Activating,
    /// Being stopped.
    Deactivating,
    /// Its file systems are being cleaned.
    Maintenance,
    /// A state that this version does not know.
    Other,
}

impl LoadState {
    pub(super) fn parse(text: &str) -> Self {
        match text {
            "loaded" => Self::Loaded,
            "not-found" => Self::NotFound,
            "masked" => Self::Masked,
            "bad-setting" => Self::BadSetting,
            "error" => Self::Error,
            _ => Self::Other,
        }
    }
}

impl ActiveState {
    pub(super) fn parse(text: &str) -> Self {
        match text {
            "active" => Self::Active,
            "reloading" => Self::Reloading,
            "refreshing" => Self::Refreshing,
            "inactive" => Self::Inactive,
            "failed" => Self::Failed,
            "activating" => Self::Activating,
            "deactivating" => Self::Deactivating,
            "maintenance" => Self::Maintenance,
            _ => Self::Other,
        }
    }

    /// The name as systemctl shows it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Reloading => "reloading",
            Self::Refreshing => "refreshing",
            Self::Inactive => "inactive",
            Self::Failed => "failed",
            Self::Activating => "activating",
            Self::Deactivating => "deactivating",
            Self::Maintenance => "maintenance",
            Self::Other => "other",
        }
    }

    /// Whether it is started and not being stopped.
    pub fn is_up(self) -> bool {
        matches!(self, Self::Active | Self::Reloading | Self::Refreshing)
    }
}

impl UnitState {
    /// Whether the unit was up, or had completed, at `since`, and no longer is: it failed, systemd
    /// restarted it, or it is a service that should run and has ended.
    ///
    /// A oneshot that ended successfully has completed. Any other kind of service that ended, with
    /// whatever code, did not stay up. A timer or mount that ended successfully does not count.
    pub fn has_died_since(&self, since: &Self) -> bool {
        if self.active == ActiveState::Failed {
            return true;
        }
        let (Some(now), Some(before)) = (&self.service, &since.service) else {
            return false;
        };
        if now.n_restarts > before.n_restarts || self.sub.starts_with("auto-restart") {
            return true;
        }
        let ended = matches!(
            self.active,
            ActiveState::Inactive | ActiveState::Deactivating
        );
        let kept_up = before.service_type != "oneshot" && since.active.is_up();
        ended && (kept_up || now.result != "success")
    }

    /// Parses the properties of `org.freedesktop.systemd1.Unit`.
    pub(super) fn parse(
        properties: HashMap<String, OwnedVariant>,
        service: Option<ServiceState>,
    ) -> Self {
        let mut properties = Properties(properties);
        Self {
            name: properties.text("Id"),
            load: LoadState::parse(&properties.text("LoadState")),
            active: ActiveState::parse(&properties.text("ActiveState")),
            sub: properties.text("SubState"),
            file_state: properties.text("UnitFileState"),
            invocation_id: invocation(
                &properties
                    .take::<Vec<u8>>("InvocationID")
                    .unwrap_or_default(),
            ),
            need_daemon_reload: properties.flag("NeedDaemonReload"),
            can_reload: properties.flag("CanReload"),
            refuse_manual_start: properties.flag("RefuseManualStart"),
            refuse_manual_stop: properties.flag("RefuseManualStop"),
            service,
        }
    }
}

struct Properties(HashMap<String, OwnedVariant>);

impl Properties {
    /// `None` if the property is missing or of another type: older systemd lacks some.
    fn take<T: TryFrom<OwnedVariant>>(&mut self, name: &str) -> Option<T> {
        T::try_from(self.0.remove(name)?).ok()
    }

    fn text(&mut self, name: &str) -> String {
        self.take(name).unwrap_or_default()
    }

    fn flag(&mut self, name: &str) -> bool {
        self.take(name).unwrap_or_default()
    }
}

fn invocation(id: &[u8]) -> Option<String> {
    let known = id.len() == 16 && id.iter().any(|byte| *byte != 0);
    known.then(|| id.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(active: ActiveState, sub: &str, service_type: &str, result: &str) -> UnitState {
        UnitState {
            name: "a.service".to_owned(),
            load: LoadState::Loaded,
            active,
            sub: sub.to_owned(),
            file_state: "enabled".to_owned(),
            invocation_id: None,
            need_daemon_reload: false,
            can_reload: false,
            refuse_manual_start: false,
            refuse_manual_stop: false,
            service: Some(ServiceState {
                service_type: service_type.to_owned(),
                result: result.to_owned(),
                main_pid: None,
                n_restarts: 0,
            }),
        }
    }

    #[test]
    fn an_ended_service_has_died_and_an_ended_oneshot_has_finished() {
        let running = state(ActiveState::Active, "running", "simple", "success");
        assert!(!running.has_died_since(&running));
        for (active, sub, result) in [
            (ActiveState::Failed, "failed", "exit-code"),
            (ActiveState::Inactive, "dead", "success"),
            (ActiveState::Deactivating, "stop-sigterm", "success"),
            (ActiveState::Activating, "auto-restart", "exit-code"),
        ] {
            let now = state(active, sub, "simple", result);
            assert!(now.has_died_since(&running), "{sub}");
        }
        let started = state(ActiveState::Activating, "start", "oneshot", "success");
        let done = state(ActiveState::Inactive, "dead", "oneshot", "success");
        assert!(!done.has_died_since(&started));
        assert!(!done.has_died_since(&done));
        let failed = state(ActiveState::Failed, "failed", "oneshot", "exit-code");
        assert!(failed.has_died_since(&started));
    }

    #[test]
    fn a_service_restarted_by_systemd_has_died_in_between() {
        let before = state(ActiveState::Active, "running", "notify", "success");
        let mut after = before.clone();
        after.service.as_mut().unwrap().n_restarts = 1;
        assert!(after.has_died_since(&before));
    }

    #[test]
    fn an_all_zero_invocation_id_is_none() {
        assert_eq!(invocation(&[0; 16]), None);
        assert_eq!(invocation(&[]), None);
        let id = invocation(&[0xab; 16]).unwrap();
        assert_eq!(id, "ab".repeat(16));
    }
}
