//! A service manager that is unreachable for a minute, and a clock that jumps by a day, in each
//! phase.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use jiff::{Timestamp, ToSpan as _};
use machinist_base::reason::Reason;
use machinist_update::{
    journal::{Journal, TransactionState},
    phase::Phase,
    store::StateStore,
};
use tokio_util::sync::CancellationToken;

use crate::crash::{
    child::{Order, Place, RunMode},
    harness::{Driver, UNIT, boot},
    kill_matrix::{finish, machine, must_be_old_or_new, rebooted, restarts, tree},
    phase_observer::listen,
};
use machinist_testkit::{
    sandbox::{Sandbox, conduct, difference, restarting},
    scripted_services::Script,
    update_case::{Case, plain},
};

const PHASES: [(RunMode, Phase); 9] = [
    (RunMode::Restart, Phase::Planned),
    (RunMode::Restart, Phase::Waiting),
    (RunMode::Restart, Phase::Staging),
    (RunMode::Restart, Phase::Committing),
    (RunMode::Restart, Phase::RunningActions),
    (RunMode::Restart, Phase::Verifying),
    (RunMode::Reboot, Phase::RebootPending),
    (RunMode::Reboot, Phase::Booted),
    (RunMode::Undo, Phase::RollingBack),
];

#[test]
fn a_systemd_outage_in_any_phase_only_delays_the_update() {
    let case = Case::everything();
    for (course, phase) in PHASES {
        let what = format!("{course:?}, gone in {}", phase.name());
        let sandbox = machine(&case);
        let script = Script::new();
        let went = Arc::new(AtomicBool::new(false));
        let (goes, at) = (script.clone(), Arc::clone(&went));
        let _listening = listen(move |passage| {
            if passage.phase == phase.name() && !at.swap(true, Ordering::Relaxed) {
                goes.be_unreachable_for(Duration::from_secs(60));
            }
        });
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let conduct = || match course {
                RunMode::Reboot => conduct(true),
                _ => restarting(UNIT),
            };
            let start = || {
                let mut driver = Driver::on(&sandbox.root(), &script, case.to.desired(), conduct());
                driver.patience = Duration::from_secs(24 * 3600);
                driver
            };
            let mut driver = start();
            match course {
                RunMode::Restart => drop(driver.until_on(&case.to).await),
                RunMode::Reboot => {
                    script.until_reboot().await;
                    driver.stop().await;
                    boot(&sandbox, "boot-2");
                    driver = start();
                    driver.until_on(&case.to).await;
                }
                RunMode::Undo => {
                    script.fails(&format!("Restart {UNIT}"), Reason::JobFailed, false);
                    driver.until_failed().await;
                }
            }
            driver.stop().await;
        });
        assert!(went.load(Ordering::Relaxed), "{what}: never");
        let expected = match course {
            RunMode::Undo => &case.old,
            _ => &case.new,
        };
        let tree = plain(&tree(&sandbox));
        assert!(tree == *expected, "{what}\n{}", difference(expected, &tree));
        if course == RunMode::Undo {
            // Once for the removed config, once for the restored one.
            assert_eq!(restarts(&script.asked()), 2, "{what}");
        }
    }
}

/// Shifts every time in the journal.
fn shift(journal: &mut Journal, hours: i64) {
    let moved = |time: Timestamp| time.checked_add(hours.hours()).unwrap();
    for tx in &mut journal.transactions {
        tx.started = moved(tx.started);
        for phase in &mut tx.phases {
            phase.started = moved(phase.started);
            phase.finished = phase.finished.map(moved);
        }
        if let Some(reboot) = &mut tx.reboot {
            reboot.ordered = moved(reboot.ordered);
        }
    }
    for update in &mut journal.history {
        (update.started, update.finished) = (moved(update.started), moved(update.finished));
    }
    if let Some((_, since)) = &mut journal.devices_before {
        *since = moved(*since);
    }
}

#[test]
fn a_clock_jump_of_a_day_in_any_phase_changes_nothing() {
    let case = Case::everything();
    for (course, phase) in PHASES {
        for hours in [24, -24] {
            let what = format!("{course:?}, {}, {hours} h", phase.name());
            let sandbox = machine(&case);
            let root = sandbox.path("");
            if phase == Phase::Booted {
                let (root, place) = (root.clone(), None);
                Order {
                    root,
                    course,
                    place,
                }
                .run();
                boot(&sandbox, "boot-2");
            }
            let index = Phase::ALL.iter().position(|known| *known == phase);
            let place = index.map(Place::Entering);
            let ended = Order {
                root,
                course,
                place,
            }
            .run();
            assert!(ended.killed, "{what}");
            if rebooted(&ended) {
                boot(&sandbox, "boot-2");
            }
            // The clock went the other way while the agent was down.
            let store = StateStore::open(&sandbox.root()).unwrap();
            let mut journal = store.load().unwrap();
            shift(&mut journal, -hours);
            store.save(&journal).unwrap();
            drop(store);
            must_be_old_or_new(&case, &sandbox, &what);
            finish(&case, &sandbox, course, &what);
        }
    }
}

/// The current step finishes, and no other one begins.
fn nothing_was_begun_after_the_stop(sandbox: &Sandbox, script: &Script, phase: Phase, what: &str) {
    let open = sandbox.journal().transactions;
    let committed = open.iter().any(|tx| tx.mark == TransactionState::Committed);
    match phase {
        Phase::Planned | Phase::Waiting => assert_eq!(open, [], "{what}"),
        Phase::Staging => assert!(!committed, "{what}: {open:?}"),
        Phase::Committing => assert_eq!(restarts(&script.asked()), 0, "{what}"),
        _ => {}
    }
}

#[test]
fn an_agent_stop_in_any_phase_is_immediate_and_resumed_at_the_next_start() {
    let case = Case::everything();
    for (course, phase) in PHASES {
        let what = format!("{course:?}, stopped in {}", phase.name());
        let sandbox = machine(&case);
        if phase == Phase::Booted {
            let (root, place) = (sandbox.path(""), None);
            Order {
                root,
                course,
                place,
            }
            .run();
            boot(&sandbox, "boot-2");
        }
        // Cancelled within the phase change itself: another task would cancel at some later step.
        let stop = CancellationToken::new();
        let stops = stop.clone();
        let listening = listen(move |passage| {
            if passage.phase == phase.name() {
                stops.cancel();
            }
        });
        let script = Script::new();
        if course == RunMode::Undo {
            script.fails(&format!("Restart {UNIT}"), Reason::JobFailed, false);
        }
        if phase == Phase::RunningActions {
            // However long a job takes.
            script.hangs(&format!("Restart {UNIT}"));
        }
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(async {
            let conduct = match course {
                RunMode::Reboot => conduct(true),
                _ => restarting(UNIT),
            };
            let (root, to) = (sandbox.root(), case.to.desired());
            let driver = Driver::stopped_by(&stop, &root, &script, to, conduct);
            stop.cancelled().await;
            driver.stop().await;
        });
        drop(listening);
        // Waits for work that cannot be interrupted, as the end of the process does.
        drop(runtime);
        nothing_was_begun_after_the_stop(&sandbox, &script, phase, &what);
        if script
            .asked()
            .iter()
            .any(|asked| asked.starts_with("reboot"))
        {
            boot(&sandbox, "boot-2");
        }
        finish(&case, &sandbox, course, &what);
    }
}
