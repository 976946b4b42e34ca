//! Killed at every operation, or with one operation failing: the tree is the old config or the new
//! one, and the next run ends on the new one.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use machinist_rootfs::{FsOp, Root};
use machinist_update::{crash_recovery, store::StateStore};
use nix::libc;

use machinist_testkit::{
    sandbox::{Sandbox, apply, difference, long},
    update_case::{Case, plain},
};

/// A root on which the operations that `fails` selects by number return an error.
fn failing(
    root: Root,
    fails: impl Fn(usize, &FsOp) -> Option<i32> + Send + Sync + 'static,
) -> (Root, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&count);
    let hook = move |op: &FsOp| {
        let number = seen.fetch_add(1, Ordering::Relaxed);
        fails(number, op).map(io::Error::from_raw_os_error)
    };
    (root.with_fault(Arc::new(hook)), count)
}

/// How many operations the update takes.
fn length(case: &Case) -> usize {
    let sandbox = case.sandbox();
    let (root, count) = failing(sandbox.root(), |_, _| None);
    assert_eq!(apply(&root, &case.to).unwrap().failure, None);
    count.load(Ordering::Relaxed)
}

/// The same as `machinist recover` at boot.
fn recovered(sandbox: &Sandbox, what: &str) {
    let store = StateStore::open(&sandbox.root()).unwrap();
    crash_recovery::recover(&store).unwrap_or_else(|error| panic!("{what}: {error:?}"));
}

fn must_be_old_or_new(case: &Case, sandbox: &Sandbox, what: &str) {
    let tree = sandbox.tree();
    let told = || {
        let (old, new) = (difference(&case.old, &tree), difference(&case.new, &tree));
        format!(
            "{what}\nto old:\n{old}to new:\n{new}{:#?}",
            sandbox.journal().transactions
        )
    };
    assert!(case.is_old_or_new(&tree), "{}", told());
}

fn must_reach_new(case: &Case, sandbox: &Sandbox, what: &str) {
    let report = sandbox.apply(&case.to);
    assert_eq!(report.failure, None, "{what}");
    assert_eq!(sandbox.journal().transactions, [], "{what}");
    let tree = plain(&sandbox.tree());
    assert!(tree == case.new, "{what}\n{}", difference(&case.new, &tree));
}

#[test]
fn a_kill_at_any_operation_leaves_the_old_or_the_new_config() {
    let case = Case::everything();
    let length = length(&case);
    assert!(length > 100, "{length}");
    let (mut went_back, mut went_on) = (0, 0);
    for number in 0..=length {
        let what = format!("killed at operation {number} of {length}");
        let sandbox = case.sandbox();
        let (root, _) = failing(sandbox.root(), move |at, _| {
            (at >= number).then_some(libc::EIO)
        });
        drop(apply(&root, &case.to));
        drop(root);
        recovered(&sandbox, &what);
        must_be_old_or_new(&case, &sandbox, &what);
        match plain(&sandbox.tree()) == case.old {
            true => went_back += 1,
            false => went_on += 1,
        }
        if number % 2 == 0 || long() {
            must_reach_new(&case, &sandbox, &what);
        } else {
            // Rolled back instead.
            sandbox.applied(&case.from);
            let tree = plain(&sandbox.tree());
            assert!(tree == case.old, "{what}\n{}", difference(&case.old, &tree));
        }
    }
    println!("{length} operations: {went_back} kills went back, {went_on} went on");
    assert!(went_back > 50 && went_on > 50);
}

#[test]
fn one_failing_operation_fails_only_the_update() {
    let case = Case::everything();
    let length = length(&case);
    let (mut failed, mut ended) = (0, 0);
    let errors = [libc::ENOSPC, libc::EIO, libc::EROFS];
    for number in (0..length).step_by(if long() { 1 } else { 2 }) {
        for (index, errno) in errors.into_iter().enumerate() {
            if !long() && number % errors.len() != index {
                continue;
            }
            let what = format!("operation {number} of {length} fails with {errno}");
            let sandbox = case.sandbox();
            let (root, _) = failing(sandbox.root(), move |at, _| (at == number).then_some(errno));
            let ran = apply(&root, &case.to);
            drop(root);
            if let Ok(report) = &ran {
                let journal = sandbox.journal();
                let tree = plain(&sandbox.tree());
                let expected = if report.failure.is_some() {
                    &case.old
                } else {
                    &case.new
                };
                assert_eq!(journal.transactions, [], "{what}");
                assert!(tree == *expected, "{what}\n{}", difference(expected, &tree));
                failed += usize::from(report.failure.is_some());
            } else {
                ended += 1;
            }
            recovered(&sandbox, &what);
            must_be_old_or_new(&case, &sandbox, &what);
            must_reach_new(&case, &sandbox, &what);
        }
    }
    println!("{length} operations: {failed} updates reported a failure, {ended} ended the agent");
    assert!(failed > 25);
}
