//! The table of phases, checked exhaustively.

use std::collections::{BTreeSet, VecDeque};

use machinist::update::phase::{Effect, Event, Phase};

fn events() -> Vec<Event> {
    let mut all = vec![
        Event::Desired,
        Event::Withdrawn,
        Event::PlanEmpty,
        Event::PlanReady,
        Event::Cordoned,
        Event::Withheld,
        Event::Drained,
        Event::Permitted,
        Event::Refilled,
        Event::Replan,
        Event::Staged,
        Event::Committed,
        Event::Verified,
        Event::StepFailed,
        Event::UndoFailed,
        Event::Retry,
        Event::RebootDue,
        Event::BootSeen,
    ];
    for yes in [false, true] {
        all.push(Event::PlanRefused {
            reboot_pending: yes,
        });
        all.push(Event::ActionsDone { reboot: yes });
        all.push(Event::Released { drain: yes });
        all.push(Event::Uncordoned { failed: yes });
        for withdrawn in [false, true] {
            all.push(Event::Undone {
                reboot: yes,
                withdrawn,
            });
        }
    }
    all
}

/// The events with which an effect may end.
fn answers(effect: Effect) -> Vec<Event> {
    let refused = |reboot_pending| Event::PlanRefused { reboot_pending };
    let done = |reboot| Event::ActionsDone { reboot };
    let undone = |reboot, withdrawn| Event::Undone { reboot, withdrawn };
    let mut all = match effect {
        Effect::Plan => vec![
            Event::PlanEmpty,
            Event::PlanReady,
            refused(true),
            refused(false),
        ],
        Effect::AwaitRelease => {
            let released = |drain| Event::Released { drain };
            vec![released(true), released(false), Event::Withdrawn]
        }
        // The desired config may change meanwhile, too.
        Effect::Cordon => vec![Event::Cordoned, Event::Desired, Event::Withdrawn],
        Effect::Withhold => vec![Event::Withheld, Event::Desired, Event::Withdrawn],
        Effect::Drain => vec![Event::Drained, Event::Desired, Event::Withdrawn],
        Effect::Quiesce => vec![
            Event::Permitted,
            Event::Refilled,
            Event::Desired,
            Event::Withdrawn,
        ],
        Effect::Uncordon => {
            let lifted = |failed| Event::Uncordoned { failed };
            return vec![lifted(true), lifted(false), Event::Desired];
        }
        Effect::Stage => vec![Event::Staged, Event::Replan],
        Effect::Commit => vec![Event::Committed],
        Effect::Act => vec![done(true), done(false)],
        Effect::Reboot => vec![Event::Desired, Event::Withdrawn, Event::BootSeen],
        Effect::Verify => vec![Event::Verified],
        Effect::Undo => {
            return vec![
                undone(true, false),
                undone(true, true),
                undone(false, true),
                undone(false, false),
                Event::UndoFailed,
            ];
        }
    };
    all.push(Event::StepFailed);
    all
}

#[test]
fn every_phase_answers_every_event_and_stays_where_it_is_when_there_is_nothing_to_do() {
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
fn every_answer_of_an_effect_leads_on() {
    let ways = [
        (Phase::Planned, Effect::Plan),
        (Phase::Waiting, Effect::AwaitRelease),
        (Phase::Cordoned, Effect::Cordon),
        (Phase::Withholding, Effect::Withhold),
        (Phase::Draining, Effect::Drain),
        (Phase::Drained, Effect::Quiesce),
        (Phase::Staging, Effect::Stage),
        (Phase::Committing, Effect::Commit),
        (Phase::Acting, Effect::Act),
        (Phase::Booted, Effect::Act),
        (Phase::RebootPending, Effect::Reboot),
        (Phase::Verifying, Effect::Verify),
        (Phase::Undoing, Effect::Undo),
        (Phase::Uncordoning, Effect::Uncordon),
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
fn whatever_would_end_gives_the_node_back_first_and_nothing_else_does() {
    for phase in Phase::ALL {
        for event in events() {
            let (next, effect) = phase.on(event, false);
            let lifted = phase.on(event, true);
            let ends = matches!(next, Phase::Idle | Phase::Failed);
            match ends && !matches!(event, Event::Uncordoned { .. }) {
                true => assert_eq!(
                    lifted,
                    (Phase::Uncordoning, Some(Effect::Uncordon)),
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
fn with_a_drain_nothing_is_staged_that_was_not_cordoned_drained_and_permitted() {
    let order = [
        (Phase::Waiting, Event::Released { drain: true }),
        (Phase::Cordoned, Event::Cordoned),
        (Phase::Withholding, Event::Withheld),
        (Phase::Draining, Event::Drained),
        (Phase::Drained, Event::Permitted),
    ];
    for (index, (phase, event)) in order.into_iter().enumerate() {
        let (next, _) = phase.on(event, false);
        let follows = order
            .get(index + 1)
            .map_or(Phase::Staging, |(next, _)| *next);
        assert_eq!(next, follows);
        for other in events().into_iter().filter(|other| *other != event) {
            let leads = phase.on(other, false).0;
            let undrained = phase == Phase::Waiting && other == Event::Released { drain: false };
            assert!(leads != Phase::Staging || undrained, "{phase:?} {other:?}");
        }
    }
}

/// Follows every sequence of events that effects and the environment can cause.
#[test]
fn nothing_is_committed_unstaged_acted_on_uncommitted_or_verified_unfinished() {
    type Marks = (bool, bool, bool);
    let mut seen: BTreeSet<(String, Marks)> = BTreeSet::new();
    let mut todo: VecDeque<(Phase, Option<Effect>, Marks)> = VecDeque::new();
    // The states at the first start, and those that the journal may restore at a later one.
    todo.push_back((Phase::Idle, None, (false, false, false)));
    todo.push_back((Phase::Acting, Some(Effect::Act), (true, true, false)));
    todo.push_back((Phase::Booted, Some(Effect::Act), (true, true, false)));
    todo.push_back((Phase::Undoing, Some(Effect::Undo), (true, true, false)));
    while let Some((phase, effect, marks)) = todo.pop_front() {
        if !seen.insert((format!("{phase:?} {effect:?}"), marks)) {
            continue;
        }
        let (staged, committed, acted) = marks;
        match effect {
            Some(Effect::Commit) => assert!(staged),
            Some(Effect::Act) => assert!(committed),
            Some(Effect::Verify) => assert!(committed && acted),
            _ => {}
        }
        let events = match effect {
            Some(effect) => answers(effect),
            None => vec![Event::Desired, Event::Withdrawn, Event::Retry],
        };
        for event in events {
            // It is reported for a committed update alone; the boot after a rollback leads back to
            // the rollback.
            if event == Event::BootSeen && !committed {
                continue;
            }
            let marks = match event {
                Event::Staged => (true, false, false),
                Event::Committed => (staged, staged, false),
                Event::ActionsDone { .. } => (staged, committed, committed),
                Event::Verified | Event::Undone { reboot: false, .. } => (false, false, false),
                // Another config is staged on top.
                Event::Released { .. } => (false, false, false),
                _ => marks,
            };
            let (next, effect) = phase.on(event, false);
            todo.push_back((next, effect, marks));
        }
    }
    assert!(seen.len() > 15, "{}", seen.len());
}
