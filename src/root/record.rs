//! Test instruments: a log of what was done to the tree, faults on demand, pretended mounts.
//!
//! A root without instruments pays one comparison per operation.

use std::{
    fmt, io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{Inner, Mount, Root, walk};
use crate::path::AbsPath;

/// One operation that changed the tree or made it durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// The file system it happened on: equal for operations on one file system in this recording,
    /// without meaning beyond it.
    pub fs: u64,
    /// The path it is about, without links in its parents.
    pub path: AbsPath,
    /// What was done to it.
    pub act: Act,
}

/// What an operation does to its path. Modes are permission bits (07777).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// An empty file of this mode came to be.
    Create(u32),
    /// The whole content of the file was replaced by this.
    Write(Vec<u8>),
    /// Blocks for so many bytes were set aside for the file; its content and length stay.
    Reserve(u64),
    /// A directory of this mode came to be.
    MakeDir(u32),
    /// A symbolic link to this target came to be.
    MakeLink(String),
    /// The name came to be another one of the file at this path.
    HardLink(AbsPath),
    /// A socket came to be.
    MakeSocket,
    /// The mode was set.
    SetMode(u32),
    /// Owner and group were set.
    SetOwner(u32, u32),
    /// The extended attribute of this name was set to this value, or removed where that is empty.
    SetAttribute(String, Vec<u8>),
    /// The name was moved to this one, replacing what was there.
    Rename(AbsPath),
    /// The name changed places with this one.
    Exchange(AbsPath),
    /// The name of anything but a directory was removed.
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

impl Act {
    /// Whether it changes a directory's entries, so that it happens on the file system of the
    /// directory and not on that of what is mounted at the name.
    const fn changes_names(&self) -> bool {
        use Act as A;
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

/// Asked before each operation; an error is returned in place of carrying the operation out.
pub type FaultHook = Arc<dyn Fn(&Op) -> Option<io::Error> + Send + Sync>;

/// What was done through a recording root and its clones, in order.
#[derive(Clone, Debug, Default)]
pub struct Recording(Arc<Mutex<Vec<Op>>>);

impl Recording {
    /// A copy of the log so far.
    pub fn log(&self) -> Vec<Op> {
        self.hold().clone()
    }

    /// How many operations the log holds.
    pub fn len(&self) -> usize {
        self.hold().len()
    }

    /// Whether nothing was done yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A log is whole after every push, so a panic elsewhere does not spoil it.
    fn hold(&self) -> MutexGuard<'_, Vec<Op>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Default)]
pub(super) struct Taps {
    recording: Option<Recording>,
    fault: Option<FaultHook>,
    mounts: Vec<AbsPath>,
}

impl fmt::Debug for Taps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Taps")
            .field("mounts", &self.mounts)
            .finish_non_exhaustive()
    }
}

impl Root {
    /// This root, with every operation through it and its clones written to a log.
    pub fn recording(self) -> (Self, Recording) {
        let recording = Recording::default();
        let root = self.with_taps(|taps| taps.recording = Some(recording.clone()));
        (root, recording)
    }

    /// This root, asking `hook` before each operation whether it shall fail, and how. A hook may
    /// also end the process there.
    pub fn with_fault(self, hook: FaultHook) -> Self {
        self.with_taps(|taps| taps.fault = Some(hook))
    }

    /// This root, taking each of `tops` for the top of a mount of its own: [`Root::mount`] and
    /// [`Root::stat`] say so, renames between them answer EXDEV, and the recording sees different
    /// file systems. For tests that may not mount anything.
    pub fn with_pretended_mounts(self, tops: Vec<AbsPath>) -> Self {
        self.with_taps(|taps| taps.mounts = tops)
    }

    fn with_taps(self, set: impl FnOnce(&mut Taps)) -> Self {
        let mut inner: Inner = Arc::unwrap_or_clone(self.0);
        set(inner.taps.get_or_insert_default());
        Self(Arc::new(inner))
    }

    /// Carries out one operation on `p` under the instruments. `act` describes it with paths as
    /// the caller has them, and is asked only when somebody listens.
    pub(super) fn tapped<T>(
        &self,
        p: &AbsPath,
        act: impl FnOnce() -> Act,
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
        // Held while the operation runs, so that the log has the order the kernel saw.
        let mut log = recording.hold();
        let answer = run()?;
        log.push(op);
        Ok(answer)
    }

    fn describe(&self, p: &AbsPath, mut act: Act) -> io::Result<Op> {
        let path = self.canonical(p).map_err(io::Error::other)?;
        if let Act::Rename(to) | Act::Exchange(to) | Act::HardLink(to) = &mut act {
            *to = self.canonical(to).map_err(io::Error::other)?;
        }
        let directory = path.parent().filter(|_| act.changes_names());
        let fs = self.fs_of(directory.as_ref().unwrap_or(&path))?;
        Ok(Op { fs, path, act })
    }

    fn fs_of(&self, p: &AbsPath) -> io::Result<u64> {
        let raw = walk::statx_of(self.nearest(p)?.1)?;
        let device = u64::from(raw.stx_dev_major) << 32 | u64::from(raw.stx_dev_minor);
        Ok(self
            .pretended_index(p)
            .map_or(device, |index| u64::MAX - index))
    }

    /// Which pretended mount holds `p`; the innermost, when they nest.
    fn pretended_index(&self, p: &AbsPath) -> Option<u64> {
        let mounts = &self.0.taps.as_ref()?.mounts;
        (0_u64..)
            .zip(mounts)
            .filter(|(_, top)| p.is_under(top))
            .max_by_key(|(_, top)| top.as_str().len())
            .map(|(index, _)| index)
    }

    pub(super) fn pretends_mounts(&self) -> bool {
        self.0.taps.is_some()
    }

    pub(super) fn pretended_mount_at(&self, p: &AbsPath) -> bool {
        self.0
            .taps
            .as_ref()
            .is_some_and(|taps| taps.mounts.contains(p))
    }

    pub(super) fn pretended_mount(&self, p: &AbsPath, real: Mount) -> Mount {
        let tops = self.0.taps.as_ref().map(|taps| &taps.mounts);
        let index = self
            .pretended_index(p)
            .and_then(|index| usize::try_from(index).ok());
        match tops
            .zip(index)
            .and_then(|(tops, index)| Some((index, tops.get(index)?)))
        {
            Some((index, top)) if top.is_under(&real.top) => Mount {
                id: u64::MAX - index as u64,
                top: top.clone(),
                uuid: None,
                ..real
            },
            _ => real,
        }
    }

    /// Whether a rename between the two would cross a pretended mount.
    pub(super) fn pretends_to_part(&self, a: &AbsPath, b: &AbsPath) -> bool {
        let side = |p: &AbsPath| {
            let path = self.canonical(p).unwrap_or_else(|_| p.clone());
            path.parent()
                .and_then(|parent| self.pretended_index(&parent))
        };
        self.0
            .taps
            .as_ref()
            .is_some_and(|taps| !taps.mounts.is_empty())
            && side(a) != side(b)
    }
}
