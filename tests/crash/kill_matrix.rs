//! Kills before and after every effect and every phase.

use std::{collections::BTreeSet, time::Duration};

use machinist_rootfs::TreeSnapshot;
use machinist_update::{
    crash_recovery,
    phase::{Phase, PhaseEffect},
    store::StateStore,
};

use crate::crash::{
    child::{Ended, Order, Place, RunMode},
    harness::{Driver, UNIT, boot},
};
use machinist_testkit::{
    node::FakeNode,
    sandbox::{Sandbox, conduct, difference, restarting},
    scripted_services::Script,
    update_case::{Case, plain},
};

/// Lists the cases and matches exhaustively: an effect or a phase without a case does not compile.
macro_rules! cases {
    ($list:ident, $of:ident: $kind:ident { $($name:ident => [$($course:ident $phase:ident),*],)+ }) => {
        const $list: &[$kind] = &[$($kind::$name,)+];

        fn $of(what: $kind) -> &'static [(RunMode, Phase)] {
            match what {
                $($kind::$name => &[$((RunMode::$course, Phase::$phase)),*],)+
            }
        }
    };
}

cases!(EFFECTS, done_in: PhaseEffect {
    Plan => [Restart Planned, Reboot Planned],
    AwaitRelease => [Restart Waiting],
    // These machines have no OS provider; `tests/update/os_images.rs` restarts the agent during a download.
    Fetch => [],
    Cordon => [Reboot Cordoned],
    Withhold => [Reboot DisablingDevices],
    Drain => [Reboot Draining],
    Quiesce => [Reboot Drained],
    Stage => [Restart Staging, Undo Staging],
    Commit => [Restart Committing, Reboot Committing],
    Act => [Restart RunningActions, Reboot RunningActions, Reboot Booted, Undo RunningActions],
    Reboot => [Reboot RebootPending],
    Verify => [Restart Verifying, Reboot Verifying],
    Undo => [Undo RollingBack],
    Uncordon => [Reboot Uncordoning],
});

cases!(PHASES, passed_in: Phase {
    Idle => [Restart Idle],
    Planned => [Undo Planned],
    Waiting => [Reboot Waiting, Undo Waiting],
    Fetching => [],
    Cordoned => [],
    DisablingDevices => [],
    Draining => [],
    Drained => [],
    Staging => [Reboot Staging],
    Committing => [Undo Committing],
    RunningActions => [],
    RebootPending => [],
    Booted => [],
    Verifying => [],
    RollingBack => [],
    Uncordoning => [],
    Failed => [Undo Failed],
});

/// A machine on the old config, in its first boot.
pub(crate) fn machine(case: &Case) -> Sandbox {
    let sandbox = case.sandbox();
    boot(&sandbox, "boot-1");
    sandbox
}

/// The tree as other processes see it, without the kernel's files.
pub(crate) fn tree(sandbox: &Sandbox) -> TreeSnapshot {
    let mut tree = sandbox.tree();
    tree.0.retain(|path, _| !path.as_str().starts_with("/proc"));
    tree
}

/// Asserts that recovery alone leaves the old or the new config.
pub(crate) fn must_be_old_or_new(case: &Case, sandbox: &Sandbox, what: &str) {
    let store = StateStore::open(&sandbox.root()).unwrap();
    crash_recovery::recover(&store).unwrap_or_else(|error| panic!("{what}: {error:?}"));
    let tree = tree(sandbox);
    let told = || {
        let seen = machinist_testkit::sandbox::without_staging(&tree);
        let old = machinist_testkit::sandbox::without_staging(&case.old);
        format!("{what}\nto old:\n{}", difference(&old, &seen))
    };
    assert!(case.is_old_or_new(&tree), "{}", told());
}

pub(crate) fn restarts(asked: &[String]) -> usize {
    let restart = format!("Restart {UNIT}");
    asked.iter().filter(|asked| **asked == restart).count()
}

/// Whether the process had requested a reboot before it was killed.
pub(crate) fn rebooted(ended: &Ended) -> bool {
    ended.asked.iter().any(|asked| asked.starts_with("reboot"))
}

/// Starts again until the course has finished; returns all requests.
pub(crate) fn finish(case: &Case, sandbox: &Sandbox, course: RunMode, what: &str) -> Vec<String> {
    let script = Script::new();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let start = |script: &Script| {
            let conduct = match course {
                RunMode::Reboot => conduct(true),
                _ => restarting(UNIT),
            };
            let (root, desired) = (sandbox.root(), case.to.desired());
            let mut driver = match course {
                RunMode::Reboot => {
                    let node = FakeNode::of(sandbox);
                    node.stops(&["monitor.service"]);
                    Driver::on_node(&root, script, &node, desired, conduct)
                }
                _ => Driver::on(&root, script, desired, conduct),
            };
            driver.patience = Duration::from_secs(24 * 3600);
            driver
        };
        if course == RunMode::Undo {
            let failing = machinist_base::reason::Reason::JobFailed;
            script.fails(&format!("Restart {UNIT}"), failing, false);
            let mut driver = start(&script);
            driver.until_failed().await;
            driver.stop().await;
            return;
        }
        let mut driver = start(&script);
        let new = machinist_ignition::digest(&case.to.0);
        let report = driver
            .until("an end or a reboot", |report| {
                let current = report.config.current.as_ref().map(|name| name.digest);
                let on = current == Some(new) && report.phase == Phase::Idle;
                on || report.phase == Phase::RebootPending
            })
            .await;
        if report.phase == Phase::RebootPending {
            script.until_reboot().await;
            driver.stop().await;
            boot(sandbox, "boot-3");
            driver = start(&script);
            driver.until_on(&case.to).await;
        }
        driver.stop().await;
    });
    let expected = match course {
        RunMode::Undo => &case.old,
        _ => &case.new,
    };
    let tree = plain(&tree(sandbox));
    assert!(tree == *expected, "{what}\n{}", difference(expected, &tree));
    assert_eq!(sandbox.journal().transactions, [], "{what}");
    script.asked()
}

fn order(sandbox: &Sandbox, course: RunMode, place: Option<Place>) -> Ended {
    let root = sandbox.path("");
    let order = Order {
        root,
        course,
        place,
    };
    order.run()
}

/// One case of the matrix; returns whether the process reached the place.
fn killed_at(case: &Case, course: RunMode, phase: Phase, place: Place) -> bool {
    let what = format!("{course:?}, {} {place:?}", phase.name());
    let sandbox = machine(case);
    let mut asked = Vec::new();
    // Phases after a reboot belong to the start after it.
    let after = [Phase::Booted, Phase::Verifying, Phase::Uncordoning];
    let second = course == RunMode::Reboot && after.contains(&phase);
    if second {
        let first = order(&sandbox, course, None);
        assert!(rebooted(&first), "{what}");
        asked.extend(first.asked);
        boot(&sandbox, "boot-2");
    }
    let ended = order(&sandbox, course, Some(place));
    if !ended.killed {
        return false;
    }
    if rebooted(&ended) {
        boot(&sandbox, "boot-2");
    }
    asked.extend(ended.asked);
    must_be_old_or_new(case, &sandbox, &what);
    asked.extend(finish(case, &sandbox, course, &what));
    match course {
        // Between two phases the state is known: the restart is done once.
        RunMode::Restart => assert_eq!(restarts(&asked), 1, "{what}: {asked:?}"),
        RunMode::Reboot => {
            let reboots = asked.iter().filter(|asked| asked.starts_with("reboot"));
            assert_eq!(reboots.count(), 1, "{what}: {asked:?}");
            let at = |what: &str| asked.iter().position(|it| it.starts_with(what));
            assert!(
                at("Stop monitor.service") < at("reboot"),
                "{what}: {asked:?}"
            );
            must_have_drained_once(&sandbox, &what);
        }
        RunMode::Undo => assert!((1..=3).contains(&restarts(&asked)), "{what}: {asked:?}"),
    }
    true
}

/// Asserts one cordon, one drain and one uncordon, in this order: a restarted process repeats no
/// completed request.
pub(crate) fn must_have_drained_once(sandbox: &Sandbox, what: &str) {
    let log = FakeNode::of(sandbox).log();
    let order: Vec<&str> = log
        .iter()
        .filter_map(|line| line.split(' ').next())
        .collect();
    let mut drained = order.clone();
    drained.dedup();
    assert_eq!(drained, ["cordon", "drain", "uncordon"], "{what}: {log:?}");
    let last = log.last().and_then(|line| line.split(' ').nth(1));
    assert_eq!(
        last,
        Some(machinist_testkit::update_case::wanted().0.name.as_str()),
        "{what}"
    );
    assert_eq!(
        sandbox.journal().cordon,
        None,
        "{what}: a device is still disabled or a unit still stopped"
    );
}

#[test]
fn a_kill_around_any_effect_or_phase_ends_as_without_the_kill() {
    let case = Case::everything();
    let effects = EFFECTS.iter().flat_map(|effect| done_in(*effect));
    let phases = PHASES.iter().flat_map(|phase| passed_in(*phase));
    let (mut kills, mut covered) = (0, BTreeSet::new());
    for (course, phase) in effects.chain(phases).copied() {
        let index = Phase::ALL.iter().position(|known| *known == phase).unwrap();
        for place in [Place::Entering(index), Place::Leaving(index)] {
            // A course ends in these phases, so they are never left.
            let last = matches!(phase, Phase::RebootPending | Phase::Failed);
            if last && place == Place::Leaving(index) {
                continue;
            }
            let came = killed_at(&case, course, phase, place);
            assert!(came, "{course:?} never comes to {} {place:?}", phase.name());
            kills += 1;
            covered.insert(index);
        }
    }
    // All phases but that of a download.
    let expected = Phase::ALL.len() - 1;
    println!("{kills} kills, {} of {expected} phases", covered.len());
    assert_eq!(covered.len(), expected);
}
