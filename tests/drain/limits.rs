//! Grace periods, and the time limits of a drain.

use std::time::Duration;

use machinist_drain::{BadGrace, ForceAction, ForceLimits, Grace};

use crate::drain::support::{at, made};

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_negative_grace_period_keeps_the_pods_own_and_a_positive_overrides_it() {
    let pod = made("web").grace(90).pod();
    assert_eq!(Grace::try_from(-1).unwrap().of(&pod), seconds(90));
    assert_eq!(Grace::try_from(-1).unwrap().seconds(), None);
    assert_eq!(Grace::try_from(30).unwrap().of(&pod), seconds(30));
    assert_eq!(Grace::try_from(30).unwrap().seconds(), Some(30));
    assert_eq!(Grace::default().of(&made("web").pod()), seconds(30));
}

#[test]
fn a_grace_period_of_zero_is_rejected() {
    assert_eq!(Grace::try_from(0), Err(BadGrace::Zero));
    assert_eq!(Grace::try_from(1 << 40), Err(BadGrace::TooLong(1 << 40)));
}

#[test]
fn a_force_limit_of_120_minutes_forces_nothing_in_minute_119() {
    let limits = ForceLimits::managed_upgrade(Some(120), None);
    let pod = made("web").pod();
    let act = |spent| limits.act(&pod, true, seconds(spent), false);
    assert_eq!(act(119 * 60), ForceAction::Wait);
    assert_eq!(act(120 * 60 - 1), ForceAction::Wait);
    assert_eq!(act(120 * 60), ForceAction::Delete);
    assert_eq!(limits.next(seconds(119 * 60)), Some(seconds(60)));
    assert_eq!(limits.next(seconds(120 * 60)), None);
    // The limit for budgets does not apply to pods without one.
    assert_eq!(
        limits.act(&pod, false, seconds(999_999), false),
        ForceAction::Wait
    );
}

#[test]
fn without_a_force_limit_nothing_is_forced_unless_requested() {
    let limits = ForceLimits::after(None);
    let pod = made("web").pod();
    assert_eq!(
        limits.act(&pod, true, Duration::MAX, false),
        ForceAction::Wait
    );
    assert_eq!(limits.next(Duration::ZERO), None);
    assert_eq!(
        limits.act(&pod, true, Duration::ZERO, true),
        ForceAction::Delete
    );
}

/// The drain strategies of the managed upgrade operator, without its grace of zero and without
/// touching finalizers.
#[test]
fn managed_upgrade_force_limits_follow_the_upgrade_operator() {
    let limits = ForceLimits::managed_upgrade(Some(60), Some(45));
    let held = made("web").finalizers(&["acme.dev/hold"]);
    let leaving = held.clone().deleting_by(at(30));
    let table = [
        (made("web").pod(), false, 45, ForceAction::Delete),
        (made("web").pod(), true, 45, ForceAction::Wait),
        (made("web").pod(), true, 60, ForceAction::Delete),
        (held.pod(), false, 45, ForceAction::Delete),
        (leaving.pod(), false, 45, ForceAction::Wait),
        (leaving.clone().ended().pod(), false, 44, ForceAction::Wait),
        (
            leaving.clone().ended().pod(),
            false,
            45,
            ForceAction::LeaveBehind,
        ),
        (leaving.clone().ended().pod(), true, 59, ForceAction::Wait),
        (leaving.ended().pod(), true, 60, ForceAction::LeaveBehind),
    ];
    for (row, (pod, budgeted, minutes, expected)) in table.iter().enumerate() {
        let act = limits.act(pod, *budgeted, seconds(minutes * 60), false);
        assert_eq!(act, *expected, "row {row}");
    }
}
