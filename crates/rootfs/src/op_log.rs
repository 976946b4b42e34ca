//! Test instruments: a log of the operations on the tree, injected faults, simulated mounts and space.
//!
//! A root without instruments pays one comparison per operation.

use std::{
    fmt, io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

#[cfg(any(test, feature = "testing"))]
use super::Inner;
use super::{Mount, MountId, Root, resolve};
use machinist_base::abs_path::AbsPath;

/// One operation that changed the tree or made it durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsOp {
    /// The file system: equal for operations on one file system in this recording, without meaning
    /// beyond it.
    pub fs: u64,
    /// The path, without links in its parents.
    pub path: AbsPath,
    /// The operation.
    pub act: FsOpKind,
}

/// An operation on a path. Modes are permission bits (07777).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FsOpKind {
    /// An empty file of this mode was created.
    Create(u32),
    /// The whole content of the file was replaced by this.
    Write(Vec<u8>),
    /// This many bytes were allocated for the file; its content and length are unchanged.
    Reserve(u64),
    /// A directory of this mode was created.
    MakeDir(u32),
    /// A symbolic link to this target was created.
    MakeLink(String),
    /// The name was created as a hard link to the file at this path.
    HardLink(AbsPath),
    /// A socket was created.
    MakeSocket,
    /// The mode was set.
    SetMode(u32),
    /// Owner and group were set.
    SetOwner(u32, u32),
    /// The extended attribute of this name was set to this value, or removed if the value is empty.
    SetAttribute(String, Vec<u8>),
    /// The name was moved to this one, replacing any object there.
    Rename(AbsPath),
    /// The name was exchanged with this one.
    Exchange(AbsPath),
    /// The name of an object other than a directory was removed.
    Unlink,
    /// The empty directory was removed.
    RemoveDir,
    /// The file's content and attributes were made durable.
    SyncFile,
    /// The directory's entries and attributes were made durable.
    SyncDir,
    /// Everything on the file system was made durable.
    SyncFs,
}

impl FsOpKind {
    /// Whether it changes a directory's entries: such an operation belongs to the file system of
    /// the directory and not to that of a mount at the name.
    const fn changes_names(&self) -> bool {
        use FsOpKind as A;
        matches!(
            self,
            A::Create(_)
                | A::MakeDir(_)
                | A::MakeLink(_)
                | A::HardLink(_)
                | A::MakeSocket
                | A::Rename(_)
                | A::Exchange(_)
                | A::Unlink
                | A::RemoveDir
        )
    }
}

/// Called before each operation; if it returns an error, the operation is not carried out.
pub type FaultHook = Arc<dyn Fn(&FsOp) -> Option<io::Error> + Send + Sync>;

/// The operations of a recording root and its clones, in order.
#[derive(Clone, Debug, Default)]
pub struct Recording(Arc<Mutex<Vec<FsOp>>>);

impl Recording {
    /// A copy of the log so far.
    pub fn log(&self) -> Vec<FsOp> {
        self.hold().clone()
    }

    /// How many operations the log holds.
    pub fn len(&self) -> usize {
        self.hold().len()
    }

    /// Whether the log is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Each push leaves the log consistent, so a panic elsewhere does not spoil it.
    fn hold(&self) -> MutexGuard<'_, Vec<FsOp>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Default)]
pub(super) struct Hooks {
    recording: Option<Recording>,
    fault: Option<FaultHook>,
    mounts: Vec<AbsPath>,
    /// Size and free space of each file system, in bytes.
    space: Option<(u64, Arc<AtomicU64>)>,
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Taps")
            .field("mounts", &self.mounts)
            .finish_non_exhaustive()
    }
}

/// Constructors of instrumented roots, absent in the program.
#[cfg(any(test, feature = "testing"))]
impl Root {
    /// This root, with every operation through it and its clones recorded in a log.
    pub fn recording(self) -> (Self, Recording) {
        let recording = Recording::default();
        let root = self.with_taps(|taps| taps.recording = Some(recording.clone()));
        (root, recording)
    }

    /// This root, which calls `hook` before each operation to decide whether it fails, and how. A
    /// hook may also end the process there.
    pub fn with_fault(self, hook: FaultHook) -> Self {
        self.with_taps(|taps| taps.fault = Some(hook))
    }

    /// This root, with each of `tops` treated as the top of a separate mount: [`Root::mount`] and
    /// [`Root::stat`] report them, renames between them return EXDEV, and the recording sees
    /// different file systems. For tests that may not mount anything.
    pub fn with_simulated_mounts(self, tops: Vec<AbsPath>) -> Self {
        self.with_taps(|taps| taps.mounts = tops)
    }

    /// This root, whose file systems have this size and this free space in [`Root::mount`], in bytes.
    pub fn with_simulated_space(self, size: u64, free: Arc<AtomicU64>) -> Self {
        self.with_taps(|taps| taps.space = Some((size, free)))
    }

    fn with_taps(self, set: impl FnOnce(&mut Hooks)) -> Self {
        let mut inner: Inner = Arc::unwrap_or_clone(self.0);
        set(inner.taps.get_or_insert_default());
        Self(Arc::new(inner))
    }
}

impl Root {
    /// Carries out one operation on `p` under the instruments. `act` describes it with the caller's
    /// paths, and is called only if instruments are active.
    pub(super) fn tapped<T>(
        &self,
        p: &AbsPath,
        act: impl FnOnce() -> FsOpKind,
        run: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let Some(taps) = &self.0.taps else {
            return run();
        };
        let op = self.describe(p, act())?;
        if let Some(error) = taps.fault.as_ref().and_then(|hook| hook(&op)) {
            return Err(error);
        }
        let Some(recording) = &taps.recording else {
            return run();
        };
        // Locked while the operation runs, so that the log has the kernel's order.
        let mut log = recording.hold();
        let answer = run()?;
        log.push(op);
        Ok(answer)
    }

    fn describe(&self, p: &AbsPath, mut act: FsOpKind) -> io::Result<FsOp> {
        let path = self.canonical(p).map_err(io::Error::other)?;
        if let FsOpKind::Rename(to) | FsOpKind::Exchange(to) | FsOpKind::HardLink(to) = &mut act {
            *to = self.canonical(to).map_err(io::Error::other)?;
        }
        let directory = path.parent().filter(|_| act.changes_names());
        let fs = self.fs_of(directory.as_ref().unwrap_or(&path))?;
        Ok(FsOp { fs, path, act })
    }

    fn fs_of(&self, p: &AbsPath) -> io::Result<u64> {
        let raw = resolve::statx_of(self.nearest(p)?.1)?;
        let device = u64::from(raw.stx_dev_major) << 32 | u64::from(raw.stx_dev_minor);
        Ok(self
            .simulated_mount_index(p)
            .map_or(device, |index| u64::MAX - index))
    }

    /// The simulated mount that contains `p`; the innermost, if they nest.
    fn simulated_mount_index(&self, p: &AbsPath) -> Option<u64> {
        let mounts = &self.0.taps.as_ref()?.mounts;
        (0_u64..)
            .zip(mounts)
            .filter(|(_, top)| p.is_under(top))
            .max_by_key(|(_, top)| top.as_str().len())
            .map(|(index, _)| index)
    }

    pub(super) fn has_simulated_mounts(&self) -> bool {
        self.0.taps.is_some()
    }

    pub(super) fn is_simulated_mount(&self, p: &AbsPath) -> bool {
        self.0
            .taps
            .as_ref()
            .is_some_and(|taps| taps.mounts.contains(p))
    }

    pub(super) fn simulated_mount(&self, p: &AbsPath, real: Mount) -> Mount {
        let tops = self.0.taps.as_ref().map(|taps| &taps.mounts);
        let index = self
            .simulated_mount_index(p)
            .and_then(|index| usize::try_from(index).ok());
        match tops
            .zip(index)
            .and_then(|(tops, index)| Some((index, tops.get(index)?)))
        {
            Some((index, top)) if top.is_under(&real.top) => Mount {
                id: MountId {
                    mount: u64::MAX - index as u64,
                    ..real.id
                },
                top: top.clone(),
                uuid: None,
                ..real
            },
            _ => real,
        }
    }

    pub(super) fn simulated_space(&self, real: Mount) -> Mount {
        match self.0.taps.as_ref().and_then(|taps| taps.space.as_ref()) {
            Some((size, free)) => {
                let free = free.load(Ordering::Relaxed);
                Mount {
                    free_bytes: free,
                    usable_bytes: free,
                    size_bytes: *size,
                    ..real
                }
            }
            None => real,
        }
    }

    /// Whether a rename between the two would cross a simulated mount.
    pub(super) fn crosses_simulated_mount(&self, a: &AbsPath, b: &AbsPath) -> bool {
        let side = |p: &AbsPath| {
            let path = self.canonical(p).unwrap_or_else(|_| p.clone());
            path.parent()
                .and_then(|parent| self.simulated_mount_index(&parent))
        };
        self.0
            .taps
            .as_ref()
            .is_some_and(|taps| !taps.mounts.is_empty())
            && side(a) != side(b)
    }
}
