//! Errors of operations below a root: the operation, the path as the user knows it, and the cause.

use std::{
    io,
    path::{Path, PathBuf},
};

use rustix::io::Errno;

use super::{FileKind, resolve::LeasedFile};
use machinist_base::{abs_path::AbsPath, reason::Reason};

/// Why an operation below a root failed.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// A system call on one path failed.
    #[error("cannot {act} {}", path.display())]
    Call {
        /// The operation, as a verb phrase that the path completes.
        act: &'static str,
        /// The path as this process would name it, the root's own path included.
        path: PathBuf,
        /// Whether the object or its directory carries the immutable or append-only flag.
        flagged: bool,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// A system call on two paths failed.
    #[error("cannot {act} {} {word} {}", from.display(), to.display())]
    Pair {
        /// The operation on `from`, as a verb phrase.
        act: &'static str,
        /// The first path.
        from: PathBuf,
        /// The word between the two paths.
        word: &'static str,
        /// The second path.
        to: PathBuf,
        /// Whether one of the objects or their directories is immutable or append-only.
        flagged: bool,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The content is larger than the caller's limit.
    #[error("{} is longer than {limit} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit in bytes.
        limit: u64,
    },
    /// The object has another kind than the operation needs.
    #[error("cannot {act} {}: it is a {}", path.display(), found.as_str())]
    WrongKind {
        /// The operation.
        act: &'static str,
        /// The object.
        path: PathBuf,
        /// Its kind.
        found: FileKind,
    },
    /// A content, name or link target that is not UTF-8.
    #[error("{what} of {} is not UTF-8 text", path.display())]
    NotText {
        /// Which part of the object.
        what: &'static str,
        /// The object.
        path: PathBuf,
    },
    /// A removal encountered a mount point.
    #[error("cannot remove {}: something is mounted there", path.display())]
    MountPoint {
        /// The mount point.
        path: PathBuf,
    },
    /// Users other than root may change something that only root should control.
    #[error("{} is not trusted: {writer}; only root may have write access", path.display())]
    Untrusted {
        /// The object, which may be a directory or a link on the way.
        path: PathBuf,
        /// Which users may write it, as a sentence.
        writer: String,
    },
    /// A user other than root could redirect this path.
    #[error("{path} is not safe to use: {why}")]
    Unsafe {
        /// The object on the path.
        path: AbsPath,
        /// Who owns the link or directory, and what is wrong with it.
        why: String,
    },
    /// A process answers on the socket that was to be bound.
    #[error("cannot bind {}: another process is listening on it", path.display())]
    SocketServed {
        /// The socket.
        path: PathBuf,
    },
}

impl RootError {
    /// Whether an object of another kind exists there: a directory or a pipe instead of a file, or
    /// a file instead of a directory.
    pub fn is_wrong_kind(&self) -> bool {
        matches!(self, Self::WrongKind { .. })
            || matches!(
                self.kind(),
                io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory
            )
    }

    fn source_error(&self) -> Option<&io::Error> {
        match self {
            Self::Call { source, .. } | Self::Pair { source, .. } => Some(source),
            _ => None,
        }
    }

    /// The closest I/O error kind; `InvalidData` and the like if no system call failed.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Call { source, .. } | Self::Pair { source, .. } => source.kind(),
            Self::TooLarge { .. } => io::ErrorKind::FileTooLarge,
            Self::WrongKind { .. } => io::ErrorKind::InvalidInput,
            Self::NotText { .. } => io::ErrorKind::InvalidData,
            Self::MountPoint { .. } => io::ErrorKind::ResourceBusy,
            Self::Untrusted { .. } => io::ErrorKind::PermissionDenied,
            Self::SocketServed { .. } => io::ErrorKind::AddrInUse,
            Self::Unsafe { .. } => io::ErrorKind::PermissionDenied,
        }
    }

    /// Whether an unprivileged user could redirect root on this path.
    pub const fn is_unsafe(&self) -> bool {
        matches!(self, Self::Unsafe { .. })
    }

    /// Whether the object, or a directory on the path to it, does not exist.
    pub fn is_not_found(&self) -> bool {
        self.kind() == io::ErrorKind::NotFound
    }

    /// Whether the object does not exist, or a parent is no directory.
    pub fn is_absent(&self) -> bool {
        use io::ErrorKind as K;
        matches!(self.kind(), K::NotFound | K::NotADirectory)
    }

    /// Whether the object is on a file system that this process cannot access: a FUSE mount of
    /// another user, one whose server ended, or a network file system whose server no longer has
    /// the object.
    pub fn is_unreachable(&self) -> bool {
        let number = self.raw_os_error().map(Errno::from_raw_os_error);
        matches!(
            number,
            Some(Errno::ACCESS | Errno::NOTCONN | Errno::CONNABORTED | Errno::STALE)
        )
    }

    /// Whether the file cannot be opened now because another process holds a lease on it. The owner
    /// of a file may hold one for as long as they like.
    pub fn is_leased(&self) -> bool {
        let cause = self.source_error().and_then(io::Error::get_ref);
        cause.is_some_and(|cause| cause.is::<LeasedFile>())
    }

    /// Whether the path has more links than the kernel follows, or is too long for it.
    pub fn is_loop(&self) -> bool {
        let number = self.raw_os_error().map(Errno::from_raw_os_error);
        matches!(number, Some(Errno::LOOP | Errno::NAMETOOLONG))
    }

    /// Whether an object on the path was missing, or of another kind than before. On a path that a
    /// user may change, this user may have moved it between two calls.
    pub fn is_moved(&self) -> bool {
        let number = self.raw_os_error().map(Errno::from_raw_os_error);
        let not_a_link = number.is_none() && self.kind() == io::ErrorKind::InvalidInput;
        let moved = matches!(
            number,
            Some(
                Errno::NOENT
                    | Errno::NOTDIR
                    | Errno::LOOP
                    | Errno::XDEV
                    | Errno::STALE
                    | Errno::AGAIN
            )
        );
        moved || not_a_link
    }

    /// Whether the call that failed was about `path`, or about an object below it; `path` is spelled
    /// as by [`super::Root::host_path`].
    pub fn is_about(&self, path: &Path) -> bool {
        match self {
            Self::Pair { from, to, .. } => from.starts_with(path) || to.starts_with(path),
            Self::Call { path: at, .. } | Self::WrongKind { path: at, .. } => at.starts_with(path),
            _ => false,
        }
    }

    /// Whether no process listens on the socket.
    pub fn is_refused(&self) -> bool {
        self.kind() == io::ErrorKind::ConnectionRefused
    }

    /// The kernel's error number, if a system call failed.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.source_error().and_then(io::Error::raw_os_error)
    }

    /// Whether this file system cannot exchange two names at all (EINVAL, ENOSYS, EOPNOTSUPP).
    pub fn exchange_unsupported(&self) -> bool {
        let number = self.raw_os_error().map(Errno::from_raw_os_error);
        matches!(number, Some(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP))
    }

    /// Whether the kernel lacked a resource for the call, or the disk returned an error.
    pub fn is_starved(&self) -> bool {
        matches!(
            self.raw_os_error().map(Errno::from_raw_os_error),
            Some(Errno::NFILE | Errno::MFILE | Errno::NOMEM | Errno::IO)
        )
    }

    /// Whether the same call may succeed later without a change of the request. A disk with errors
    /// or a read-only one, and an immutable file, can be repaired while the machine runs.
    pub fn is_retryable(&self) -> bool {
        use io::ErrorKind as K;
        self.is_starved()
            || matches!(self.reason(), Reason::Immutable | Reason::UnsafePath)
            || matches!(
                self.kind(),
                K::WouldBlock
                    | K::Interrupted
                    | K::ResourceBusy
                    | K::StorageFull
                    | K::ReadOnlyFilesystem
                    | K::QuotaExceeded
                    | K::TimedOut
                    | K::StaleNetworkFileHandle
                    | K::AddrInUse
            )
    }

    /// The code for metrics, conditions and journals.
    pub fn reason(&self) -> Reason {
        use io::ErrorKind as K;
        match (self, self.kind()) {
            (Self::MountPoint { .. }, _) => Reason::TargetIsMountPoint,
            (Self::Untrusted { .. }, _) => Reason::SourceUnreadable,
            (Self::Unsafe { .. }, _) => Reason::UnsafePath,
            (_, K::StorageFull | K::QuotaExceeded) => Reason::NoSpace,
            (_, K::ReadOnlyFilesystem) => Reason::ReadOnly,
            (
                Self::Call { flagged: true, .. } | Self::Pair { flagged: true, .. },
                K::PermissionDenied,
            ) => Reason::Immutable,
            (_, K::PermissionDenied) => Reason::PermissionMissing,
            _ => Reason::Io,
        }
    }
}
