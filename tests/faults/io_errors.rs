//! Injected errors of operations: once, or until the disk is repaired.

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use machinist_base::reason::Reason;
use machinist_rootfs::{FsOp, FsOpKind, Root, SnapshotObject, TreeSnapshot};
use machinist_update::{
    crash_recovery::recover, journal::TransactionState, phase::Phase, store::StateStore,
};
use nix::libc;

use crate::faults::harness::{Driver, UNIT};
use machinist_testkit::{
    sandbox::{Sandbox, difference, long, restarting, without_staging},
    scripted_services::Script,
    update_case::{Case, plain},
};

const ERRORS: [i32; 4] = [libc::ENOSPC, libc::EDQUOT, libc::EIO, libc::EROFS];

/// A disk on which operations fail from a number on.
pub(crate) struct Disk {
    count: Arc<AtomicUsize>,
    healthy: Arc<AtomicBool>,
}

impl Disk {
    pub(crate) fn of(
        root: Root,
        fails: impl Fn(usize, &FsOp) -> Option<i32> + Send + Sync + 'static,
    ) -> (Root, Self) {
        let disk = Self {
            count: Arc::default(),
            healthy: Arc::default(),
        };
        let (count, healthy) = (Arc::clone(&disk.count), Arc::clone(&disk.healthy));
        let hook = move |op: &FsOp| {
            let number = count.fetch_add(1, Ordering::Relaxed);
            if healthy.load(Ordering::Relaxed) {
                return None;
            }
            fails(number, op).map(io::Error::from_raw_os_error)
        };
        (root.with_fault(Arc::new(hook)), disk)
    }

    pub(crate) fn stop_failing(&self) {
        self.healthy.store(true, Ordering::Relaxed);
    }
}

/// Runs with a paused clock, which jumps to the next deadline whenever all tasks wait.
pub(crate) fn paused<T>(work: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    runtime.block_on(work)
}

/// The agent's reconciler for this case; hours of a paused clock take no time.
pub(crate) fn drive(case: &Case, root: &Root) -> Driver {
    let (script, conduct) = (Script::new(), restarting(UNIT));
    let mut driver = Driver::on(root, &script, case.to.desired(), conduct);
    driver.patience = Duration::from_secs(24 * 3600);
    driver
}

/// How many operations the update takes.
pub(crate) async fn length(case: &Case) -> usize {
    let sandbox = case.sandbox();
    let (root, disk) = Disk::of(sandbox.root(), |_, _| None);
    let mut driver = drive(case, &root);
    driver.until_on(&case.to).await;
    driver.stop().await;
    disk.count.load(Ordering::Relaxed)
}

pub(crate) fn must_be_new(case: &Case, sandbox: &Sandbox, what: &str) {
    let tree = plain(&sandbox.tree());
    assert!(tree == case.new, "{what}\n{}", difference(&case.new, &tree));
    assert_eq!(sandbox.journal().transactions, [], "{what}");
}

pub(crate) fn must_be_old_or_new(case: &Case, sandbox: &Sandbox, what: &str) {
    let tree = TreeSnapshot::capture(&sandbox.root()).unwrap();
    let context = || {
        let seen = machinist_testkit::sandbox::without_staging(&tree);
        let old = machinist_testkit::sandbox::without_staging(&case.old);
        format!("{what}\nto old:\n{}", difference(&old, &seen))
    };
    assert!(case.is_old_or_new(&tree), "{}", context());
}

#[test]
fn a_single_failed_operation_only_delays_the_update() {
    let case = Case::everything();
    paused(async move {
        let length = length(&case).await;
        assert!(length > 100, "{length}");
        let mut runs = 0;
        for number in (0..length).step_by(if long() { 1 } else { 3 }) {
            for (index, errno) in ERRORS.into_iter().enumerate() {
                if !long() && number % ERRORS.len() != index {
                    continue;
                }
                let what = format!("operation {number} of {length} fails with {errno}");
                let sandbox = case.sandbox();
                let fails = move |at, _: &FsOp| (at == number).then_some(errno);
                let (root, _) = Disk::of(sandbox.root(), fails);
                let mut driver = drive(&case, &root);
                driver.until_on(&case.to).await;
                driver.stop().await;
                must_be_new(&case, &sandbox, &what);
                runs += 1;
            }
        }
        println!("{length} operations, {runs} updates with one failure each");
    });
}

#[test]
fn without_rename_exchange_updates_use_a_temporary_name_and_roll_back() {
    let case = Case::everything().without_exchange();
    let sandbox = case.sandbox();
    paused(async {
        let mut driver = drive(&case, &sandbox.root());
        driver.until_on(&case.to).await;
        driver.stop().await;
    });
    must_be_new(&case, &sandbox, "no exchange");
    sandbox.applied(&case.from);
    let tree = plain(&sandbox.tree());
    let old = plain(&case.old);
    assert!(tree == old, "{}", difference(&old, &tree));
}

/// Kills the update right after the first operation for which `is_last` is true; returns which one
/// that was.
fn killed_after(
    case: &Case,
    sandbox: &Sandbox,
    is_last: impl Fn(&FsOp) -> bool + Send + Sync + 'static,
) -> Option<FsOp> {
    let last = Arc::new(Mutex::new(None));
    let known = Arc::clone(&last);
    let hook = move |op: &FsOp| {
        if let Some(error) = machinist_testkit::sandbox::no_exchange(op) {
            return Some(error);
        }
        let mut last = known.lock().unwrap();
        if last.is_some() {
            return Some(io::Error::from_raw_os_error(libc::EIO));
        }
        if is_last(op) {
            *last = Some(op.clone());
        }
        None
    };
    drop(machinist_testkit::sandbox::apply(
        &sandbox.root().with_fault(Arc::new(hook)),
        &case.to,
    ));
    last.lock().unwrap().take()
}

/// The n-th operation of this kind.
fn nth(number: usize, of: impl Fn(&FsOp) -> bool) -> impl Fn(&FsOp) -> bool {
    let count = AtomicUsize::new(0);
    move |op| of(op) && count.fetch_add(1, Ordering::Relaxed) == number
}

fn is_commit(op: &FsOp) -> bool {
    let FsOpKind::Rename(to) = &op.act else {
        return false;
    };
    let [from, to] = [op.path.as_str(), to.as_str()];
    let staged = |path: &str| path.contains("/machinist/tx/") || path.contains("/.machinist/");
    (staged(from) || staged(to)) && !to.contains("/originals/")
}

#[test]
fn a_kill_during_an_update_by_temporary_name_is_recovered() {
    let case = Case::everything().without_exchange();
    let (mut kills, mut missing) = (0, 0);
    loop {
        let sandbox = case.sandbox();
        let Some(op) = killed_after(&case, &sandbox, nth(kills, is_commit)) else {
            break;
        };
        let what = format!("killed after {op:?}");
        let gone = matches!(&op.act, FsOpKind::Rename(to) if to.as_str().ends_with(".aside"));
        missing += u32::from(gone);
        let there = sandbox.root().stat(&op.path).unwrap();
        assert!(!gone || there.is_none(), "{what}");
        let store = StateStore::open(&sandbox.root()).unwrap();
        let (journal, _) = recover(&store).unwrap();
        let mark = journal.top().map(|tx| tx.mark);
        assert_eq!(mark, Some(TransactionState::Committed), "{what}");
        let seen = without_staging(&TreeSnapshot::capture(&sandbox.root()).unwrap());
        let new = without_staging(&case.committed);
        assert!(seen == new, "{what}\n{}", difference(&new, &seen));
        kills += 1;
    }
    assert!(kills > 20 && missing >= 5, "{kills} {missing}");
}

/// Killed while the target is missing, and another process creates a file there.
#[test]
fn a_foreign_file_at_a_missing_target_is_set_aside_by_rollback() {
    let case = Case::everything().without_exchange();
    let aside =
        |op: &FsOp| matches!(&op.act, FsOpKind::Rename(to) if to.as_str().ends_with(".aside"));
    let mut met = 0;
    loop {
        let sandbox = case.sandbox();
        let Some(op) = killed_after(&case, &sandbox, nth(met, aside)) else {
            break;
        };
        met += 1;
        sandbox.write(op.path.as_str(), "a stranger's\n");
        let what = format!("{} is missing and a stranger comes", op.path);
        let report = machinist_testkit::sandbox::apply(&sandbox.root(), &case.from).unwrap();
        assert!(report.failure.is_none(), "{what}: {report:?}");
        must_be_old_or_new(&case, &sandbox, &what);
        let tree = TreeSnapshot::capture(&sandbox.root()).unwrap();
        let theirs = SnapshotObject::File(b"a stranger's\n".to_vec());
        let kept = tree.0.iter().filter(|(_, node)| node.object == theirs);
        let kept: Vec<_> = kept.map(|(path, _)| path.as_str()).collect();
        let aside = kept.len() == 1 && kept[0].contains("/drifted/");
        assert!(aside, "{what}: {kept:?}");
    }
    assert!(met >= 5, "{met}");
}

/// Whether an operation needs space that was not reserved for it before.
fn needs_room(kept: &AtomicU64, op: &FsOp) -> bool {
    let spare = op.path.as_str().ends_with("/.journal.new");
    match &op.act {
        FsOpKind::Create(_)
        | FsOpKind::MakeDir(_)
        | FsOpKind::MakeLink(_)
        | FsOpKind::HardLink(_)
        | FsOpKind::Reserve(_) => true,
        FsOpKind::Write(bytes) if spare => bytes.len() as u64 > kept.load(Ordering::Relaxed),
        FsOpKind::Write(_) => true,
        _ => false,
    }
}

#[test]
fn a_disk_full_at_any_moment_leaves_one_config_and_is_retried() {
    let case = Case::everything();
    paused(async move {
        let length = length(&case).await;
        let (mut went_back, mut went_on) = (0, 0);
        for number in (0..length).step_by(if long() { 1 } else { 4 }) {
            let errno = ERRORS[number / 4 % 2];
            let what = format!("full ({errno}) from operation {number} of {length} on");
            let sandbox = case.sandbox();
            let kept = AtomicU64::new(0);
            let fails = move |at, op: &FsOp| {
                if at >= number && needs_room(&kept, op) {
                    return Some(errno);
                }
                if let FsOpKind::Reserve(room) = &op.act {
                    kept.store(*room, Ordering::Relaxed);
                }
                None
            };
            let (root, disk) = Disk::of(sandbox.root(), fails);
            let mut driver = drive(&case, &root);
            let new = machinist_ignition::digest(&case.to.0);
            let report = driver
                .until("an end", |report| {
                    let current = report.config.current.as_ref().map(|name| name.digest);
                    let on = current == Some(new) && report.phase == Phase::Idle;
                    on || report.phase == Phase::Failed
                })
                .await;
            must_be_old_or_new(&case, &sandbox, &what);
            let journal = sandbox.journal();
            match &report.failure {
                Some(failure) => {
                    assert_eq!(failure.code, Reason::NoSpace, "{what}: {failure:?}");
                    assert!(failure.retryable, "{what}");
                    // A rollback needs no space: nothing of the update is left on the machine.
                    let open = journal.transactions.iter();
                    let open: Vec<_> = open
                        .filter(|tx| tx.mark != TransactionState::Verified)
                        .collect();
                    assert!(open.is_empty(), "{what}: {open:?}");
                    went_back += 1;
                }
                None => went_on += 1,
            }
            disk.stop_failing();
            driver.until_on(&case.to).await;
            driver.stop().await;
            must_be_new(&case, &sandbox, &what);
        }
        println!(
            "{length} operations: {went_back} updates went back and came again, {went_on} went on"
        );
        assert!(went_back > 10 && went_on > 3);
    });
}

#[test]
fn a_disk_io_error_at_any_moment_is_retried() {
    let case = Case::everything();
    paused(async move {
        let length = length(&case).await;
        for number in (0..length).step_by(if long() { 1 } else { 4 }) {
            let errno = ERRORS[2 + number / 4 % 2];
            let what = format!("broken ({errno}) from operation {number} of {length} on");
            let sandbox = case.sandbox();
            let fails = move |at, _: &FsOp| (at >= number).then_some(errno);
            let (root, disk) = Disk::of(sandbox.root(), fails);
            let mut driver = drive(&case, &root);
            let report = driver.until_failed().await;
            let failure = report.failure.clone().unwrap();
            let known = [
                Reason::Io,
                Reason::ReadOnly,
                Reason::CommitFailed,
                Reason::RollbackFailed,
            ];
            assert!(known.contains(&failure.code), "{what}: {failure:?}");
            assert!(failure.retryable, "{what}: {failure:?}");
            disk.stop_failing();
            driver.until_on(&case.to).await;
            driver.stop().await;
            must_be_new(&case, &sandbox, &what);
        }
    });
}

#[test]
fn a_read_only_state_directory_at_start_is_retried() {
    let case = Case::small();
    paused(async move {
        let sandbox = case.sandbox();
        let (root, disk) = Disk::of(sandbox.root(), |_, _| Some(libc::EROFS));
        let mut driver = drive(&case, &root);
        let report = driver.until_failed().await;
        assert_eq!(report.failure.as_ref().unwrap().code, Reason::ReadOnly);
        assert_eq!(report.config.current.as_ref().unwrap().name, "from");
        disk.stop_failing();
        driver.until_on(&case.to).await;
        driver.stop().await;
        must_be_new(&case, &sandbox, "read-only at the start");
    });
}
