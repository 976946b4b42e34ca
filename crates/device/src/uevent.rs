//! Receives the kernel's device events (netlink(7), NETLINK_KOBJECT_UEVENT).

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
};

use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recvfrom, setsockopt,
        socket, sockopt::RcvBuf,
    },
};
use tokio::io::{Interest, unix::AsyncFd};

/// The multicast group of the kernel. Group 2 is udevd's: its messages stay in the host's network namespace, so
/// that a container would not receive them.
const KERNEL_GROUP: u32 = 1;

/// The kernel limits an event to 2 KiB (UEVENT_BUFFER_SIZE). The rest is reserve for a header and for future
/// kernels.
const MAX_EVENT_BYTES: usize = 8 * 1024;

/// Holds some hundred events while the agent is busy, for example when a USB hub with many devices appears at boot.
const RECEIVE_BUFFER_BYTES: usize = 256 * 1024;

/// One device event of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uevent {
    /// `add`, `remove`, `change`, `bind` and so on.
    pub action: String,
    /// Its path below `/sys`.
    pub device_path: String,
    /// Its class or bus, such as `tty`.
    pub subsystem: Option<String>,
    /// Its node below `/dev`, without `/dev/`; `None` if the device has no node.
    pub node: Option<String>,
}

impl Uevent {
    /// Parses one message: `ACTION@PATH`, then `KEY=value` pairs, each terminated by NUL. Returns `None` for
    /// anything else, such as udevd's messages.
    pub fn parse(message: &[u8]) -> Option<Self> {
        let mut fields = message.split(|byte| *byte == 0).map(std::str::from_utf8);
        let (action, path) = fields.next()?.ok()?.split_once('@')?;
        let mut event = Self {
            action: action.to_owned(),
            device_path: path.to_owned(),
            ..Self::default()
        };
        // A value that is not UTF-8 is not needed here; skip it and keep the rest.
        for field in fields.flatten() {
            match field.split_once('=') {
                Some(("ACTION", action)) => action.clone_into(&mut event.action),
                Some(("DEVPATH", path)) => path.clone_into(&mut event.device_path),
                Some(("SUBSYSTEM", name)) => event.subsystem = Some(name.to_owned()),
                Some(("DEVNAME", name)) => {
                    event.node = Some(name.strip_prefix("/dev/").unwrap_or(name).to_owned());
                }
                _ => {}
            }
        }
        let complete = !event.action.is_empty() && event.device_path.starts_with('/');
        complete.then_some(event)
    }
}

/// The result of waiting for an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UeventResult {
    /// One event.
    Event(Uevent),
    /// The kernel dropped events: the caller must scan all devices again.
    Lost,
}

/// Reasons why no events can be received.
#[derive(Debug, thiserror::Error)]
pub enum UeventError {
    /// Opening the socket is not permitted, or not possible in this network namespace.
    #[error("cannot listen to the kernel's device events")]
    Listen(#[source] io::Error),
    /// The socket failed.
    #[error("cannot read the kernel's device events")]
    Read(#[source] io::Error),
}

/// Subscription to the kernel's device events. Any user may subscribe.
#[derive(Debug)]
pub struct Uevents {
    socket: AsyncFd<OwnedFd>,
}

impl Uevents {
    /// Subscribes to the events. Needs a tokio runtime with I/O enabled.
    pub fn listen() -> Result<Self, UeventError> {
        let open = || {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let protocol = SockProtocol::NetlinkKObjectUEvent;
            let socket = socket(AddressFamily::Netlink, SockType::Datagram, flags, protocol)?;
            // A smaller receive buffer only causes more rescans.
            let _ = setsockopt(&socket, RcvBuf, &RECEIVE_BUFFER_BYTES);
            bind(socket.as_raw_fd(), &NetlinkAddr::new(0, KERNEL_GROUP))?;
            watch_readable(socket)
        };
        Ok(Self {
            socket: open().map_err(UeventError::Listen)?,
        })
    }

    /// Waits for the next event. Cancel-safe: one message is read in one step.
    pub async fn next(&self) -> Result<UeventResult, UeventError> {
        let mut buffer = vec![0; MAX_EVENT_BYTES];
        loop {
            let mut ready = self.socket.readable().await.map_err(UeventError::Read)?;
            match ready.try_io(|socket| receive(socket.as_raw_fd(), &mut buffer)) {
                Ok(Ok(Some(result))) => return Ok(result),
                // Another process sent it, or it is not a device event.
                Ok(Ok(None)) => {}
                Ok(Err(error)) => return Err(UeventError::Read(error)),
                // Readiness was stale.
                Err(_) => {}
            }
        }
    }
}

#[expect(
    deprecated,
    reason = "sound here: the descriptor is owned and moves in"
)]
fn watch_readable(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(socket, Interest::READABLE)
}

fn receive(socket: i32, buffer: &mut [u8]) -> io::Result<Option<UeventResult>> {
    match recvfrom::<NetlinkAddr>(socket, buffer) {
        // Port 0 is the kernel. Privileged processes may send to the group too.
        Ok((length, Some(from))) if from.pid() == 0 => {
            Ok(Uevent::parse(&buffer[..length]).map(UeventResult::Event))
        }
        Ok(_) => Ok(None),
        Err(Errno::ENOBUFS) => Ok(Some(UeventResult::Lost)),
        Err(Errno::EINTR) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STICK: &[u8] = b"add@/devices/pci0000:00/usb1/1-1/ttyUSB0\0ACTION=add\0\
        DEVPATH=/devices/pci0000:00/usb1/1-1/ttyUSB0\0SUBSYSTEM=tty\0MAJOR=188\0MINOR=0\0\
        DEVNAME=ttyUSB0\0SEQNUM=4711\0";

    #[test]
    fn a_kernel_uevent_is_parsed() {
        let event = Uevent::parse(STICK).unwrap();
        assert_eq!(event.action, "add");
        assert_eq!(event.subsystem.as_deref(), Some("tty"));
        assert_eq!(event.node.as_deref(), Some("ttyUSB0"));
        let bare = Uevent::parse(b"remove@/module/x").unwrap();
        assert_eq!((bare.action.as_str(), bare.node), ("remove", None));
    }

    #[test]
    fn messages_other_than_kernel_uevents_are_ignored() {
        for message in [
            &b""[..],
            b"\0",
            b"libudev\0\xfe\xed\xca\xfe",
            b"add",
            b"@/x",
            b"add@x",
            b"\xff@/x",
        ] {
            assert_eq!(Uevent::parse(message), None, "{message:?}");
        }
        let odd = Uevent::parse(b"add@/x\0\xff\xfe=1\0=\0novalue\0DEVNAME=/dev/a\0").unwrap();
        assert_eq!(odd.node.as_deref(), Some("a"));
    }

    proptest! {
        #[test]
        fn uevent_parser_never_panics(garbage in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Uevent::parse(&garbage);
            let _ = Uevent::parse(&[STICK, &garbage].concat());
        }
    }
}
