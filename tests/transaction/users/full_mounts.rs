//! A user who fills a file system after the commit: an undo needs no space there, and if it lacks some all the same,
//! it leaves only the user's path behind.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use machinist_rootfs::{FsOp, FsOpKind};

use super::*;

/// Rolls an update back after bob has replaced a file of it and filled the file system: `fails` says which operations
/// need space. Returns the content of the file afterwards.
fn undone(mounts: &[&str], fails: fn(&FsOp) -> bool) -> Option<String> {
    let sandbox = machine(&[]).mounted(mounts);
    let wanted = |text: &str| {
        let wanted = config(text).file("/etc/x", text, 0o644);
        wanted.file("/home/bob/z", text, 0o644)
    };
    apply(&sandbox, &wanted("one")).unwrap();
    let full = Arc::new(AtomicBool::new(false));
    let filled = Arc::clone(&full);
    let root = sandbox.root().with_fault(Arc::new(move |op| {
        let fails = filled.load(Ordering::Relaxed) && fails(op);
        fails.then(|| io::ErrorKind::StorageFull.into())
    }));
    let mut hand = StepwiseUpdate::open(&root);
    hand.stage(&wanted("two")).unwrap();
    hand.commit().unwrap();
    add(&sandbox, &File("/home/bob/new", BOB));
    std::fs::rename(sandbox.path("/home/bob/new"), sandbox.path("/home/bob/z")).unwrap();
    full.store(true, Ordering::Relaxed);
    hand.undo().unwrap();
    assert_eq!(sandbox.read("/etc/x").as_deref(), Some("one"));
    sandbox.read("/home/bob/z")
}

#[test]
fn an_undo_needs_no_new_object_on_a_file_system_that_a_user_filled() {
    if !plays_users() {
        return;
    }
    // The journal is written elsewhere.
    let of_users = |op: &FsOp| {
        let makes = matches!(op.act, FsOpKind::MakeDir(_) | FsOpKind::Create(_));
        makes && op.path.is_under(&at("/home/bob"))
    };
    let directories = |op: &FsOp| matches!(op.act, FsOpKind::MakeDir(_));
    assert_eq!(undone(&["/home/bob"], of_users).as_deref(), Some("one"));
    assert_eq!(undone(&[], directories).as_deref(), Some("one"));
}

#[test]
fn an_undo_that_lacks_space_on_a_file_system_of_users_leaves_only_that_path_behind() {
    if !plays_users() {
        return;
    }
    let aside = |op: &FsOp| {
        let to = match &op.act {
            FsOpKind::Rename(to) => to.as_str(),
            _ => "",
        };
        to.contains("/drifted/")
    };
    for mounts in [&["/home/bob"][..], &[]] {
        assert_eq!(undone(mounts, aside).as_deref(), Some("found\n"));
    }
}
