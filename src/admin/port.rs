//! Finding a port to listen on.

use std::{io, net::SocketAddr, time::Duration};

use tokio::net::{TcpListener, TcpSocket};

use crate::{config::Admin, reason::Reason};

/// How many ports after the default are tried. Each is taken by another agent on this machine or by
/// something else; a hundred such is no coincidence but a mistake.
const NEXT_PORTS: u16 = 100;

/// How many connections may wait until they are accepted; the kernel caps it at `net.core.somaxconn`. A flood fills
/// it, and whoever comes then waits a second for the next try.
const BACKLOG: u32 = 4096;

/// How soon a chosen address that somebody else has is tried again.
const AGAIN: Duration = Duration::from_secs(2);

/// Nothing can be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The address that somebody chose.
    #[error("cannot listen on {0}, which admin.listen asks for")]
    Chosen(SocketAddr, #[source] io::Error),
    /// The default and all that follow.
    #[error("cannot listen on {0} nor on any of the {NEXT_PORTS} ports after it")]
    Default(SocketAddr, #[source] io::Error),
}

impl BindError {
    /// The stable code.
    pub const fn reason(&self) -> Reason {
        Reason::Io
    }

    /// The address that somebody chose, where another program has it.
    pub fn taken(&self) -> Option<SocketAddr> {
        match self {
            Self::Chosen(at, error) if error.kind() == io::ErrorKind::AddrInUse => Some(*at),
            _ => None,
        }
    }
}

/// Listens on the address of the settings. A default that is taken makes way for the next free port;
/// an address that was chosen does not. The caller shows [`TcpListener::local_addr`].
pub fn bind(admin: Admin) -> Result<TcpListener, BindError> {
    let first = admin.listen;
    let mut failed = match listen(first) {
        Ok(listener) => return Ok(listener),
        Err(source) if admin.chosen => return Err(BindError::Chosen(first, source)),
        Err(source) => source,
    };
    for step in 1..=NEXT_PORTS {
        if failed.kind() != io::ErrorKind::AddrInUse {
            break;
        }
        let next = SocketAddr::new(first.ip(), first.port().saturating_add(step));
        match listen(next) {
            Ok(listener) => return Ok(listener),
            Err(source) => failed = source,
        }
    }
    Err(BindError::Default(first, failed))
}

/// Listens on a chosen address as soon as whoever has it gives it back.
pub async fn wait(admin: Admin) -> TcpListener {
    loop {
        tokio::time::sleep(AGAIN).await;
        if let Ok(listener) = bind(admin) {
            return listener;
        }
    }
}

fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    let socket = match at {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(at)?;
    socket.listen(BACKLOG)
}
