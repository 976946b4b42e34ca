//! Random trees and random configs, one after the other: the tree is always the original one with
//! the config applied to it, whatever came between, and in the end it is the original one.

use std::collections::BTreeMap;

use machinist_base::abs_path::AbsPath;
use machinist_ignition::Owner;
use machinist_rootfs::{SnapshotNode, SnapshotObject, TreeSnapshot};

use machinist_testkit::{
    sandbox::{Sandbox, Written, at, config, difference, from_environment, long, without_staging},
    settled::assert_settled,
    stepwise_update::StepwiseUpdate,
};

type Entries = BTreeMap<AbsPath, SnapshotNode>;

/// A generator that gives the same case for a seed everywhere (splitmix64).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((z ^ (z >> 31)) % limit as u64).unwrap()
    }

    pub(crate) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn path(&mut self) -> AbsPath {
        let mut path = ["/etc", "/data", "/srv"][self.below(3)].to_owned();
        for _ in 0..=self.below(3) {
            path += ["/a", "/b", "/c"][self.below(3)];
        }
        at(&path)
    }

    fn mode(&mut self) -> u32 {
        [0o600, 0o644, 0o755, 0o700, 0o4750, 0o1777][self.below(6)]
    }
}

fn node(dice: &mut Dice, path: &AbsPath) -> SnapshotNode {
    let owned = nix::unistd::geteuid().is_root() && dice.one_in(3);
    let (uid, gid) = match owned {
        true => (1234, 5678),
        false => (
            nix::unistd::geteuid().as_raw(),
            nix::unistd::getegid().as_raw(),
        ),
    };
    let object = match dice.below(5) {
        0 => SnapshotObject::Link(format!("to-{}", dice.below(3))),
        1 | 2 => SnapshotObject::Directory,
        _ => SnapshotObject::File(format!("{path} {}", dice.below(3)).into_bytes()),
    };
    let mode = match object {
        SnapshotObject::Link(_) => 0o777,
        _ => dice.mode(),
    };
    SnapshotNode {
        object,
        mode,
        uid,
        gid,
        same: None,
    }
}

/// Adds an object where its parents are directories, or can become directories.
fn add(dice: &mut Dice, tree: &mut Entries, explicit: bool) {
    let path = dice.path();
    let fits = path.ancestors().all(|dir| {
        let there = tree.get(&dir).map(|node| &node.object);
        there.is_none_or(|object| *object == SnapshotObject::Directory)
    });
    let holds = tree
        .keys()
        .any(|other| other != &path && other.is_under(&path));
    let new = node(dice, &path);
    if !fits || (holds && new.object != SnapshotObject::Directory) {
        return;
    }
    if !explicit {
        let parents: Vec<_> = path.ancestors().collect();
        for dir in parents {
            tree.entry(dir).or_insert_with(parent);
        }
    }
    tree.insert(path, new);
}

/// The mode and owner of a created parent.
fn parent() -> SnapshotNode {
    SnapshotNode {
        object: SnapshotObject::Directory,
        mode: 0o755,
        uid: nix::unistd::geteuid().as_raw(),
        gid: nix::unistd::getegid().as_raw(),
        same: None,
    }
}

fn random_tree(dice: &mut Dice) -> TreeSnapshot {
    let mut tree = BTreeMap::new();
    for dir in ["/", "/etc", "/data", "/srv", "/var", "/var/lib"] {
        tree.insert(at(dir), parent());
    }
    for _ in 0..dice.below(12) {
        add(dice, &mut tree, false);
    }
    TreeSnapshot(tree)
}

/// Entries of a config, and the same as a config.
///
/// Paths through a link of the original tree would lead elsewhere, so they are omitted.
fn random_config(dice: &mut Dice, before: &TreeSnapshot, number: usize) -> (Entries, Written) {
    let mut wanted = BTreeMap::new();
    for _ in 0..dice.below(8) {
        add(dice, &mut wanted, true);
    }
    let named = wanted.clone();
    wanted.retain(|path, _| {
        path.ancestors().all(|dir| {
            let link = before.0.get(&dir).map(|node| &node.object);
            named.contains_key(&dir) || !matches!(link, Some(SnapshotObject::Link(_)))
        })
    });
    // A foreign directory that contains directories, is replaced and later needed again for an
    // entry, is created empty: its old content stays below `originals/`.
    let replaces = |path: &AbsPath, node: &SnapshotNode| {
        let holds = |(p, n): (&AbsPath, &SnapshotNode)| {
            n.object == SnapshotObject::Directory && p.is_under(path) && p != path
        };
        node.object != SnapshotObject::Directory && before.0.iter().any(holds)
    };
    wanted.retain(|path, node| !replaces(path, node));
    join(dice, &mut wanted);
    let mut written = config(&format!("random-{number}"));
    for (path, node) in &wanted {
        let (user, group) = (Owner::Id(node.uid), Owner::Id(node.gid));
        let p = path.as_str();
        match &node.object {
            SnapshotObject::File(_) if node.same.is_some() => {
                written = written.hard(p, node.same.as_ref().unwrap().as_str());
            }
            SnapshotObject::File(bytes) => {
                written = written.file(p, std::str::from_utf8(bytes).unwrap(), node.mode);
                let file = written.0.files.get_mut(path).unwrap();
                (file.user, file.group) = (Some(user), Some(group));
            }
            SnapshotObject::Directory => {
                written = written.dir(p, node.mode);
                let dir = written.0.directories.get_mut(path).unwrap();
                (dir.user, dir.group) = (Some(user), Some(group));
            }
            SnapshotObject::Link(target) => {
                written = written.link(p, target);
                let link = written.0.links.get_mut(path).unwrap();
                (link.user, link.group) = (user, group);
            }
            SnapshotObject::Socket => {}
        }
    }
    (wanted, written)
}

/// Turns some files into hard links of files on the same mount.
fn join(dice: &mut Dice, wanted: &mut Entries) {
    let files = wanted.iter();
    let files = files.filter(|(_, node)| matches!(node.object, SnapshotObject::File(_)));
    let files: Vec<AbsPath> = files.map(|(path, _)| path.clone()).collect();
    for path in &files {
        let target = &files[dice.below(files.len())];
        let node = &wanted[target];
        let same_mount = path.components().next() == target.components().next();
        if path != target && same_mount && node.same.is_none() && dice.one_in(2) {
            let named = wanted.values().any(|node| node.same.as_ref() == Some(path));
            let same = Some(target.clone());
            let node = SnapshotNode {
                same,
                ..node.clone()
            };
            if !named {
                wanted.insert(path.clone(), node);
            }
        }
    }
}

/// Marks names of one file as a captured tree does: by the first of them.
fn name_alike(tree: &mut TreeSnapshot) {
    let mut groups: BTreeMap<AbsPath, Vec<AbsPath>> = BTreeMap::new();
    for (path, node) in &tree.0 {
        if let Some(target) = &node.same {
            groups.entry(target.clone()).or_default().push(path.clone());
        }
    }
    for (target, mut names) in groups {
        names.push(target);
        names.sort();
        for name in &names {
            let first = Some(names[0].clone()).filter(|first| first != name);
            tree.0.get_mut(name).unwrap().same = first;
        }
    }
}

/// The original tree with the config applied to it.
fn laid_over(before: &TreeSnapshot, wanted: &Entries) -> TreeSnapshot {
    let mut tree = before.clone();
    for (path, node) in wanted {
        if node.object != SnapshotObject::Directory {
            tree.0.retain(|other, _| !other.is_under(path));
        }
        for dir in path.ancestors() {
            let there = tree.0.entry(dir).or_insert_with(parent);
            if there.object != SnapshotObject::Directory {
                *there = parent();
            }
        }
        tree.0.insert(path.clone(), node.clone());
    }
    name_alike(&mut tree);
    tree
}

/// A tree in comparable form: without staged files. A directory that only contains entries of the
/// config may have the mode that an earlier config gave it. With `open`, directories that will be
/// removed once the update is verified may still exist.
fn comparable(
    tree: &TreeSnapshot,
    expected: &TreeSnapshot,
    before: &TreeSnapshot,
    named: &Entries,
    open: bool,
) -> TreeSnapshot {
    let mut tree = without_staging(tree);
    let paths: Vec<_> = tree.0.keys().rev().cloned().collect();
    for path in paths {
        if tree.0[&path].object != SnapshotObject::Directory {
            continue;
        }
        let holds = tree.0.keys().any(|p| p.is_under(&path) && *p != path);
        match expected.0.get(&path) {
            None if open && !holds => drop(tree.0.remove(&path)),
            Some(node) if open && !holds && node.object != SnapshotObject::Directory => {
                drop(tree.0.insert(path, node.clone()));
            }
            Some(node) if !before.0.contains_key(&path) && !named.contains_key(&path) => {
                drop(tree.0.insert(path, node.clone()));
            }
            _ => {}
        }
    }
    tree
}

/// The entries on one line, for messages.
fn one_line(entries: &Entries) -> String {
    let one = |(path, node): (&AbsPath, &SnapshotNode)| {
        let what = match &node.object {
            SnapshotObject::File(_) => "file",
            SnapshotObject::Link(_) => "link",
            _ => "dir",
        };
        format!("{path} {what} {:o} {}", node.mode, node.uid)
    };
    entries.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn seed() -> u64 {
    from_environment("MACHINIST_SEED").unwrap_or(1)
}

fn rounds(short: u64) -> u64 {
    if long() { short * 50 } else { short }
}

#[test]
fn random_configs_are_applied_and_removed_without_a_trace() {
    let (mut applied, mut refused) = (0, 0);
    for round in 0..rounds(60) {
        let seed = seed().wrapping_add(round);
        let mut dice = Dice(seed);
        let before = random_tree(&mut dice);
        let mounts: &[&str] = [&[][..], &["/data"], &["/data", "/etc"]][dice.below(3)];
        let sandbox = Sandbox::holding(&before, mounts);
        let mut expected = before.clone();
        let mut story = format!("seed {seed}, {mounts:?}: {}\n", one_line(&before.0));
        let mut named = Entries::new();
        for number in 0..4 {
            let (wanted, written) = random_config(&mut dice, &before, number);
            let report = sandbox.apply(&written);
            story += &format!("{}: {:?}\n", one_line(&wanted), report.failure.is_some());
            match &report.failure {
                None => {
                    assert_settled(&sandbox, &written, &|| story.clone());
                    expected = laid_over(&before, &wanted);
                    named = wanted.clone();
                    applied += 1;
                }
                Some(failure) => {
                    let message = format!("seed {seed}: {}", failure.message);
                    assert!(
                        failure.message.starts_with("the config is refused"),
                        "{message}"
                    );
                    refused += 1;
                }
            }
            let tree = comparable(&sandbox.tree(), &expected, &before, &named, false);
            let what = format!("seed {seed}, config {number} {:?}", wanted);
            assert!(tree == expected, "{what}\n{}", difference(&expected, &tree));
        }
        sandbox.applied(&config("nothing"));
        let tree = sandbox.tree();
        assert!(
            tree == before,
            "{story}, at the end\n{}",
            difference(&before, &tree)
        );
        let journal = sandbox.journal();
        assert!(journal.owned.is_empty(), "seed {seed}: {:?}", journal.owned);
        assert!(
            journal.originals.is_empty(),
            "seed {seed}: {:?}",
            journal.originals
        );
        assert!(journal.made.is_empty(), "seed {seed}: {:?}", journal.made);
        let kept = std::fs::read_dir(sandbox.path("/var/lib/machinist/originals"));
        assert_eq!(kept.map_or(0, Iterator::count), 0, "seed {seed}");
    }
    assert!(applied > refused, "{applied} applied, {refused} refused");
}

/// Several configs before one is verified: then all are kept, or all are rolled back.
#[test]
fn stacked_unverified_configs_end_as_the_last_one_or_the_original_state() {
    let mut stacked = 0;
    for round in 0..rounds(60) {
        let seed = seed().wrapping_add(round);
        let mut dice = Dice(seed ^ 0x5ACC);
        let before = random_tree(&mut dice);
        let mounts: &[&str] = [&[][..], &["/data"], &["/data", "/etc"]][dice.below(3)];
        let sandbox = Sandbox::holding(&before, mounts);
        let mut story = format!("seed {seed}, {mounts:?}: {}\n", one_line(&before.0));
        let mut hand = StepwiseUpdate::open(&sandbox.root());
        let (mut verified, mut named) = (before.clone(), Entries::new());
        for _ in 0..2 {
            let mut expected = (verified.clone(), named.clone());
            for number in 0..3 {
                let (wanted, written) = random_config(&mut dice, &before, number);
                // A foreign directory with files of ours in it, replaced and restored before either
                // is verified, is restored with them: it cannot be cleaned and kept for the
                // rollback at the same time.
                let replaces = |(path, node): (&AbsPath, &SnapshotNode)| {
                    node.object != SnapshotObject::Directory
                        && before
                            .0
                            .get(path)
                            .is_some_and(|n| n.object == SnapshotObject::Directory)
                };
                if wanted.iter().any(replaces) || hand.stage(&written).is_err() {
                    continue;
                }
                hand.commit().unwrap();
                story += &format!("{}\n", one_line(&wanted));
                stacked += 1;
                let over = laid_over(&before, &wanted);
                let tree = comparable(&sandbox.tree(), &over, &before, &wanted, true);
                assert!(tree == over, "{story}{}", difference(&over, &tree));
                expected = (over, wanted);
            }
            if dice.one_in(2) {
                hand.undo().unwrap();
                story += "undone\n";
            } else {
                hand.close();
                story += "verified\n";
                (verified, named) = expected;
            }
            let tree = comparable(&sandbox.tree(), &verified, &before, &named, false);
            assert!(tree == verified, "{story}{}", difference(&verified, &tree));
        }
        drop(hand);
        sandbox.applied(&config("nothing"));
        let tree = sandbox.tree();
        assert!(
            tree == before,
            "{story}at the end\n{}",
            difference(&before, &tree)
        );
    }
    assert!(stacked > 100, "{stacked}");
}
