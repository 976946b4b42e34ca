//! The machine's files, reached through a handle on one directory tree.
//!
//! A [`Root`] is a descriptor on a directory: the machine's `/`, the `/host` of a container, a
//! sandbox, or a temporary directory in a test. The kernel resolves every path inside that
//! directory (`openat2` with `RESOLVE_IN_ROOT`), so that an absolute link or a `..` in the tree
//! leads to another place *in the tree* and never out of it. No other module makes file system
//! calls.
//!
//! All calls block; asynchronous callers put long ones on a blocking thread. Tests may
//! [record](Recording) the operations, compute the states after a power cut (module `crash_replay`), and
//! make chosen operations [fail](FaultHook), if the feature `testing` is on.

mod atomic_write;
mod chunked_copy;
mod chunked_read;
mod component_facts;
#[cfg(any(test, feature = "testing"))]
pub mod crash_replay;
mod create;
mod dir_watch;
mod directory_control;
mod double_buffer;
mod durability;
mod error;
mod file_lock;
mod file_read;
mod file_trust;
mod inspect;
mod mount;
mod mount_crossing;
mod op_log;
mod path_step;
mod path_walk;
mod private_dir;
mod removal;
mod rename;
mod resolve;
mod selinux_xattr;
mod snapshot;
mod stat;
#[cfg(test)]
mod tests;
mod unix_socket;
mod xattrs;

use std::{
    fmt, io,
    os::{fd::OwnedFd, unix::fs::DirBuilderExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{
    fs::{CWD, Mode, OFlags},
    io::Errno,
};

pub use self::{
    chunked_read::ChunkedReader,
    dir_watch::{Watch, WatchEvent, WatchId, WatchKind},
    directory_control::{DirectoryControl, ExpectedObject},
    durability::SyncPoint,
    error::RootError,
    file_lock::FileLock,
    mount::Mount,
    mount_crossing::MountId,
    op_log::{FaultHook, FsOp, FsOpKind, Recording},
    path_step::{LinkTarget, StepResult},
    path_walk::WalkedPath,
    resolve::MAX_SYMLINKS,
    snapshot::{SnapshotNode, SnapshotObject, TreeSnapshot},
    stat::{DirEntry, FileKind, Listing, Meta, ObjectIdentity, Stat},
    unix_socket::UnixAddress,
    xattrs::CopiedXattrs,
};
use machinist_base::abs_path::AbsPath;

/// A capability on one directory tree. Cheap to clone; clones share the descriptor.
#[derive(Clone)]
pub struct Root(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    dir: Arc<OwnedFd>,
    shown: PathBuf,
    can_chown: bool,
    /// Directories that were checked, by path, so that they stay the same objects; the innermost
    /// first.
    pins: Vec<resolve::PinnedDir>,
    /// A cache of mounts for one pass over many paths.
    crossings: Option<component_facts::MountCrossings>,
    taps: Option<op_log::Hooks>,
}

impl Root {
    /// A handle on `dir`, which must exist and be a directory.
    pub fn open(dir: &Path) -> Result<Self, RootError> {
        let shown = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::openat(CWD, dir, flags, Mode::empty()) {
            Ok(opened) => Ok(Self(Arc::new(Inner {
                dir: Arc::new(opened),
                shown,
                can_chown: effective_chown(),
                pins: Vec::new(),
                crossings: None,
                taps: None,
            }))),
            Err(errno) => Err(plain_call("open the root", shown, errno.into())),
        }
    }

    /// A handle on `dir`, which is created with its parents (0755, less the umask) if missing;
    /// returns whether it was created.
    pub fn open_or_create(dir: &Path) -> Result<(Self, bool), RootError> {
        match Self::open(dir) {
            Err(error) if error.is_not_found() => {
                make_root(dir)
                    .map_err(|cause| plain_call("create the root", dir.to_owned(), cause))?;
                Ok((Self::open(dir)?, true))
            }
            opened => Ok((opened?, false)),
        }
    }

    /// The root's own path as the caller named it, made absolute.
    pub fn display(&self) -> &Path {
        &self.0.shown
    }

    /// Whether a running service manager may be using this tree: it is this process's own `/`, or
    /// it contains `run/systemd/system`, which systemd creates at boot (sd_booted(3)).
    pub fn is_live(&self) -> bool {
        let manager = self.dir_handle("run/systemd/system").is_ok();
        manager || self.is_process_root().unwrap_or(false)
    }

    /// Whether this process runs in a container, with the machine's tree somewhere below its own
    /// `/`.
    pub fn is_seen_from_a_container(&self) -> bool {
        self.is_live() && !self.is_process_root().unwrap_or(true)
    }

    fn is_process_root(&self) -> io::Result<bool> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let slash = rustix::fs::openat(CWD, "/", flags, Mode::empty())?;
        let (ours, theirs) = (resolve::statx_of(&*self.0.dir)?, resolve::statx_of(&slash)?);
        let key = |s: &rustix::fs::Statx| (s.stx_dev_major, s.stx_dev_minor, s.stx_ino);
        Ok(key(&ours) == key(&theirs))
    }

    /// Whether this process may change the owner of files (CAP_CHOWN is effective).
    pub fn can_chown(&self) -> bool {
        self.0.can_chown
    }

    /// `p` as this process would name it. Only for messages and socket addresses: opening it could
    /// follow links out of the root.
    pub fn host_path(&self, p: &AbsPath) -> PathBuf {
        match p.relative() {
            "" => self.0.shown.clone(),
            below => self.0.shown.join(below),
        }
    }

    /// The error for `act` on `p`. After EPERM it reads the object's flags, because only they
    /// distinguish an immutable file from a missing capability.
    fn failed(&self, act: &'static str, p: &AbsPath, source: io::Error) -> RootError {
        RootError::Call {
            act,
            path: self.host_path(p),
            flagged: self.flagged(p, &source),
            source,
        }
    }

    fn failed_pair(
        &self,
        (act, word): (&'static str, &'static str),
        from: &AbsPath,
        to: &AbsPath,
        source: io::Error,
    ) -> RootError {
        RootError::Pair {
            act,
            word,
            from: self.host_path(from),
            to: self.host_path(to),
            flagged: self.flagged(from, &source) || self.flagged(to, &source),
            source,
        }
    }

    fn flagged(&self, p: &AbsPath, source: &io::Error) -> bool {
        source.raw_os_error() == Some(Errno::PERM.raw_os_error())
            && [Some(p.clone()), p.parent()]
                .iter()
                .flatten()
                .filter_map(|object| self.stat(object).ok().flatten())
                .any(|stat| stat.immutable || stat.append_only)
    }
}

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Root").field(&self.0.shown).finish()
    }
}

fn plain_call(act: &'static str, path: PathBuf, source: io::Error) -> RootError {
    RootError::Call {
        act,
        path,
        flagged: false,
        source,
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the root's own parents lie outside any root"
)]
fn make_root(dir: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(dir)
}

/// Reads `CapEff` of proc(5); bit 0 is CAP_CHOWN. Without /proc only uid 0 counts as capable.
#[expect(
    clippy::disallowed_methods,
    reason = "/proc describes this process, not the tree"
)]
fn effective_chown() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    match effective.map(|hex| u64::from_str_radix(hex.trim(), 16)) {
        Some(Ok(set)) => set & 1 == 1,
        _ => rustix::process::geteuid().is_root(),
    }
}
