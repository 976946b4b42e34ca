//! A user who exchanges a directory with a link, or a file with another one, while an update is staged: no file and
//! no attribute from elsewhere gets into that user's directories.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use machinist_rootfs::{FsOpKind, Root};
use machinist_testkit::stepwise_update::StageFailure;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::*;

/// The tree of a machine where bob acts once, when the first file is built in a staging directory.
fn with_act_while_staging(sandbox: &Sandbox, act: impl Fn() + Send + Sync + 'static) -> Root {
    let done = AtomicBool::new(false);
    sandbox.root().with_fault(Arc::new(move |op| {
        let builds = matches!(op.act, FsOpKind::Create(_)) && op.path.as_str().contains("/tx/");
        if builds && !done.swap(true, Ordering::Relaxed) {
            act();
        }
        None
    }))
}

/// Checks that the update is not staged, since a user has changed or redirected a path.
fn is_refused(root: &Root, wanted: &Written) {
    let mut hand = StepwiseUpdate::open(root);
    let failed = hand.try_stage(wanted).unwrap_err();
    let others = matches!(&failed, StageFailure::Transaction(error) if error.is_foreign_change());
    assert!(others, "{failed:?}");
    hand.undo().unwrap();
}

fn exchange(sandbox: &Sandbox) -> impl Fn() + Send + Sync + 'static {
    let [one, other] = ["/home/bob/d", "/home/bob/l"].map(|path| sandbox.path(path));
    move || renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).unwrap()
}

fn names(sandbox: &Sandbox, path: &str) -> u32 {
    sandbox.root().stat(&at(path)).unwrap().unwrap().nlink
}

#[test]
fn a_hard_link_leads_to_no_file_that_was_put_there_while_staging() {
    if !plays_users() {
        return;
    }
    let linked = config("linked")
        .file("/etc/plain", "ours\n", 0o644)
        .hard("/home/bob/hl", "/home/bob/d/shadow");
    let objects = [
        Dir("/home/bob/d", BOB, 0o755),
        File("/home/bob/d/shadow", BOB),
        Link("/home/bob/l", BOB, "../../etc"),
        File("/home/bob/secret", 0),
    ];
    let sandbox = machine(&objects);
    let root = with_act_while_staging(&sandbox, exchange(&sandbox));
    is_refused(&root, &linked);
    assert_eq!(names(&sandbox, "/etc/shadow"), 1);
    // A file of root in that user's own directory, which the user cannot read.
    let sandbox = machine(&objects);
    let [secret, file] = ["/home/bob/secret", "/home/bob/d/shadow"].map(|path| sandbox.path(path));
    let root = with_act_while_staging(&sandbox, move || std::fs::rename(&secret, &file).unwrap());
    is_refused(&root, &linked);
    assert_eq!(names(&sandbox, "/home/bob/d/shadow"), 1);
    // Without such an act the link is made.
    let sandbox = machine(&objects);
    apply(&sandbox, &linked).unwrap();
    assert_eq!(names(&sandbox, "/home/bob/hl"), 2);
}

#[test]
fn a_new_file_takes_no_attributes_from_a_file_that_was_put_there_while_staging() {
    if !plays_users() {
        return;
    }
    let sandbox = machine(&[
        Dir("/home/bob/d", BOB, 0o755),
        File("/home/bob/d/x", BOB),
        Dir("/etc/target", 0, 0o755),
        File("/etc/target/x", 0),
        Link("/home/bob/l", BOB, "../../etc/target"),
    ]);
    let root = with_act_while_staging(&sandbox, exchange(&sandbox));
    let wanted = with_file("/home/bob/d/x", 0);
    is_refused(&root, &wanted);
}
