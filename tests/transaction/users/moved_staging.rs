//! The owner of a mount's top who moves machinist's directory there away: the update fails with that user's name.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_rootfs::FsOpKind;
use machinist_testkit::stepwise_update::StageFailure;
use machinist_update::transaction::TransactionError;

use super::*;

fn wanted() -> Written {
    let wanted = config("wanted").file("/etc/x", "wanted\n", 0o644);
    wanted.file("/home/bob/z", "wanted\n", 0o644)
}

fn move_away(sandbox: &Sandbox) -> impl Fn() + Send + Sync + 'static {
    let [from, to] = ["/home/bob/.machinist", "/home/bob/away"].map(|path| sandbox.path(path));
    move || std::fs::rename(&from, &to).unwrap()
}

fn names_bob(error: &TransactionError) {
    let text = machinist_base::error_chain::chain(error);
    assert_eq!(error.reason(), Reason::UnsafePath, "{text}");
    assert!(text.contains("/home/bob/.machinist"), "{text}");
    assert!(text.contains(&format!("user {BOB}")), "{text}");
    // Later plans skip it.
    let target = error.changed_target().map(AbsPath::as_str);
    assert_eq!(target, Some("/home/bob/z"), "{text}");
}

/// The error of an update during which bob moves the directory away, at the first of these operations.
fn failed(is_then: fn(&FsOpKind) -> bool) -> TransactionError {
    let sandbox = machine(&[File("/home/bob/z", BOB)]).mounted(&["/home/bob"]);
    let done = AtomicBool::new(false);
    let [from, to] = ["/home/bob/.machinist", "/home/bob/away"].map(|path| sandbox.path(path));
    let root = sandbox.root().with_fault(Arc::new(move |op| {
        let builds = is_then(&op.act) && op.path.as_str().starts_with("/home/bob/.machinist/");
        if builds && !done.load(Ordering::Relaxed) {
            done.store(std::fs::rename(&from, &to).is_ok(), Ordering::Relaxed);
        }
        None
    }));
    let mut hand = StepwiseUpdate::open(&root);
    let error = match hand.try_stage(&wanted()) {
        Err(StageFailure::Transaction(error)) => error,
        Ok(Ok(())) => hand.commit().unwrap_err(),
        other => panic!("{other:?}"),
    };
    hand.undo().unwrap();
    assert_eq!(sandbox.read("/etc/x"), None);
    error
}

#[test]
fn a_staging_directory_moved_while_staging_is_reported_with_the_user_who_controls_it() {
    if !plays_users() {
        return;
    }
    names_bob(&failed(|act| matches!(act, FsOpKind::MakeDir(_))));
    names_bob(&failed(|act| matches!(act, FsOpKind::Create(_))));
}

#[test]
fn a_staging_directory_moved_before_the_commit_is_reported_with_the_user_who_controls_it() {
    if !plays_users() {
        return;
    }
    let sandbox = machine(&[]).mounted(&["/home/bob"]);
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    hand.stage(&wanted()).unwrap();
    move_away(&sandbox)();
    names_bob(&hand.commit().unwrap_err());
    hand.undo().unwrap();
    assert_eq!(sandbox.read("/etc/x"), None);
}

/// Only root may move a name at the top of this mount, so the file system is missing.
#[test]
fn a_missing_staging_directory_of_root_is_a_missing_mount() {
    let sandbox = Sandbox::with_mounts(&["/srv/data"]);
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    hand.stage(&config("wanted").file("/srv/data/z", "wanted\n", 0o644))
        .unwrap();
    std::fs::remove_dir_all(sandbox.path("/srv/data/.machinist")).unwrap();
    let failed = hand.commit().unwrap_err();
    assert_eq!(failed.reason(), Reason::MountMissing);
}
