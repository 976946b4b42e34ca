//! What can go wrong below a root: the act, the path as the user knows it, and the cause.

use std::{io, path::PathBuf};

use rustix::io::Errno;

use super::Kind;
use crate::{path::AbsPath, reason::Reason};

/// Why something below a root could not be done.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// A system call on one path failed.
    #[error("cannot {act} {}", path.display())]
    Call {
        /// What was to be done, as a verb phrase that the path completes.
        act: &'static str,
        /// The path as this process would name it, the root's own path included.
        path: PathBuf,
        /// Whether the object or its directory carries the immutable or append-only flag.
        flagged: bool,
        /// What the kernel answered.
        #[source]
        source: io::Error,
    },
    /// A system call on two paths failed.
    #[error("cannot {act} {} {word} {}", from.display(), to.display())]
    Pair {
        /// What was to be done with `from`.
        act: &'static str,
        /// The first path.
        from: PathBuf,
        /// The word between the two paths.
        word: &'static str,
        /// The second path.
        to: PathBuf,
        /// Whether one of the objects or their directories is immutable or append-only.
        flagged: bool,
        /// What the kernel answered.
        #[source]
        source: io::Error,
    },
    /// The content is longer than the caller wants to hold in memory.
    #[error("{} is longer than {limit} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit the caller gave.
        limit: u64,
    },
    /// The object has another kind than the act needs.
    #[error("cannot {act} {}: it is a {}", path.display(), found.as_str())]
    WrongKind {
        /// What was to be done.
        act: &'static str,
        /// The object.
        path: PathBuf,
        /// What it is.
        found: Kind,
    },
    /// A content, name or link target is not UTF-8.
    #[error("{what} of {} is not UTF-8 text", path.display())]
    NotText {
        /// Which part of the object.
        what: &'static str,
        /// The object.
        path: PathBuf,
    },
    /// A removal met a mount point.
    #[error("cannot remove {}: something is mounted there", path.display())]
    MountPoint {
        /// The mount point.
        path: PathBuf,
    },
    /// Others may change what only root may say.
    #[error("{} is not obeyed: {writer}, and a machine obeys what root alone may write", path.display())]
    Untrusted {
        /// The object, which may be a directory or a link on the way.
        path: PathBuf,
        /// Who may write it, as a sentence.
        writer: String,
    },
    /// A user other than root could lead this path elsewhere.
    #[error("{path} is not safe to use: {why}")]
    Unsafe {
        /// The object on the way.
        path: AbsPath,
        /// Whose link or directory it is, and what is wrong with it.
        why: String,
    },
    /// Somebody answers on the socket that was to be bound.
    #[error("cannot bind {}: somebody serves it already", path.display())]
    SocketServed {
        /// The socket.
        path: PathBuf,
    },
}

impl RootError {
    /// Whether something else stood there than was asked for: a directory or a pipe for a file, a file
    /// for a directory.
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

    /// The kind that fits best; `InvalidData` and the like where no system call failed.
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

    /// Whether an unprivileged user could lead root elsewhere by this path.
    pub const fn is_unsafe(&self) -> bool {
        matches!(self, Self::Unsafe { .. })
    }

    /// Whether the object, or a directory on the way to it, is absent.
    pub fn is_not_found(&self) -> bool {
        self.kind() == io::ErrorKind::NotFound
    }

    /// Whether nothing is there, or something above it is no directory.
    pub fn is_absent(&self) -> bool {
        use io::ErrorKind as K;
        matches!(self.kind(), K::NotFound | K::NotADirectory)
    }

    /// Whether the object is on a file system that does not answer this process: a FUSE mount of another
    /// user, one whose server ended, or a network file system that has lost its server's object.
    pub fn is_unreachable(&self) -> bool {
        let number = self.raw_os_error().map(Errno::from_raw_os_error);
        matches!(
            number,
            Some(Errno::ACCESS | Errno::NOTCONN | Errno::CONNABORTED | Errno::STALE)
        )
    }

    /// Whether the path passes more links than the kernel follows, or is longer than it takes.
    pub fn is_loop(&self) -> bool {
        let number = self.raw_os_error().map(Errno::from_raw_os_error);
        matches!(number, Some(Errno::LOOP | Errno::NAMETOOLONG))
    }

    /// Whether nobody listens on the socket.
    pub fn is_refused(&self) -> bool {
        self.kind() == io::ErrorKind::ConnectionRefused
    }

    /// The number the kernel answered, where a system call failed.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.source_error().and_then(io::Error::raw_os_error)
    }

    /// Whether this file system cannot exchange two names at all (EINVAL, ENOSYS, EOPNOTSUPP).
    pub fn exchange_unsupported(&self) -> bool {
        let number = self.raw_os_error().map(Errno::from_raw_os_error);
        matches!(number, Some(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP))
    }

    /// Whether the kernel lacked something for the call, or the disk gave an error.
    pub fn is_starved(&self) -> bool {
        matches!(
            self.raw_os_error().map(Errno::from_raw_os_error),
            Some(Errno::NFILE | Errno::MFILE | Errno::NOMEM | Errno::IO)
        )
    }

    /// Whether the same call may succeed later without anybody changing what was asked for. A disk
    /// that gives errors or has become read-only, and a file that was made immutable, are put right
    /// while the machine runs.
    pub fn again(&self) -> bool {
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

    /// The code that metrics, conditions and journals carry.
    pub fn reason(&self) -> Reason {
        use io::ErrorKind as K;
        match (self, self.kind()) {
            (Self::MountPoint { .. }, _) => Reason::MountPointInTheWay,
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
