//! Finding a port to listen on.

use std::{io, net::SocketAddr};

use tokio::net::TcpListener;

use crate::{config::Admin, reason::Reason};

/// How many ports after the default are tried. Each is taken by another agent on this machine or by
/// something else; a hundred such is no coincidence but a mistake.
const NEXT_PORTS: u16 = 100;

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
}

/// Listens on the address of the settings. A default that is taken makes way for the next free port;
/// an address that was chosen does not. The caller shows [`TcpListener::local_addr`].
pub async fn bind(admin: Admin) -> Result<TcpListener, BindError> {
    let first = admin.listen;
    let mut failed = match TcpListener::bind(first).await {
        Ok(listener) => return Ok(listener),
        Err(source) if admin.chosen => return Err(BindError::Chosen(first, source)),
        Err(source) => source,
    };
    for step in 1..=NEXT_PORTS {
        if failed.kind() != io::ErrorKind::AddrInUse {
            break;
        }
        let next = SocketAddr::new(first.ip(), first.port().saturating_add(step));
        match TcpListener::bind(next).await {
            Ok(listener) => return Ok(listener),
            Err(source) => failed = source,
        }
    }
    Err(BindError::Default(first, failed))
}
