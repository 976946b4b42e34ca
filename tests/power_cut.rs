//! Power losses at every moment of an update, with every state that a file system may then show.

#![allow(
    clippy::print_stdout,
    clippy::too_many_lines,
    reason = "tables of mutants, and what caught them"
)]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test may panic, and looks at the disk with its own eyes"
)]

mod cases;
mod machine;
mod mutants;

use machinist_testkit::{sandbox, scripted_services, update_case};

use std::collections::HashSet;

use machinist_base::reason::Reason;
use machinist_rootfs::{
    FsOp, FsOpKind, Root,
    crash_replay::{Model, SearchBudget},
};

use machine::{Found, Recorded, as_at_boot};
use sandbox::{apply, from_environment, long, once, restarting};
use scripted_services::Script;
use update_case::Case;

fn seed() -> u64 {
    from_environment("MACHINIST_SEED").unwrap_or(1)
}

fn forward(case: Case) -> Recorded {
    Recorded::of(case, |root, case| {
        assert_eq!(apply(root, &case.to).unwrap().failure, None);
    })
}

/// An update that is rolled back after its commit.
fn undone(case: Case) -> Recorded {
    Recorded::of(case, |root, case| {
        let script = Script::new();
        script.fails("Restart x.service", Reason::JobFailed, false);
        let report = once(root, Some(script), restarting("x.service"), &case.to).unwrap();
        let failure = report.failure.as_ref().map(|failure| failure.code);
        assert_eq!(failure, Some(Reason::JobFailed));
    })
}

/// Tries every state at every `step`-th cut, or `count` of them where there are more.
fn all_good(recorded: &Recorded, name: &str, step: usize, count: usize) {
    for model in [Model::Ordered, Model::Strict] {
        let effort = SearchBudget {
            seed: seed(),
            count,
        };
        let begun = std::time::Instant::now();
        let found = recorded.cut(&recorded.log, as_at_boot, step, model, effort);
        println!(
            "{name}, {model:?}, {} operations, seed {}: {} states, {} trees; {} went back, {} on, \
             {} carried on with; {:?}",
            recorded.log.len(),
            seed(),
            found.states,
            found.results.len(),
            found.went_back,
            found.went_on,
            found.completed,
            begun.elapsed(),
        );
        let bad = found.bad.len();
        assert!(
            bad == 0,
            "seed {}: {bad} bad states; the first: {}",
            seed(),
            found.bad[0]
        );
        assert!(found.went_back > 0 && found.went_on > 0);
    }
}

#[test]
fn a_small_update_survives_a_power_cut_at_any_moment() {
    all_good(&forward(Case::small()), "small", 1, 100_000);
}

#[test]
fn an_update_of_every_kind_survives_a_power_cut_at_any_moment() {
    let (step, count) = if long() { (1, 50_000) } else { (1, 12) };
    all_good(&forward(Case::everything()), "everything", step, count);
}

#[test]
fn adding_or_removing_a_user_survives_a_power_cut_at_any_moment() {
    let (step, count) = if long() { (1, 20_000) } else { (2, 6) };
    all_good(&forward(Case::user_comes()), "user comes", step, count);
    all_good(&forward(Case::user_goes()), "user goes", step, count);
    let (step, count) = if long() { (1, 20_000) } else { (5, 4) };
    all_good(&undone(Case::user_comes()), "user undone", step, count);
    all_good(&undone(Case::user_goes()), "user brought back", step, count);
}

#[test]
fn a_large_update_survives_a_power_cut_at_any_moment() {
    let (step, count) = if long() { (1, 300) } else { (18, 3) };
    all_good(&forward(Case::large()), "large", step, count);
}

#[test]
fn a_rollback_survives_a_power_cut_at_any_moment() {
    let (step, count) = if long() { (1, 50_000) } else { (2, 6) };
    all_good(&undone(Case::everything()), "undone", step, count);
}

/// The old object is moved aside and the new one in: a moment without either, and never a mix
/// afterwards.
#[test]
fn without_rename_exchange_a_power_cut_at_any_moment_is_survived() {
    let only_new = |log: &[FsOp]| {
        let exchanges = |op: &&FsOp| matches!(op.act, FsOpKind::Exchange(_));
        assert_eq!(log.iter().find(exchanges), None);
        let aside =
            |op: &&FsOp| matches!(&op.act, FsOpKind::Rename(to) if to.as_str().ends_with(".aside"));
        log.iter().filter(aside).count()
    };
    let (step, count) = if long() { (1, 20_000) } else { (3, 4) };
    let updated = forward(Case::everything().without_exchange());
    assert!(only_new(&updated.log) >= 5);
    all_good(&updated, "everything, no exchange", step, count);
    let (step, count) = if long() { (1, 20_000) } else { (5, 3) };
    let back = undone(Case::everything().without_exchange());
    assert!(only_new(&back.log) >= 10);
    all_good(&back, "undone, no exchange", step, count);
    for (name, case, way) in cases::all() {
        let kinds = [
            "directory to file",
            "directory to link",
            "tree to file",
            "keys changed",
        ];
        if !kinds.contains(&name) {
            continue;
        }
        let case = case.without_exchange();
        let recorded = Recorded::of(case, |root, case| way.run(root, case));
        assert!(only_new(&recorded.log) > 0, "{name}");
        all_good(&recorded, &format!("{name}, no exchange"), step, count);
    }
    let comes = forward(Case::user_comes().without_exchange());
    only_new(&comes.log);
    all_good(&comes, "user comes, no exchange", step, count);
}

#[test]
fn a_second_power_cut_during_the_recovery_changes_nothing() {
    let effort = |count| SearchBudget {
        seed: seed(),
        count,
    };
    let (step, count) = if long() { (1, 1000) } else { (8, 3) };
    let (mut recoveries, mut states) = (0, 0);
    let third_name = || Case::small().without_exchange();
    for recorded in [
        forward(Case::small()),
        undone(Case::small()),
        undone(third_name()),
    ] {
        for recovery in recorded.recoveries(step, effort(count)) {
            if recovery.log.is_empty() {
                continue;
            }
            recoveries += 1;
            for model in [Model::Ordered, Model::Strict] {
                let found = recovery.cut(&recovery.log, as_at_boot, 1, model, effort(count));
                states += found.states;
                assert_eq!(found.bad, [""; 0], "seed {}", seed());
            }
        }
    }
    println!("{recoveries} recoveries cut short, {states} states");
    assert!(recoveries > 10);
}

/// Tries each case and counts the distinct trees over all of them.
#[test]
fn random_updates_survive_a_power_cut_at_any_moment() {
    let step = if long() { 1 } else { 16 };
    // The strict model includes every state of the ordered one: it is used here only for the full
    // count.
    let models = [Model::Strict, Model::Ordered];
    let models = &models[..if long() { 2 } else { 1 }];
    let (mut trees, mut states) = (HashSet::new(), 0);
    let mut tally = |found: Found, what: &str| {
        assert!(
            found.bad.is_empty(),
            "{what}, seed {}: {} bad states; the first: {}",
            seed(),
            found.bad.len(),
            found.bad[0]
        );
        states += found.states;
        trees.extend(found.trees);
    };
    // To repeat one: MACHINIST_IDEA is its name, or a part of it.
    let only = std::env::var("MACHINIST_IDEA").unwrap_or_default();
    let mut ideas = cases::all();
    ideas.retain(|(name, ..)| name.contains(&only));
    let number = ideas.len();
    for (name, case, way) in ideas {
        let recorded = Recorded::of(case, |root, case| way.run(root, case));
        for model in models.iter().copied() {
            let count = match (long(), name.starts_with("many")) {
                (false, _) => 2,
                (true, false) => 5000,
                (true, true) => 30,
            };
            let effort = SearchBudget {
                seed: seed(),
                count,
            };
            let found = recorded.cut(&recorded.log, as_at_boot, step, model, effort);
            println!("{name}, {model:?}: {} states", found.states);
            tally(found, &format!("{name}, {model:?}"));
        }
    }
    println!(
        "{number} ideas: {states} states, {} distinct trees, seed {}",
        trees.len(),
        seed()
    );
    assert!(!long() || !only.is_empty() || trees.len() >= 20_000);
}

/// The update is killed first, so that only a part of it is durable, and recovered; then the power
/// fails.
#[test]
fn a_power_cut_after_a_kill_leaves_one_config_or_the_other() {
    let effort = SearchBudget {
        seed: seed(),
        count: if long() { 200 } else { 3 },
    };
    let (mut kills, mut states) = (0, 0);
    for update in [
        |root: &Root, case: &Case| drop(apply(root, &case.to)),
        rolls_back,
    ] {
        for number in (0..).step_by(if long() { 1 } else { 12 }) {
            let (recorded, killed) = Recorded::killed(Case::small(), number, update);
            if !killed {
                break;
            }
            kills += 1;
            let step = if long() { 1 } else { 4 };
            let found = recorded.cut(&recorded.log, as_at_boot, step, Model::Strict, effort);
            states += found.states;
            assert_eq!(found.bad, [""; 0], "killed at {number}, seed {}", seed());
        }
    }
    println!("{kills} kills, {states} states, seed {}", seed());
    assert!(kills > 10);
}

fn rolls_back(root: &Root, case: &Case) {
    let script = Script::new();
    script.fails("Restart x.service", Reason::JobFailed, false);
    drop(once(root, Some(script), restarting("x.service"), &case.to));
}
