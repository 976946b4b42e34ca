//! A disk that becomes full while GRUB's provider keeps a deployment, in a process that goes on.

use std::{
    fs,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use machinist_base::abs_path::AbsPath;
use machinist_rootfs::{FsOp, FsOpKind, Root};
use machinist_testkit::sandbox::temporary;
use machinist_update::os::{DeploymentId, OsProvider as _};

use super::{
    contract::{STEP_TIMEOUT, wanted},
    grub_machine::{BEFORE, CUSTOM, GrubMachine, Initrd, mkconfig},
};

/// How long the disk is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Full {
    /// For one operation.
    Once,
    /// Until space is freed.
    Longer,
}

/// What follows the failed step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    KeepAgain,
    Discard,
    PowerCut,
}

/// The root of a machine whose disk is full from this operation on, and the path of the first one that fails. A sync may
/// fail as well: some file systems allocate space only then. Removing needs none.
fn full_root(
    machine: &GrubMachine,
    full: Full,
    operations: usize,
) -> (Root, Arc<OnceLock<AbsPath>>) {
    let done = AtomicUsize::new(0);
    let failed = Arc::new(OnceLock::new());
    let first = Arc::clone(&failed);
    let hook = move |op: &FsOp| {
        if matches!(op.act, FsOpKind::Unlink | FsOpKind::RemoveDir) {
            return None;
        }
        let before = done.fetch_add(1, Ordering::Relaxed);
        let is_full = before == operations || (before > operations && full == Full::Longer);
        is_full.then(|| {
            first.get_or_init(|| op.path.clone());
            std::io::ErrorKind::StorageFull.into()
        })
    };
    let root = Root::open(&machine.path("")).unwrap();
    (root.with_fault(Arc::new(hook)), failed)
}

/// Whether grub.cfg is what grub-mkconfig writes now.
fn agrees(machine: &GrubMachine) -> bool {
    mkconfig(&machine.path(""), "/boot/grub/expected");
    let expected = machine.read("boot/grub/expected");
    fs::remove_file(machine.path("boot/grub/expected")).unwrap();
    machine.read("boot/grub/grub.cfg") == expected
}

/// A machine that runs on a trial.
async fn in_trial(machine: &GrubMachine) -> DeploymentId {
    let agent = machine.agent();
    let staged = agent.stage(&wanted("nosmt", ""), STEP_TIMEOUT).await;
    let id = staged.unwrap().unwrap();
    agent.unlock(&id).await.unwrap();
    machine.boot();
    id
}

/// Fills the disk at an operation of `keep`, and returns whether that was done before.
async fn is_kept_before(operations: usize, full: Full, then: Then) -> bool {
    let case = format!("{operations} operations, {full:?}, {then:?}");
    let directory = temporary();
    let machine = GrubMachine::new(directory.path(), Initrd::Always);
    let after = format!("{BEFORE} nosmt");
    let id = in_trial(&machine).await;
    let (root, failed) = full_root(&machine, full, operations);
    let kept = machine.agent_on(root).keep(&id).await;
    let in_boot = failed
        .get()
        .is_some_and(|path| path.as_str().starts_with("/boot"));
    if in_boot && full == Full::Once {
        // The file below /etc was restored at once.
        assert!(agrees(&machine), "{case}");
    }
    match then {
        Then::KeepAgain => machine.agent().keep(&id).await.unwrap(),
        Then::Discard => machine.agent().discard().await.unwrap(),
        Then::PowerCut => {
            machine.boot();
            let running = machine.running();
            assert!([BEFORE, &after].contains(&&*running), "{case}: {running}");
            machine.agent().discard().await.unwrap();
        }
    }
    assert!(agrees(&machine), "{case}");
    assert_eq!(machine.read("boot/grub/custom.cfg"), CUSTOM, "{case}");
    let next = machine.agent().observe().await.unwrap().next;
    machine.boot();
    let booted = machine.agent().observe().await.unwrap().booted.id;
    assert_eq!(booted, next, "{case}");
    let running = machine.running();
    let may_be_old = then != Then::KeepAgain && kept.is_err();
    assert!(
        running == after || may_be_old && running == BEFORE,
        "{case}: {running}"
    );
    kept.is_ok()
}

#[tokio::test]
async fn a_disk_that_is_full_at_any_operation_of_keep_leaves_one_of_two_deployments() {
    let cases = [
        (Full::Once, Then::KeepAgain),
        (Full::Longer, Then::Discard),
        (Full::Longer, Then::PowerCut),
    ];
    for (full, then) in cases {
        let mut operations = 0;
        while !is_kept_before(operations, full, then).await {
            operations += 1;
            assert!(operations < 100, "it never ends");
        }
        assert!(operations > 10, "it writes several files");
    }
}
