//! Checks units, independent of a machine, for settings that systemd would refuse or ignore.

use super::{Unit, UnitFile};

/// The result of checking a unit's merged text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct UnitCheckResult {
    /// systemd would not load the service unless a drop-in from elsewhere completes it.
    pub(super) fault: Option<&'static str>,
    /// The unit loads, but does not have the requested effect.
    pub(super) warning: Option<&'static str>,
}

/// Checks a unit together with its drop-ins. A unit whose file is not in the config is not checked,
/// because its content is only known on the machine.
pub(super) fn check(unit: &Unit) -> UnitCheckResult {
    let Some(contents) = &unit.contents else {
        return UnitCheckResult::default();
    };
    let (mut file, _) = UnitFile::read(contents);
    // systemd reads drop-ins in the order of their names, which is the map's order.
    for drop_in in unit.dropins.values() {
        file.add(UnitFile::read(drop_in).0);
    }
    let enabled = unit.enabled == Some(true) && !unit.mask;
    UnitCheckResult {
        fault: service_fault(&file),
        warning: (enabled && !file.has_section("Install"))
            .then_some("is enabled, but has no [Install] section: it is never started"),
    }
}

/// Why systemd would not load a service, given with its drop-ins: the rules that `systemctl start`
/// reports as `bad-setting` (systemd.service(5), ExecStart= and Type=).
pub fn service_fault(file: &UnitFile) -> Option<&'static str> {
    let starts = file.values("Service", "ExecStart").len();
    let kind = match file.last("Service", "Type") {
        Some(kind) => kind,
        None if file.last("Service", "BusName").is_some() => "dbus",
        None if starts > 0 => "simple",
        None => "oneshot",
    };
    let acts_on_success = file
        .last("Unit", "SuccessAction")
        .is_some_and(|action| action != "none");
    let stops = !file.values("Service", "ExecStop").is_empty();
    let remains = file.last("Service", "RemainAfterExit").is_some_and(|word| {
        matches!(
            &*word.to_lowercase(),
            "yes" | "y" | "true" | "t" | "on" | "1"
        )
    });
    if starts > 1 && kind != "oneshot" {
        Some("has several ExecStart=, which only Type=oneshot may have")
    } else if starts > 0 {
        None
    } else if kind != "oneshot" {
        Some("has no ExecStart=, which only Type=oneshot may leave out")
    } else if acts_on_success || (stops && remains) {
        None
    } else if stops {
        Some("has ExecStop= without ExecStart=, but not RemainAfterExit=yes")
    } else {
        Some("has neither ExecStart= nor ExecStop=")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> Option<&'static str> {
        service_fault(&UnitFile::parse(text).unwrap())
    }

    #[test]
    fn a_service_without_an_exec_start_is_reported() {
        for good in [
            "[Service]\nExecStart=/bin/a",
            "[Service]\nType=oneshot\nExecStart=/bin/a\nExecStart=/bin/b",
            "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStop=/bin/a",
            "[Service]\nRemainAfterExit=1\nExecStop=/bin/a",
            "[Unit]\nSuccessAction=poweroff\n[Service]\nType=oneshot",
        ] {
            assert_eq!(fault(good), None, "{good}");
        }
        for bad in [
            "",
            "[Servce]\nExecStart=/bin/a",
            "[Service]\nExecStart=/bin/a\nExecStart=",
            "[Service]\nExecStart=/bin/a\nExecStart=/bin/b",
            "[Service]\nType=simple\nRemainAfterExit=yes\nExecStop=/bin/a",
            "[Service]\nType=oneshot\nExecStop=/bin/a",
        ] {
            assert!(fault(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn a_drop_in_can_supply_missing_unit_directives() {
        let mut unit = Unit {
            contents: Some("[Service]\nType=simple".into()),
            enabled: Some(true),
            ..Unit::default()
        };
        assert!(check(&unit).fault.is_some() && check(&unit).warning.is_some());
        let text = "[Service]\nExecStart=/bin/a\n[Install]\nWantedBy=multi-user.target";
        unit.dropins.insert("10-a.conf".into(), text.into());
        assert_eq!(check(&unit), UnitCheckResult::default());
    }
}
