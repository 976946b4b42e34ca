//! The table of phases, checked exhaustively.

use std::collections::{BTreeSet, VecDeque};

use machinist_update::phase::{Phase, PhaseEffect, PhaseEvent};

fn events() -> Vec<PhaseEvent> {
    let mut all = vec![
        PhaseEvent::Desired,
        PhaseEvent::Withdrawn,
        PhaseEvent::PlanEmpty,
        PhaseEvent::PlanReady,
        PhaseEvent::PlanRefused,
        PhaseEvent::Resume,
        PhaseEvent::ImageMissing,
        PhaseEvent::Fetched,
        PhaseEvent::Cordoned,
        PhaseEvent::DevicesDisabled,
        PhaseEvent::Drained,
        PhaseEvent::Permitted,
        PhaseEvent::Refilled,
        PhaseEvent::Replan,
        PhaseEvent::Staged,
        PhaseEvent::Committed,
        PhaseEvent::Verified,
        PhaseEvent::StepFailed,
        PhaseEvent::RollbackFailed,
        PhaseEvent::Retry,
        PhaseEvent::RebootDue,
        PhaseEvent::BootSeen,
    ];
    for yes in [false, true] {
        all.push(PhaseEvent::ActionsDone { reboot: yes });
        all.push(PhaseEvent::Released { drain: yes });
        all.push(PhaseEvent::Uncordoned { failed: yes });
        for withdrawn in [false, true] {
            all.push(PhaseEvent::Undone {
                reboot: yes,
                withdrawn,
            });
        }
    }
    all
}

/// The events with which an effect may end.
fn answers(effect: PhaseEffect) -> Vec<PhaseEvent> {
    let done = |reboot| PhaseEvent::ActionsDone { reboot };
    let undone = |reboot, withdrawn| PhaseEvent::Undone { reboot, withdrawn };
    let mut all = match effect {
        PhaseEffect::Plan => vec![PhaseEvent::PlanEmpty, PhaseEvent::PlanReady],
        PhaseEffect::AwaitRelease => vec![PhaseEvent::ImageMissing, PhaseEvent::Withdrawn],
        PhaseEffect::Fetch => vec![PhaseEvent::Fetched, PhaseEvent::Replan],
        PhaseEffect::Cordon => vec![PhaseEvent::Cordoned],
        PhaseEffect::Withhold => vec![PhaseEvent::DevicesDisabled],
        PhaseEffect::Drain => vec![PhaseEvent::Drained],
        PhaseEffect::Quiesce => vec![PhaseEvent::Permitted, PhaseEvent::Refilled],
        PhaseEffect::Uncordon => {
            let lifted = |failed| PhaseEvent::Uncordoned { failed };
            return vec![lifted(true), lifted(false), PhaseEvent::Desired];
        }
        PhaseEffect::Stage => vec![PhaseEvent::Staged, PhaseEvent::Replan],
        PhaseEffect::Commit => vec![PhaseEvent::Committed],
        PhaseEffect::Act => vec![done(true), done(false)],
        PhaseEffect::Reboot => vec![PhaseEvent::BootSeen],
        PhaseEffect::Verify => vec![PhaseEvent::Verified],
        PhaseEffect::Undo => {
            return vec![
                undone(true, false),
                undone(true, true),
                undone(false, true),
                undone(false, false),
                PhaseEvent::RollbackFailed,
            ];
        }
    };
    let released = |drain| PhaseEvent::Released { drain };
    match effect {
        PhaseEffect::Plan => all.push(PhaseEvent::PlanRefused),
        PhaseEffect::AwaitRelease => all.extend([released(true), released(false)]),
        _ => {}
    }
    if precedes_staging(effect) {
        all.push(PhaseEvent::Resume);
    }
    if is_interrupted_by_desired(effect) {
        all.extend([PhaseEvent::Desired, PhaseEvent::Withdrawn]);
    }
    all.push(PhaseEvent::StepFailed);
    all
}

const fn precedes_staging(effect: PhaseEffect) -> bool {
    matches!(
        effect,
        PhaseEffect::Plan
            | PhaseEffect::AwaitRelease
            | PhaseEffect::Fetch
            | PhaseEffect::Cordon
            | PhaseEffect::Withhold
            | PhaseEffect::Drain
            | PhaseEffect::Quiesce
    )
}

/// Whether the desired config may change while the effect runs.
const fn is_interrupted_by_desired(effect: PhaseEffect) -> bool {
    matches!(
        effect,
        PhaseEffect::Fetch
            | PhaseEffect::Cordon
            | PhaseEffect::Withhold
            | PhaseEffect::Drain
            | PhaseEffect::Quiesce
            | PhaseEffect::Reboot
    )
}

#[test]
fn every_phase_handles_every_event_and_changes_only_with_an_effect() {
    for phase in Phase::ALL {
        for event in events() {
            let (next, effect) = phase.on(event, false);
            let waits = matches!(next, Phase::Idle | Phase::Failed);
            if next != phase {
                assert_eq!(
                    effect.is_none(),
                    waits,
                    "{phase:?} {event:?} → {next:?} {effect:?}"
                );
            }
            if effect.is_none() && !waits {
                assert_eq!(next, phase, "{event:?} leaves {phase:?} with nothing to do");
            }
        }
    }
}

#[test]
fn every_effect_result_advances_the_phase() {
    let ways = [
        (Phase::Planned, PhaseEffect::Plan),
        (Phase::Waiting, PhaseEffect::AwaitRelease),
        (Phase::Fetching, PhaseEffect::Fetch),
        (Phase::Cordoned, PhaseEffect::Cordon),
        (Phase::DisablingDevices, PhaseEffect::Withhold),
        (Phase::Draining, PhaseEffect::Drain),
        (Phase::Drained, PhaseEffect::Quiesce),
        (Phase::Staging, PhaseEffect::Stage),
        (Phase::Committing, PhaseEffect::Commit),
        (Phase::RunningActions, PhaseEffect::Act),
        (Phase::Booted, PhaseEffect::Act),
        (Phase::RebootPending, PhaseEffect::Reboot),
        (Phase::Verifying, PhaseEffect::Verify),
        (Phase::RollingBack, PhaseEffect::Undo),
        (Phase::Uncordoning, PhaseEffect::Uncordon),
    ];
    for (phase, effect) in ways {
        for event in answers(effect) {
            let (next, _) = phase.on(event, false);
            assert_ne!(next, phase, "{phase:?} is stuck after {event:?}");
        }
    }
}

/// The node is uncordoned only when nothing is left of the update, neither on the disk nor to be
/// retried.
#[test]
fn every_end_of_an_update_uncordons_the_node_first() {
    for phase in Phase::ALL {
        for event in events() {
            let (next, effect) = phase.on(event, false);
            let lifted = phase.on(event, true);
            let ends = matches!(next, Phase::Idle | Phase::Failed);
            match ends && !matches!(event, PhaseEvent::Uncordoned { .. }) {
                true => assert_eq!(
                    lifted,
                    (Phase::Uncordoning, Some(PhaseEffect::Uncordon)),
                    "{phase:?} {event:?}"
                ),
                false => assert_eq!(lifted, (next, effect), "{phase:?} {event:?}"),
            }
        }
    }
}

/// Where a drain was decided on, nothing is staged before the pods are gone and the final check is
/// over.
#[test]
fn staging_with_a_drain_requires_cordon_drain_and_permission() {
    let order = [
        (Phase::Waiting, PhaseEvent::Released { drain: true }),
        (Phase::Cordoned, PhaseEvent::Cordoned),
        (Phase::DisablingDevices, PhaseEvent::DevicesDisabled),
        (Phase::Draining, PhaseEvent::Drained),
        (Phase::Drained, PhaseEvent::Permitted),
    ];
    for (index, (phase, event)) in order.into_iter().enumerate() {
        let (next, _) = phase.on(event, false);
        let follows = order
            .get(index + 1)
            .map_or(Phase::Staging, |(next, _)| *next);
        assert_eq!(next, follows);
        for other in events().into_iter().filter(|other| *other != event) {
            let leads = phase.on(other, false).0;
            let undrained =
                phase == Phase::Waiting && other == PhaseEvent::Released { drain: false };
            assert!(leads != Phase::Staging || undrained, "{phase:?} {other:?}");
        }
    }
}

/// Follows every sequence of events that effects and the environment can cause.
#[test]
fn commit_actions_and_verification_never_skip_a_phase() {
    type Marks = (bool, bool, bool);
    let mut seen: BTreeSet<(String, Marks)> = BTreeSet::new();
    let mut todo: VecDeque<(Phase, Option<PhaseEffect>, Marks)> = VecDeque::new();
    // The states at the first start, and those that the journal may restore at a later one.
    todo.push_back((Phase::Idle, None, (false, false, false)));
    todo.push_back((
        Phase::RunningActions,
        Some(PhaseEffect::Act),
        (true, true, false),
    ));
    todo.push_back((Phase::Booted, Some(PhaseEffect::Act), (true, true, false)));
    todo.push_back((
        Phase::RollingBack,
        Some(PhaseEffect::Undo),
        (true, true, false),
    ));
    while let Some((phase, effect, marks)) = todo.pop_front() {
        if !seen.insert((format!("{phase:?} {effect:?}"), marks)) {
            continue;
        }
        let (staged, committed, acted) = marks;
        match effect {
            Some(PhaseEffect::Commit) => assert!(staged),
            Some(PhaseEffect::Act) => assert!(committed),
            Some(PhaseEffect::Verify) => assert!(committed && acted),
            _ => {}
        }
        let events = match effect {
            Some(effect) => answers(effect),
            None => vec![
                PhaseEvent::Desired,
                PhaseEvent::Withdrawn,
                PhaseEvent::Retry,
            ],
        };
        for event in events {
            // They are reported for a committed update alone; the boot after a rollback leads back to
            // the rollback.
            let is_of_open_update = matches!(event, PhaseEvent::BootSeen | PhaseEvent::Resume);
            if is_of_open_update && !committed {
                continue;
            }
            let marks = match event {
                PhaseEvent::Staged => (true, false, false),
                PhaseEvent::Committed => (staged, staged, false),
                PhaseEvent::ActionsDone { .. } => (staged, committed, committed),
                PhaseEvent::Verified | PhaseEvent::Undone { reboot: false, .. } => {
                    (false, false, false)
                }
                // Another config is staged on top.
                PhaseEvent::Released { .. } => (false, false, false),
                _ => marks,
            };
            let (next, effect) = phase.on(event, false);
            todo.push_back((next, effect, marks));
        }
    }
    assert!(seen.len() > 15, "{}", seen.len());
}
