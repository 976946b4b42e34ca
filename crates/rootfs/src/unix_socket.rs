//! Unix sockets below the root, for paths of any length.
//!
//! A socket address holds 108 bytes (unix(7)) and is not resolved inside a root. So an address
//! refers to an open descriptor instead: `/proc/self/fd/N/name` to bind, `/proc/self/fd/N` to
//! connect.

use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::PathBuf,
};

use rustix::{
    fs::{Gid, Mode, OFlags},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};

use super::{
    FileKind, FsOpKind, Root, RootError, Stat,
    resolve::{self, DirEntryRef},
};
use machinist_base::abs_path::AbsPath;

/// Connections that may wait for the server; the kernel limits it to `net.core.somaxconn`.
const BACKLOG_CONNECTIONS: i32 = 128;

/// The mode of a directory that only this process's user may enter.
const PRIVATE_DIR_MODE: u32 = 0o700;

/// A socket file held open by a descriptor, so that a short address can refer to it.
#[derive(Debug)]
pub struct UnixAddress(OwnedFd);

impl UnixAddress {
    /// A path of some twenty bytes.
    pub fn path(&self) -> PathBuf {
        resolve::proc_path(&self.0)
    }
}

impl Root {
    /// Binds and listens at `p` with exactly `mode`. A stale socket, on which no process answers,
    /// is removed first; any other object at `p` is an error. The listener blocks.
    pub fn bind_unix(&self, p: &AbsPath, mode: u32) -> Result<UnixListener, RootError> {
        self.bind_unix_for(p, mode, None)
    }

    /// Does the same for another `group`; if this process may not change the group, its own group
    /// is used.
    pub fn bind_unix_for(
        &self,
        p: &AbsPath,
        mode: u32,
        group: Option<u32>,
    ) -> Result<UnixListener, RootError> {
        self.slot(p)
            .map_err(|error| self.failed("bind the socket", p, error))
            .and_then(|slot| self.bind_in(&slot, p, mode, group))
    }

    /// Does the same in a directory that only this process's user may enter. The directory is
    /// created if missing, its mode is restored if it was widened, and it is refused if it is a
    /// link or belongs to another user. The socket is bound in exactly the checked directory, even
    /// if its name is taken over meanwhile.
    pub fn bind_unix_private(&self, p: &AbsPath, mode: u32) -> Result<UnixListener, RootError> {
        let dir = p.parent().unwrap_or_else(AbsPath::root);
        self.make_dirs(&dir, PRIVATE_DIR_MODE)?;
        let failed = |error| self.failed("restrict to this user", &dir, error);
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let opened = self.open_raw(dir.relative(), flags, 0).map_err(failed)?;
        let found = resolve::statx_of(&opened).map_err(failed)?;
        if found.stx_uid != rustix::process::geteuid().as_raw() {
            return Err(failed(io::ErrorKind::PermissionDenied.into()));
        }
        if Stat::of(&found).mode != PRIVATE_DIR_MODE {
            self.set_mode(&dir, &opened, PRIVATE_DIR_MODE)
                .map_err(failed)?;
        }
        let slot = DirEntryRef {
            dir: opened,
            name: p.file_name(),
        };
        self.bind_in(&slot, p, mode, None)
    }

    fn bind_in(
        &self,
        slot: &DirEntryRef<'_>,
        p: &AbsPath,
        mode: u32,
        group: Option<u32>,
    ) -> Result<UnixListener, RootError> {
        self.clear_dead_socket(slot, p)?;
        let bind = || {
            let socket = stream_socket()?;
            // The socket's own mode becomes the file's mode at bind (less the umask), so at no
            // moment may more users connect than `mode` allows.
            rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode))?;
            let address = SocketAddrUnix::new(slot.proc_path())?;
            self.tapped(
                p,
                || FsOpKind::MakeSocket,
                || Ok(rustix::net::bind(&socket, &address)?),
            )?;
            self.restore_socket_mode(slot, p, mode, group.filter(|_| self.can_chown()))?;
            rustix::net::listen(&socket, BACKLOG_CONNECTIONS)?;
            Ok(UnixListener::from(socket))
        };
        bind().map_err(|error| self.failed("bind the socket", p, error))
    }

    /// Connects to the socket at `p`; links are followed inside the root. Never waits: a full queue
    /// of the server is an error that may be retried. The stream blocks.
    pub fn connect_unix(&self, p: &AbsPath) -> Result<UnixStream, RootError> {
        self.open_raw(p.relative(), OFlags::PATH, 0)
            .and_then(|socket| connect(&socket))
            .map_err(|error| self.failed("connect to", p, error))
    }

    /// The socket at `p` as an address that others can connect to; links are followed inside the
    /// root. Valid while the returned value is kept.
    pub fn unix_address(&self, p: &AbsPath) -> Result<UnixAddress, RootError> {
        self.open_raw(p.relative(), OFlags::PATH, 0)
            .map(UnixAddress)
            .map_err(|error| self.failed("open the socket", p, error))
    }

    /// The object at `p` itself, without following a link, as an address together with its
    /// metadata: connecting reaches exactly the object that was checked. `None` if nothing exists
    /// there.
    pub fn socket_itself(&self, p: &AbsPath) -> Result<Option<(UnixAddress, Stat)>, RootError> {
        let identity = || {
            let found = self.handle(p)?;
            let stat = Stat::of(&resolve::statx_of(&found)?);
            Ok((UnixAddress(found), stat))
        };
        match identity() {
            Ok(found) => Ok(Some(found)),
            Err(error) if resolve::is_absent(&error) => Ok(None),
            Err(error) => Err(self.failed("look at", p, error)),
        }
    }

    /// Restores mode bits that the umask removed, through a handle: a link put in its place
    /// meanwhile could redirect the change. The group is set first, since that clears bits.
    fn restore_socket_mode(
        &self,
        slot: &DirEntryRef<'_>,
        p: &AbsPath,
        mode: u32,
        group: Option<u32>,
    ) -> io::Result<()> {
        let made = slot.handle()?;
        if Stat::of(&resolve::statx_of(&made)?).kind != FileKind::Socket {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let by_handle = resolve::proc_path(&made);
        if let Some(gid) = group {
            let group = Some(Gid::from_raw(gid));
            let own = Stat::of(&resolve::statx_of(&made)?).uid;
            self.tapped(
                p,
                || FsOpKind::SetOwner(own, gid),
                || Ok(rustix::fs::chown(&by_handle, None, group)?),
            )?;
        }
        self.tapped(
            p,
            || FsOpKind::SetMode(mode),
            || Ok(rustix::fs::chmod(by_handle, Mode::from_raw_mode(mode))?),
        )
    }

    fn clear_dead_socket(&self, slot: &DirEntryRef<'_>, p: &AbsPath) -> Result<(), RootError> {
        let failed = |error| self.failed("bind the socket", p, error);
        let old = match slot.handle() {
            Err(error) if resolve::is_absent(&error) => return Ok(()),
            old => old.map_err(failed)?,
        };
        let found = Stat::of(&resolve::statx_of(&old).map_err(failed)?).kind;
        if found != FileKind::Socket {
            return Err(RootError::WrongKind {
                act: "bind the socket",
                path: self.host_path(p),
                found,
            });
        }
        match connect(&old) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => self
                .unlink_in(slot, p)
                .map_err(|error| self.failed("remove", p, error)),
            Ok(_) => Err(RootError::SocketServed {
                path: self.host_path(p),
            }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(RootError::SocketServed {
                    path: self.host_path(p),
                })
            }
            Err(error) => Err(failed(error)),
        }
    }
}

fn connect(to: &OwnedFd) -> io::Result<UnixStream> {
    let socket = stream_socket()?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    let address = SocketAddrUnix::new(resolve::proc_path(to))?;
    loop {
        match rustix::net::connect(socket.as_fd(), &address) {
            Err(Errno::INTR) => {}
            answer => break answer?,
        }
    }
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(UnixStream::from(socket))
}

fn stream_socket() -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    Ok(rustix::net::socket_with(
        family,
        kind,
        SocketFlags::CLOEXEC,
        None,
    )?)
}
