//! Real power cuts: updates on ext4 and XFS, with the disks copied before each operation. The
//! copies are mounted, which runs the file system's own log replay, and recovered by the binary.
//!
//! A copy shows only data that has reached the device: the loop devices bypass the host's page
//! cache, and anything that the file system under test still holds in memory is lost, as in a power
//! cut.

mod images;

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use machinist_rootfs::{FsOp, Root, SnapshotObject, TreeSnapshot};

use crate::cases::{self, Way};
use crate::support::{Dice, lab, rounds};
use images::{DiskImages, Disks, FileSystem};
use machinist_testkit::sandbox::{apply, difference, without_staging};
use machinist_testkit::update_case::Case;

/// What the kernel writes by itself before an operation, between nothing and everything it could.
#[derive(Clone, Copy, Debug, PartialEq)]
enum WritesBack {
    /// Only data that was explicitly synced survives.
    Nothing,
    /// At random a log is committed – names without the content of files – or a disk is written
    /// out.
    Drawn(u64),
}

/// The counts over all moments of some updates.
#[derive(Debug, Default)]
struct Found {
    updates: usize,
    /// Moments at which the power was cut: before each operation, and after the last one.
    moments: usize,
    /// Moments at which the content of a disk differs from the moment before.
    states: usize,
    recovered: usize,
    /// Disk images that differ from those of the state before.
    images: usize,
    old: usize,
    new: usize,
}

#[test]
fn after_a_power_cut_ext4_holds_the_old_config_or_the_new_one() {
    every_moment(FileSystem::Ext4);
}

#[test]
fn after_a_power_cut_xfs_holds_the_old_config_or_the_new_one() {
    every_moment(FileSystem::Xfs);
}

fn every_moment(kind: FileSystem) {
    let mut dice = Dice::new();
    let begun = Instant::now();
    let mut found = Found::default();
    let chosen = ["everything", "everything, withdrawn"];
    for (name, case, way) in cases::all() {
        // With `--long` every case, and more variants of the kernel's writes.
        if !lab().long && !chosen.contains(&name) {
            continue;
        }
        let mut passes = vec![WritesBack::Nothing];
        passes.extend((0..rounds(1, 3)).map(|_| WritesBack::Drawn(dice.next())));
        for writes_back in passes {
            let what = format!("{kind:?}, {name}, the kernel writes back: {writes_back:?}");
            cut_everywhere(
                kind,
                (&case, way),
                writes_back,
                &mut dice,
                &mut found,
                &what,
            );
        }
    }
    println!(
        "lab: figure: {kind:?}: {found:?} in {:.0?}",
        begun.elapsed()
    );
    assert!(found.old > 0 && found.new > 0, "{found:?}");
}

/// Runs the update once, records the disks, and recovers from every recorded state.
fn cut_everywhere(
    kind: FileSystem,
    (case, way): (&Case, Way),
    writes_back: WritesBack,
    dice: &mut Dice,
    found: &mut Found,
    what: &str,
) {
    let disks = Disks::holding(kind, "disks", &case.sandbox().path(""));
    let film = Arc::new(Mutex::new(DiskImages::begin(&disks)));
    let kernel = Mutex::new(match writes_back {
        WritesBack::Nothing => None,
        WritesBack::Drawn(seed) => Some(Dice(seed)),
    });
    let (camera, top) = (Arc::clone(&film), disks.top());
    let hook = move |op: &FsOp| {
        if let Some(dice) = kernel.lock().unwrap().as_mut() {
            images::write_back(dice, &top);
        }
        let moment = format!("before {} of {}", name_of(op), op.path);
        camera.lock().unwrap().capture(&moment);
        None
    };
    let root = Root::open(&disks.top()).unwrap();
    way.run(&root.with_fault(Arc::new(hook)), case);
    let end = TreeSnapshot::capture(&Root::open(&disks.top()).unwrap()).unwrap();
    assert!(case.is_old_or_new(&end), "{what}: not even without a cut");
    let mut film = film.lock().unwrap();
    film.capture("after the last operation");
    disks.unmount();
    found.updates += 1;
    found.moments += film.pictures;
    // A short run uses some of the states, spread evenly from an offset that the seed decides.
    let apart = film.states().div_ceil(rounds(12, usize::MAX));
    let mut number = dice.pick(apart);
    film.each(|moment, images, contents| {
        found.states += 1;
        number += 1;
        if !number.is_multiple_of(apart) {
            return;
        }
        disks.load(contents);
        disks.mount();
        found.recovered += 1;
        found.images += images;
        match recovered(case, &disks.top(), &format!("{what}: {moment}")) {
            Ended::Old => found.old += 1,
            Ended::New => found.new += 1,
        }
        disks.unmount();
    });
}

fn name_of(op: &FsOp) -> String {
    let whole = format!("{:?}", op.act);
    let end = whole.find(['(', '[']).unwrap_or(whole.len());
    whole[..end].to_owned()
}

enum Ended {
    Old,
    New,
}

/// Recovers the disks as a boot does, and finishes the update to the new config.
fn recovered(case: &Case, top: &Path, what: &str) -> Ended {
    let root = Root::open(top).unwrap();
    nothing_torn(case, &TreeSnapshot::capture(&root).unwrap(), what);
    recover(top, what);
    let after = TreeSnapshot::capture(&root).unwrap();
    assert!(
        case.is_old_or_new(&after),
        "{what}: neither config\nto old:\n{}to new:\n{}",
        difference(&without_staging(&case.old), &without_staging(&after)),
        difference(&without_staging(&case.new), &without_staging(&after)),
    );
    let report = apply(&root, &case.to).unwrap_or_else(|error| panic!("{what}: {error:?}"));
    assert!(report.failure.is_none(), "{what}: {:?}", report.failure);
    let end = without_staging(&TreeSnapshot::capture(&root).unwrap());
    let new = without_staging(&case.new);
    assert!(
        end == new,
        "{what}: the next run\n{}",
        difference(&new, &end)
    );
    match without_staging(&after) == without_staging(&case.old) {
        true => Ended::Old,
        false => Ended::New,
    }
}

/// Asserts that before recovery each file and link is either the old one or the new one, complete.
fn nothing_torn(case: &Case, tree: &TreeSnapshot, what: &str) {
    for (path, node) in without_staging(tree).0 {
        let known = [&case.old, &case.new, &case.committed];
        let mut known = known.into_iter().chain(&case.between);
        let is_known = node.object == SnapshotObject::Directory
            || known.any(|tree| tree.0.get(&path) == Some(&node));
        assert!(is_known, "{what}: a reader sees {path} torn: {node:?}");
    }
}

fn recover(root: &Path, what: &str) {
    let output = Command::new(env!("CARGO_BIN_EXE_machinist"))
        .args(["recover", "--root"])
        .arg(root)
        .env_clear()
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: recovery fails: {printed}");
}

#[test]
fn a_disk_that_ignores_flushes_is_detected() {
    for kind in [FileSystem::Ext4, FileSystem::Xfs] {
        let case = Case::everything();
        let disks = Disks::holding(kind, "liar", &case.sandbox().path(""));
        let mut film = DiskImages::begin(&disks);
        let root = Root::open(&disks.top()).unwrap();
        assert_eq!(apply(&root, &case.to).unwrap().failure, None);
        drop(root);
        disks.unmount();
        film.capture("verified");
        // Without the first disk's changes the journal is the old one, and it does not list the new
        // files on the other disks.
        for (disk, place) in images::DISKS.iter().enumerate() {
            disks.load(&film.end_without(disk));
            disks.mount();
            recover(&disks.top(), place);
            let tree = TreeSnapshot::capture(&Root::open(&disks.top()).unwrap()).unwrap();
            let whole = case.is_old_or_new(&tree);
            assert!(!whole, "{kind:?}: without what was written to /{place}");
            disks.unmount();
        }
    }
}
