//! Operations of a provider that fail from outside: those on files, and the programs that it runs.

use std::{
    io,
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use machinist_base::abs_path::AbsPath;
use machinist_rootfs::{FsOp, FsOpKind, Root};

/// The operations at which a test interrupts a step: one in 17, or in `OS_POWER_CUT_STEP`. `case` makes them differ
/// between the cases of a test.
pub(crate) fn moments(case: usize) -> impl Iterator<Item = usize> {
    let step = std::env::var("OS_POWER_CUT_STEP");
    let step = step.map_or(17, |step| step.parse().unwrap());
    (case % step..).step_by(step)
}

/// Why operations fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    /// The machine has lost power.
    Power,
    /// The disk is full for one operation.
    SpaceOnce,
    /// The disk is full until space is freed.
    Space,
}

/// Makes operations fail from one of them on.
#[derive(Clone)]
pub(crate) struct Interruption {
    lack: Lack,
    after: usize,
    done: Arc<AtomicUsize>,
    /// The path of the first operation on a file that has failed.
    pub(crate) failed: Arc<OnceLock<AbsPath>>,
}

impl Interruption {
    /// So many operations succeed.
    pub(crate) fn after(operations: usize, lack: Lack) -> Self {
        Self {
            lack,
            after: operations,
            done: Arc::default(),
            failed: Arc::default(),
        }
    }

    /// Counts an operation, and fails if what it needs is lacking.
    pub(crate) fn next(&self, needs_space: bool) -> io::Result<()> {
        if self.lack != Lack::Power && !needs_space {
            return Ok(());
        }
        let done = self.done.fetch_add(1, Ordering::Relaxed);
        let fails = match self.lack {
            Lack::SpaceOnce => done == self.after,
            _ => done >= self.after,
        };
        match (fails, self.lack) {
            (false, _) => Ok(()),
            (true, Lack::Power) => Err(io::ErrorKind::Other.into()),
            (true, _) => Err(io::ErrorKind::StorageFull.into()),
        }
    }

    /// The root of the machine. A sync may need space: some file systems allocate it only then.
    pub(crate) fn root(&self, directory: &Path) -> Root {
        let interruption = self.clone();
        let hook = move |op: &FsOp| {
            let needs_space = !matches!(op.act, FsOpKind::Unlink | FsOpKind::RemoveDir);
            let error = interruption.next(needs_space).err()?;
            interruption.failed.get_or_init(|| op.path.clone());
            Some(error)
        };
        let root = Root::open(directory).unwrap();
        root.with_fault(Arc::new(hook))
    }
}
