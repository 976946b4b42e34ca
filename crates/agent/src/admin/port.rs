//! Finds a port to listen on.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use tokio::net::{TcpListener, TcpSocket};

use machinist_base::reason::Reason;
use machinist_status::settings::AdminSettings;

/// How many ports after the default are tried. If another agent or program uses each of a hundred
/// ports, that is no coincidence but a mistake.
const FALLBACK_PORT_COUNT: u16 = 100;

/// Connections that may wait to be accepted; the kernel limits it to `net.core.somaxconn`. When a
/// flood fills the queue, a further client retries after a second.
const MAX_PENDING_CONNECTIONS: u32 = 4096;

/// Retry interval for a configured address that another program uses.
const BIND_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// No address can be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The configured address, with the name of the setting or flag.
    #[error("cannot listen on {0} ({1})")]
    Chosen(SocketAddr, &'static str, #[source] io::Error),
    /// The default port and all that are tried after it.
    #[error("cannot listen on {0} or any of the next {FALLBACK_PORT_COUNT} ports")]
    Default(SocketAddr, #[source] io::Error),
}

impl BindError {
    /// The stable code.
    pub const fn reason(&self) -> Reason {
        Reason::Io
    }

    /// The configured address, if another program uses it.
    pub fn occupied_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Chosen(at, _, error) if error.kind() == io::ErrorKind::AddrInUse => Some(*at),
            _ => None,
        }
    }
}

/// Listens on the address of the settings. If the default port is in use, the next free one is
/// taken; a configured address is not replaced. The caller shows [`TcpListener::local_addr`].
pub fn bind(admin: AdminSettings) -> Result<TcpListener, BindError> {
    bind_named(admin, "admin.listen")
}

/// Listens like [`bind`] on an address that comes from another setting or flag, which errors name.
pub fn bind_named(admin: AdminSettings, name: &'static str) -> Result<TcpListener, BindError> {
    let first = admin.listen;
    let mut failed = match listen(first) {
        Ok(listener) => return Ok(listener),
        Err(source) if admin.chosen => return Err(BindError::Chosen(first, name, source)),
        Err(source) => source,
    };
    for step in 1..=FALLBACK_PORT_COUNT {
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

/// Waits until a configured address is free, and listens on it.
pub async fn wait(admin: AdminSettings) -> TcpListener {
    loop {
        tokio::time::sleep(BIND_RETRY_INTERVAL).await;
        if let Ok(listener) = bind(admin) {
            return listener;
        }
    }
}

fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    let (socket, at) = match (at, TcpSocket::new_v6()) {
        (SocketAddr::V4(_), _) => (TcpSocket::new_v4()?, at),
        (SocketAddr::V6(_), Ok(socket)) => (socket, at),
        // A kernel without IPv6: all addresses are those of IPv4.
        (SocketAddr::V6(all), Err(_)) if all.ip().is_unspecified() => {
            let all = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), all.port());
            (TcpSocket::new_v4()?, all)
        }
        (SocketAddr::V6(_), Err(error)) => return Err(error),
    };
    socket.set_reuseaddr(true)?;
    socket.bind(at)?;
    socket.listen(MAX_PENDING_CONNECTIONS)
}
