//! A user who acts at any time in a home that a config has entries in: nothing outside changes,
//! every rollback succeeds, and the rest of the config is applied and removed as if that user did
//! not exist.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use machinist_rootfs::{FsOp, Root};
use machinist_update::{crash_recovery, store::StateStore};

use super::*;
use crate::transaction::random::Dice;
use machinist_testkit::sandbox::{difference, from_environment, long};

const PATHS: [&str; 7] = [
    "/home/bob/a",
    "/home/bob/a/app",
    "/home/bob/a/d",
    "/home/bob/a/d/f",
    "/home/bob/b",
    "/home/bob/b/f",
    "/home/bob/.machinist",
];

const LEADS: [&str; 6] = [
    "/etc",
    "../../../etc/systemd",
    "..",
    "/home/bob/b",
    "b",
    "a",
];

/// The objects that bob creates at a path.
const MAKES: [fn(&Sandbox, &mut Dice, &str); 8] = [
    |_, _, _| {},
    |sandbox, dice, path| {
        add(sandbox, &Link(path, BOB, LEADS[dice.below(LEADS.len())]));
    },
    |sandbox, _, path| add(sandbox, &Link(path, 0, "/etc/systemd")),
    |sandbox, _, path| add(sandbox, &Dir(path, BOB, 0o755)),
    |sandbox, _, path| add(sandbox, &Dir(path, BOB, 0o700)),
    |sandbox, _, path| {
        fs::write(sandbox.path(path), "theirs\n").unwrap();
        std::os::unix::fs::lchown(sandbox.path(path), Some(BOB), Some(BOB)).unwrap();
    },
    |sandbox, _, path| {
        nix::unistd::mkfifo(&sandbox.path(path), nix::sys::stat::Mode::S_IRWXU).unwrap();
    },
    |sandbox, _, path| add(sandbox, &Hard(path, "/etc/shadow")),
];

/// One act of bob: he moves or removes the object at a path, and creates another one.
fn act(sandbox: &Sandbox, dice: &mut Dice, story: &mut String) {
    let path = PATHS[dice.below(PATHS.len())];
    let real = sandbox.path(path);
    // Only where his directories are still directories of his home.
    let parent = real.parent().unwrap();
    let home = sandbox.path("/home/bob").canonicalize().unwrap();
    let safe = parent.canonicalize().is_ok_and(|at| at.starts_with(&home));
    if !safe || !parent.is_dir() {
        return;
    }
    let away = sandbox.path(&format!("/home/bob/away{}", dice.below(1 << 20)));
    let there = real.symlink_metadata();
    match dice.one_in(2) {
        true => drop(fs::rename(&real, away)),
        false if there.is_ok_and(|meta| meta.is_dir()) => fs::remove_dir_all(&real).unwrap(),
        false => drop(fs::remove_file(&real)),
    }
    let made = dice.below(MAKES.len());
    *story += &format!("{path}: {made}; ");
    if real.symlink_metadata().is_err() {
        MAKES[made](sandbox, dice, path);
    }
}

fn acts(sandbox: &Sandbox, dice: &mut Dice, story: &mut String) {
    for _ in 0..dice.below(3) {
        act(sandbox, dice, story);
    }
}

fn wanted(dice: &mut Dice) -> Written {
    let mut wanted = config("wanted").file("/etc/plain", "ours\n", 0o644);
    for path in ["/home/bob/a/app", "/home/bob/a/d/f", "/home/bob/b/f"] {
        if !dice.one_in(3) {
            wanted = wanted.file(path, "ours\n", 0o644);
            let owner = dice.one_in(2).then_some(Owner::Id(BOB));
            let file = wanted.0.files.get_mut(&at(path)).unwrap();
            file.user.clone_from(&owner);
            file.group = owner;
        }
    }
    match dice.one_in(2) {
        true => wanted.dir("/home/bob/b", 0o711),
        false => wanted,
    }
}

/// One update among bob's acts. Returns whether it was committed.
fn round(sandbox: &Sandbox, dice: &mut Dice, before: &TreeSnapshot, story: &mut String) -> bool {
    let same = |story: &str| {
        let now = outside(sandbox);
        assert!(now == *before, "{story}\n{}", difference(before, &now));
    };
    acts(sandbox, dice, story);
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    let next = wanted(dice);
    if let Err(refusals) = hand.stage(&next) {
        *story += &format!("refused: {:?}; ", refusals.first().map(|it| it.reason));
        same(story);
        return false;
    }
    *story += "staged; ";
    acts(sandbox, dice, story);
    let done = hand.commit();
    *story += &format!("{done:?}; ");
    acts(sandbox, dice, story);
    if done.is_err() || dice.one_in(2) {
        hand.undo()
            .unwrap_or_else(|error| panic!("{story}: {error:?}"));
        same(story);
        return done.is_ok();
    }
    hand.close();
    *story += "closed; ";
    drop(hand);
    assert_eq!(
        sandbox.read("/etc/plain").as_deref(),
        Some("ours\n"),
        "{story}"
    );
    acts(sandbox, dice, story);
    apply(sandbox, &config("nothing")).unwrap_or_else(|why| panic!("{story}: {why:?}"));
    same(story);
    true
}

#[test]
fn hostile_home_directory_changes_affect_nothing_else_and_rollback_succeeds() {
    if !plays_users() {
        return;
    }
    let rounds = from_environment("ROUNDS").unwrap_or(if long() { 5_000 } else { 60 });
    let seed = from_environment("SEED").unwrap_or(1);
    let mut committed = 0;
    for seed in seed..seed + rounds {
        let mut dice = Dice(seed);
        let sandbox = machine(&[
            Dir("/home/bob/a", BOB, 0o755),
            Dir("/home/bob/b", BOB, 0o755),
        ]);
        let before = outside(&sandbox);
        let mut story = format!("ROUNDS=1 SEED={seed}: ");
        for _ in 0..2 {
            committed += u64::from(round(&sandbox, &mut dice, &before, &mut story));
        }
    }
    println!("{committed} updates committed");
    assert!(committed > rounds / 4, "{committed}");
}

/// Bob acts while a config is in force, and the next config changes only a file elsewhere.
#[test]
fn hostile_changes_at_unchanged_paths_block_no_other_entry() {
    if !plays_users() {
        return;
    }
    let rounds = from_environment("ROUNDS").unwrap_or(if long() { 5_000 } else { 60 });
    let seed = from_environment("SEED").unwrap_or(1);
    let mut skipped = 0;
    for seed in seed..seed + rounds {
        let mut dice = Dice(seed);
        let sandbox = machine(&[
            Dir("/home/bob/a", BOB, 0o755),
            Dir("/home/bob/b", BOB, 0o755),
        ]);
        let before = outside(&sandbox);
        let mut story = format!("ROUNDS=1 SEED={seed}: ");
        let wanted = wanted(&mut dice);
        apply(&sandbox, &wanted).unwrap();
        acts(&sandbox, &mut dice, &mut story);
        acts(&sandbox, &mut dice, &mut story);
        let next = Written(wanted.0.clone()).file("/etc/plain", "next\n", 0o644);
        let mut hand = StepwiseUpdate::open(&sandbox.root());
        hand.stage(&next)
            .unwrap_or_else(|why| panic!("{story}: {why:?}"));
        skipped += hand.journal.transactions[0].left_behind.len();
        hand.commit()
            .unwrap_or_else(|why| panic!("{story}: {why:?}"));
        assert_eq!(sandbox.read("/etc/plain").as_deref(), Some("next\n"));
        match dice.one_in(2) {
            true => hand.undo().unwrap(),
            false => hand.close(),
        }
        drop(hand);
        apply(&sandbox, &config("nothing")).unwrap_or_else(|why| panic!("{story}: {why:?}"));
        let now = outside(&sandbox);
        assert!(now == before, "{story}\n{}", difference(&before, &now));
    }
    println!("{skipped} entries were left as they were");
    assert!(skipped > 0);
}

/// A root that fails all operations after a number of them, as if the process were killed there.
struct KillSwitch {
    left: Arc<AtomicUsize>,
    root: Root,
}

impl KillSwitch {
    fn new(root: Root) -> Self {
        let left = Arc::new(AtomicUsize::new(usize::MAX));
        let count = Arc::clone(&left);
        let hook = move |_: &FsOp| {
            let take = |left: usize| left.checked_sub(1);
            let taken = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
            taken
                .is_err()
                .then(|| std::io::Error::from_raw_os_error(nix::libc::EIO))
        };
        Self {
            left,
            root: root.with_fault(Arc::new(hook)),
        }
    }

    fn arm(&self, operations: usize) {
        self.left.store(operations, Ordering::Relaxed);
    }
}

/// Kills an update or its undo, between which bob acts. Returns the way that recovery took.
fn killed_round(sandbox: &Sandbox, dice: &mut Dice, story: &mut String) -> &'static str {
    let switch = KillSwitch::new(sandbox.root());
    let mut hand = StepwiseUpdate::open(&switch.root);
    acts(sandbox, dice, story);
    if hand.stage(&wanted(dice)).is_err() {
        return "refused";
    }
    let undoes = dice.one_in(2);
    *story += &format!("undoes: {undoes}; ");
    if undoes && hand.commit().is_err() {
        drop(hand);
    } else {
        acts(sandbox, dice, story);
        switch.arm(dice.below(60));
        let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let done = if undoes { hand.undo() } else { hand.commit() };
            drop(done);
        }));
        *story += &format!("killed: {}; ", killed.is_err());
        drop(hand);
    }
    acts(sandbox, dice, story);
    let store = StateStore::open(&sandbox.root()).unwrap();
    crash_recovery::recover(&store).unwrap_or_else(|error| panic!("{story}: {error:?}"));
    let plain = sandbox.read("/etc/plain");
    assert!(
        matches!(plain.as_deref(), None | Some("ours\n")),
        "{story}: {plain:?}"
    );
    if plain.is_some() { "new" } else { "old" }
}

/// Recovery walks each path again, by the same rules as the update.
#[test]
fn recovery_beside_a_hostile_user_reaches_one_config_and_changes_nothing_else() {
    if !plays_users() {
        return;
    }
    let rounds = from_environment("ROUNDS").unwrap_or(if long() { 5_000 } else { 60 });
    let seed = from_environment("SEED").unwrap_or(1);
    let mut ways = std::collections::BTreeMap::new();
    for seed in seed..seed + rounds {
        let mut dice = Dice(seed);
        let sandbox = machine(&[
            Dir("/home/bob/a", BOB, 0o755),
            Dir("/home/bob/b", BOB, 0o755),
        ]);
        let before = outside(&sandbox);
        let mut story = format!("ROUNDS=1 SEED={seed}: ");
        let way = killed_round(&sandbox, &mut dice, &mut story);
        *ways.entry(way).or_insert(0) += 1;
        let now = outside(&sandbox).without(|path| *path == at("/etc/plain"));
        assert!(now == before, "{story}\n{}", difference(&before, &now));
        acts(&sandbox, &mut dice, &mut story);
        let mut hand = StepwiseUpdate::open(&sandbox.root());
        match hand.journal.transactions.is_empty() {
            true => {}
            false => hand.undo().unwrap_or_else(|why| panic!("{story}: {why:?}")),
        }
        drop(hand);
        let now = outside(&sandbox);
        assert!(now == before, "{story}\n{}", difference(&before, &now));
    }
    println!("{ways:?}");
    assert!(ways["old"] > 0 && ways["new"] > 0, "{ways:?}");
}
