use std::error::Error as _;

use super::*;

fn sorted(name: &str, text: &str) -> SystemdErrorKind {
    SystemdErrorKind::named(name, text.to_owned())
}

#[test]
fn a_block_inhibitor_error_is_recognised_by_both_error_names() {
    for (name, text) in [
        (
            "org.freedesktop.DBus.Error.AccessDenied",
            "Access denied due to active block inhibitor",
        ),
        (
            "org.freedesktop.login1.BlockedByInhibitorLock",
            "Operation denied due to active block inhibitor",
        ),
    ] {
        let error = SystemdError::new("reboot", sorted(name, text));
        assert_eq!(error.reason(), Reason::RebootInhibited, "{name}");
        assert!(error.is_retryable());
    }
    let denied = sorted(
        "org.freedesktop.DBus.Error.AccessDenied",
        "Permission denied",
    );
    assert!(matches!(denied, SystemdErrorKind::NotAuthorized(_)));
}

#[test]
fn systemd_errors_map_to_reason_codes() {
    for (short, code) in [
        ("NoSuchUnit", Reason::UnitNotFound),
        ("UnitMasked", Reason::UnitMasked),
        ("BadUnitSetting", Reason::UnitInvalid),
        ("JobTypeNotApplicable", Reason::JobRefused),
        ("OnlyByDependency", Reason::JobRefused),
        ("TransactionIsDestructive", Reason::RebootPending),
        ("ShuttingDown", Reason::RebootPending),
    ] {
        let trouble = sorted(&format!("org.freedesktop.systemd1.{short}"), "");
        assert_eq!(trouble.reason(), code, "{short}");
    }
}

#[test]
fn a_systemd_errors_cause_is_its_source_and_not_repeated() {
    let error = SystemdError::new("restart a.service", SystemdErrorKind::UnitMasked);
    assert_eq!(error.to_string(), "cannot restart a.service");
    assert_eq!(error.source().unwrap().to_string(), "the unit is masked");
}
