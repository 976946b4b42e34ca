#![allow(
    clippy::disallowed_methods,
    reason = "the oracle is the file system itself"
)]

use std::collections::BTreeSet;

use super::*;
use crate::{FsOpKind, Meta, Recording, Root, SnapshotObject};
use machinist_base::abs_path::AbsPath;

const EFFORT: SearchBudget = SearchBudget {
    seed: 1,
    count: 20_000,
};

fn at(p: &str) -> AbsPath {
    p.parse().unwrap()
}

fn meta(mode: u32) -> Meta {
    Meta {
        mode,
        uid: 0,
        gid: 0,
        chown: false,
    }
}

/// A recording root with `/etc/conf` that contains `old`, and its tree.
fn begun() -> (tempfile::TempDir, Root, Recording, TreeSnapshot) {
    let dir = tempfile::tempdir().unwrap();
    let root = Root::open(dir.path()).unwrap();
    root.make_dirs(&at("/etc"), 0o755).unwrap();
    root.build_file(&at("/etc/conf"), b"old content", &meta(0o644))
        .unwrap();
    let start = TreeSnapshot::capture(&root).unwrap();
    let (root, recording) = root.recording();
    (dir, root, recording, start)
}

/// The possible contents of `/etc/conf` after a cut at any moment; `None` if it is missing.
fn contents(recording: &Recording, start: &TreeSnapshot, model: Model) -> BTreeSet<Option<String>> {
    states_at_every_cut(&recording.log(), start, model, EFFORT)
        .unwrap()
        .into_iter()
        .map(|(_, tree)| {
            let bytes = tree.content("/etc/conf")?;
            Some(String::from_utf8(bytes.to_vec()).unwrap())
        })
        .collect()
}

fn set<const N: usize>(texts: [&str; N]) -> BTreeSet<Option<String>> {
    texts
        .into_iter()
        .map(|text| Some(text.to_owned()))
        .collect()
}

#[test]
fn a_rename_without_fsync_may_leave_a_torn_file() {
    for model in [Model::Ordered, Model::Strict] {
        let (_dir, root, recording, start) = begun();
        let (temp, conf) = (at("/etc/.conf"), at("/etc/conf"));
        root.build_file(&temp, b"new", &meta(0o644)).unwrap();
        root.exchange(&temp, &conf).unwrap();
        let found = contents(&recording, &start, model);
        assert_eq!(found, set(["old content", "", "n", "new"]), "{model:?}");
    }
}

#[test]
fn replace_is_atomic_and_durable_after_it_returns() {
    for model in [Model::Ordered, Model::Strict] {
        let (_dir, root, recording, start) = begun();
        root.replace(&at("/etc/conf"), b"new", 0o600).unwrap();
        let found = contents(&recording, &start, model);
        assert_eq!(found, set(["old content", "new"]), "{model:?}");
        let log = recording.log();
        let after: Vec<_> = states(&log, &start, log.len(), model, EFFORT)
            .unwrap()
            .collect();
        assert_eq!(after, [TreeSnapshot::capture(&root).unwrap()], "{model:?}");
    }
}

/// Each sync of `replace` is needed: without any one of them a bad state can occur.
#[test]
fn omitting_any_fsync_of_replace_is_detected() {
    let (_dir, root, recording, start) = begun();
    root.replace(&at("/etc/conf"), b"new", 0o600).unwrap();
    let log = recording.log();
    let without = |act: FsOpKind| -> Vec<FsOp> {
        let kept = log.iter().filter(|op| op.act != act).cloned().collect();
        assert_ne!(kept, log, "{act:?} is in the log");
        kept
    };
    let holds = |log: &[FsOp], cut: usize, text: &[u8]| {
        states(log, &start, cut, Model::Strict, EFFORT)
            .unwrap()
            .any(|tree| tree.content("/etc/conf") == Some(text))
    };
    let no_file_sync = without(FsOpKind::SyncFile);
    assert!(holds(&no_file_sync, no_file_sync.len(), b""), "torn");
    let no_dir_sync = without(FsOpKind::SyncDir);
    assert!(
        holds(&no_dir_sync, no_dir_sync.len(), b"old content"),
        "returned, and yet the old one"
    );
}

#[test]
fn a_new_directory_may_vanish_until_its_parent_is_synced() {
    let (_dir, root, recording, start) = begun();
    root.build_dir(&at("/a"), &meta(0o755)).unwrap();
    root.build_file(&at("/a/f"), b"x", &meta(0o644)).unwrap();
    root.sync_file(&at("/a/f")).unwrap();
    root.sync_dir(&at("/a")).unwrap();
    let there = |log: &[FsOp]| -> BTreeSet<bool> {
        states(log, &start, log.len(), Model::Strict, EFFORT)
            .unwrap()
            .map(|tree| tree.content("/a/f") == Some(b"x"))
            .collect()
    };
    assert_eq!(there(&recording.log()), BTreeSet::from([false, true]));
    root.sync_dir(&AbsPath::root()).unwrap();
    assert_eq!(there(&recording.log()), BTreeSet::from([true]));
}

#[test]
fn a_surviving_operation_implies_its_dependencies() {
    let (_dir, root, recording, start) = begun();
    root.build_link(&at("/etc/staged"), "x").unwrap();
    root.move_new(&at("/etc/staged"), &at("/placed")).unwrap();
    root.sync_dir(&AbsPath::root()).unwrap();
    for model in [Model::Ordered, Model::Strict] {
        let found: Vec<_> = states(&recording.log(), &start, recording.len(), model, EFFORT)
            .unwrap()
            .collect();
        assert_eq!(found, [TreeSnapshot::capture(&root).unwrap()], "{model:?}");
    }
}

#[test]
fn syncing_one_file_system_does_not_sync_another() {
    let (_dir, root, recording, _) = begun();
    root.make_dirs(&at("/var"), 0o755).unwrap();
    let root = root.with_simulated_mounts(vec![at("/var")]);
    let start = TreeSnapshot::capture(&root).unwrap();
    let skip = recording.len();
    root.build_file(&at("/etc/one"), b"1", &meta(0o644))
        .unwrap();
    root.build_file(&at("/var/two"), b"2", &meta(0o644))
        .unwrap();
    root.sync_point(&at("/etc")).unwrap().sync().unwrap();
    let log = recording.log().split_off(skip);
    let trees: Vec<_> = states(&log, &start, log.len(), Model::Ordered, EFFORT)
        .unwrap()
        .collect();
    assert!(trees.iter().all(|t| t.content("/etc/one") == Some(b"1")));
    let two: BTreeSet<_> = trees.iter().map(|t| t.content("/var/two")).collect();
    assert_eq!(two, BTreeSet::from([None, Some(&b""[..]), Some(b"2")]));
}

#[test]
fn only_a_journalling_model_keeps_the_order_of_unrelated_names() {
    let (_dir, root, recording, start) = begun();
    root.build_link(&at("/a"), "x").unwrap();
    root.build_link(&at("/etc/b"), "x").unwrap();
    let second_alone = |model| {
        states(&recording.log(), &start, recording.len(), model, EFFORT)
            .unwrap()
            .any(|t| t.0.contains_key(&at("/etc/b")) && !t.0.contains_key(&at("/a")))
    };
    assert!(!second_alone(Model::Ordered));
    assert!(second_alone(Model::Strict));
}

#[test]
fn an_exchange_survives_a_crash_atomically() {
    let (_dir, root, recording, _) = begun();
    root.build_link(&at("/a"), "x").unwrap();
    root.build_dir(&at("/b"), &meta(0o755)).unwrap();
    let start = TreeSnapshot::capture(&root).unwrap();
    let skip = recording.len();
    root.exchange(&at("/a"), &at("/b")).unwrap();
    let log = recording.log().split_off(skip);
    let found: Vec<_> = states(&log, &start, 1, Model::Strict, EFFORT)
        .unwrap()
        .map(|t| (t.0[&at("/a")].object.clone(), t.0[&at("/b")].object.clone()))
        .collect();
    let (link, dir) = (SnapshotObject::Link("x".into()), SnapshotObject::Directory);
    assert_eq!(found, [(link.clone(), dir.clone()), (dir, link)]);
}

#[test]
fn random_crash_states_are_a_repeatable_subset_of_the_full_search() {
    let (_dir, root, recording, start) = begun();
    for name in ["/a", "/b", "/c", "/d"] {
        root.build_file(&at(name), name.as_bytes(), &meta(0o644))
            .unwrap();
    }
    let log = recording.log();
    for model in [Model::Ordered, Model::Strict] {
        let run = |seed, count| -> BTreeSet<TreeSnapshot> {
            states(&log, &start, log.len(), model, SearchBudget { seed, count })
                .unwrap()
                .collect()
        };
        let all = run(0, 1_000_000);
        let drawn = run(7, 200);
        assert!(drawn.len() > 20, "{model:?}: {}", drawn.len());
        assert!(drawn.len() < all.len(), "{model:?}: nothing left to draw");
        assert!(drawn.is_subset(&all), "{model:?}");
        assert_eq!(drawn, run(7, 200), "{model:?}");
        assert_ne!(drawn, run(8, 200), "{model:?}");
    }
}

#[test]
fn replaying_a_log_onto_another_tree_is_rejected() {
    let (_dir, root, recording, _) = begun();
    root.remove_file(&at("/etc/conf")).unwrap();
    let answer = states(
        &recording.log(),
        &TreeSnapshot::default(),
        1,
        Model::Strict,
        EFFORT,
    );
    let error = answer.err().unwrap().to_string();
    assert!(error.contains("/etc/conf is not there"), "{error}");
}

/// One operation of a random walk; errors (such as a name that exists) are part of the walk.
fn act(root: &Root, what: u8, a: &AbsPath, b: &AbsPath) {
    let _ = match what {
        0 => root.build_file(a, b.as_str().as_bytes(), &meta(0o640)),
        1 => root.build_dir(a, &meta(0o700)),
        2 => root.build_link(a, b.as_str()),
        3 => root.exchange(a, b),
        4 => root.move_new(a, b),
        5 => root.remove_tree(a),
        6 => root.replace(a, b"replaced", 0o600),
        _ => root.set_meta(a, &meta(0o711)),
    };
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig {
        // Every case waits for the disk a few times.
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(48),
        failure_persistence: None,
        ..Default::default()
    })]
    /// After a final sync of everything, the replay yields exactly one tree: the one on the disk.
    #[test]
    fn replaying_a_synced_log_gives_the_actual_tree(
        walk in proptest::collection::vec((0_u8..8, 0_usize..7, 0_usize..7), 1..25)
    ) {
        const NAMES: [&str; 7] = ["/a", "/b", "/c", "/a/x", "/b/x", "/a/x/y", "/c/z"];
        let (_dir, root, recording, start) = begun();
        for (what, a, b) in walk {
            act(&root, what, &at(NAMES[a]), &at(NAMES[b]));
        }
        let real = TreeSnapshot::capture(&root).unwrap();
        let mut log = recording.log();
        let fs = log.first().map_or(0, |op| op.fs);
        log.push(FsOp { fs, path: AbsPath::root(), act: FsOpKind::SyncFs });
        for model in [Model::Ordered, Model::Strict] {
            let found: Vec<_> = states(&log, &start, log.len(), model, EFFORT).unwrap().collect();
            proptest::prop_assert_eq!(&found, std::slice::from_ref(&real));
        }
        let copy = tempfile::tempdir().unwrap();
        let copy = Root::open(copy.path()).unwrap();
        real.materialise(&copy).unwrap();
        proptest::prop_assert_eq!(TreeSnapshot::capture(&copy).unwrap(), real);
    }
}
