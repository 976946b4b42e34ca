//! Checks which default gateways of the machine are reachable.
//!
//! The evidence comes from the kernel (rtnetlink(7)): a gateway answers if the kernel resolved its link address
//! (ARP, or neighbour discovery in IPv6), which every packet through it needs. An ICMP echo request would prove
//! less, because many gateways do not answer it. To make the kernel resolve a gateway now, the check sends one
//! empty datagram to its discard port; it does not matter whether the datagram arrives.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket},
    os::fd::{AsRawFd as _, OwnedFd},
    time::Duration,
};

use nix::sys::{
    socket::{
        AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto,
        setsockopt, socket, sockopt::ReceiveTimeout,
    },
    time::TimeVal,
};

/// linux/rtnetlink.h: requests, the types of their answers.
const GET_LINK: u16 = 18;
const NEW_LINK: u16 = 16;
const GET_ROUTE: u16 = 26;
const NEW_ROUTE: u16 = 24;
const GET_NEIGHBOUR: u16 = 30;
const NEW_NEIGHBOUR: u16 = 28;
/// linux/netlink.h: the end of a list, an error, the flags of a dump request.
const DONE: u16 = 3;
const ERROR: u16 = 2;
const REQUEST_DUMP: u16 = 0x301;
/// Lengths of the message header and of the fixed parts of an interface, a route, and a neighbour.
const MESSAGE_HEADER_BYTES: usize = 16;
const LINK_HEADER_BYTES: usize = 16;
const ROUTE_HEADER_BYTES: usize = 12;
const NEIGHBOUR_HEADER_BYTES: usize = 12;
/// Length of the fixed part of a next hop: length, flags, weight, interface.
const NEXT_HOP_BYTES: usize = 8;
/// Interface attributes: name. Route attributes: interface, gateway, several next hops, a gateway of another
/// address family. Neighbour attributes: address, times.
const IFLA_IFNAME: u16 = 3;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_MULTIPATH: u16 = 9;
const RTA_VIA: u16 = 18;
const NDA_DST: u16 = 1;
const NDA_CACHEINFO: u16 = 3;
/// linux/rtnetlink.h: the main table, which `ip route` shows; a unicast route.
const MAIN_TABLE: u8 = 254;
const UNICAST: u8 = 1;
/// linux/neighbour.h: confirmed recently; confirmed some time ago; needs no resolution (NOARP, PERMANENT).
const REACHABLE: u16 = 0x02;
const STALE_DELAY_PROBE: u16 = 0x04 | 0x08 | 0x10;
const FIXED: u16 = 0x40 | 0x80;
/// The kernel's interface gives times in hundredths of a second (USER_HZ), on every architecture that machinist
/// supports.
const USER_HZ: u32 = 100;
/// The discard port (RFC 863).
const DISCARD_PORT: u16 = 9;
/// A dump's answers arrive in parts of at most this size (NLMSG_GOODSIZE is a page, at most 32 KiB).
const MAX_NETLINK_MESSAGE_BYTES: usize = 64 << 10;
/// Interval between two reads of the neighbour table.
const NEIGHBOUR_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A default gateway and the interface that leads to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Gateway {
    address: IpAddr,
    interface: u32,
}

/// An entry of the kernel's neighbour table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Neighbour {
    at: Gateway,
    state: u16,
    /// Time since the kernel last confirmed it, in ticks.
    confirmed: Option<u32>,
}

/// Returns the addresses of the IPv4 and IPv6 default gateways that are reachable, or were within `recent`. A
/// link-local address carries its interface, as in `fe80::1%eth0`. Probes the other gateways and waits for them for
/// at most `patience`.
pub async fn reachable_gateways(
    recent: Duration,
    patience: Duration,
) -> io::Result<BTreeSet<String>> {
    let until = tokio::time::Instant::now() + patience;
    let mut asked = BTreeSet::new();
    loop {
        let (gateways, neighbours) = (gateways()?, neighbours()?);
        let answers = |gateway: &Gateway| {
            let mut known = neighbours.iter().filter(|known| known.at == *gateway);
            known.any(|known| known.answers(recent))
        };
        let (good, silent): (BTreeSet<Gateway>, BTreeSet<Gateway>) =
            gateways.into_iter().partition(answers);
        if silent.is_empty() || tokio::time::Instant::now() >= until {
            let links = links()?;
            return Ok(good.iter().map(|gateway| gateway.name(&links)).collect());
        }
        for gateway in silent {
            if asked.insert(gateway) {
                // This fails on an interface without an address. The error adds nothing, because the gateway does
                // not answer then.
                let _ = ask(gateway);
            }
        }
        tokio::time::sleep(NEIGHBOUR_POLL_INTERVAL).await;
    }
}

impl Gateway {
    /// Names the gateway in a form that stays the same after a reboot, which may renumber the interfaces. A
    /// link-local address is unique only on its link, so the name includes the interface.
    fn name(&self, links: &BTreeMap<u32, String>) -> String {
        match (self.address, links.get(&self.interface)) {
            (IpAddr::V6(address), Some(link)) if address.is_unicast_link_local() => {
                format!("{address}%{link}")
            }
            (address, _) => address.to_string(),
        }
    }
}

impl Neighbour {
    fn answers(&self, recent: Duration) -> bool {
        let ago = self
            .confirmed
            .map(|ticks| Duration::from_secs(u64::from(ticks / USER_HZ)));
        let lately = ago.is_some_and(|ago| ago < recent);
        self.state & (REACHABLE | FIXED) != 0 || self.state & STALE_DELAY_PROBE != 0 && lately
    }
}

fn ask(gateway: Gateway) -> io::Result<()> {
    let (from, to): (SocketAddr, SocketAddr) = match gateway.address {
        IpAddr::V4(address) => (
            (Ipv4Addr::UNSPECIFIED, 0).into(),
            (address, DISCARD_PORT).into(),
        ),
        IpAddr::V6(address) => (
            (Ipv6Addr::UNSPECIFIED, 0).into(),
            SocketAddrV6::new(address, DISCARD_PORT, 0, gateway.interface).into(),
        ),
    };
    let socket = UdpSocket::bind(from)?;
    socket.set_nonblocking(true)?;
    socket.send_to(&[], to).map(drop)
}

fn gateways() -> io::Result<BTreeSet<Gateway>> {
    let messages = list(GET_ROUTE, NEW_ROUTE, ROUTE_HEADER_BYTES)?;
    let routes = messages.iter().filter_map(|m| default_route(m));
    Ok(routes.flatten().collect())
}

/// Lists the interface names.
fn links() -> io::Result<BTreeMap<u32, String>> {
    let messages = list(GET_LINK, NEW_LINK, LINK_HEADER_BYTES)?;
    Ok(messages.iter().filter_map(|m| link(m)).collect())
}

fn neighbours() -> io::Result<Vec<Neighbour>> {
    let messages = list(GET_NEIGHBOUR, NEW_NEIGHBOUR, NEIGHBOUR_HEADER_BYTES)?;
    Ok(messages.iter().filter_map(|m| neighbour(m)).collect())
}

/// Parses `struct ifinfomsg` and its attributes.
fn link(message: &[u8]) -> Option<(u32, String)> {
    let index = number(message.get(4..8)?)?;
    let name = attributes(message.get(LINK_HEADER_BYTES..)?)
        .into_iter()
        .find_map(|(name, value)| (name == IFLA_IFNAME).then_some(value))?;
    let name = name.strip_suffix(b"\0").unwrap_or(name);
    Some((index, String::from_utf8_lossy(name).into_owned()))
}

/// Parses `struct rtmsg` and its attributes into the gateways of a default route.
fn default_route(message: &[u8]) -> Option<Vec<Gateway>> {
    let (to, table, kind) = (*message.get(1)?, *message.get(4)?, *message.get(7)?);
    if to != 0 || table != MAIN_TABLE || kind != UNICAST {
        return None;
    }
    let attributes = attributes(message.get(ROUTE_HEADER_BYTES..)?);
    let interface = attributes.iter().find(|(name, _)| *name == RTA_OIF);
    let interface = interface.and_then(|(_, value)| number(value));
    let mut gateways: Vec<Gateway> = through(&attributes, interface).into_iter().collect();
    for (name, value) in attributes {
        if name == RTA_MULTIPATH {
            gateways.extend(next_hops(value));
        }
    }
    Some(gateways)
}

/// Parses a sequence of `struct rtnexthop`, each with its attributes.
fn next_hops(mut bytes: &[u8]) -> Vec<Gateway> {
    let mut found = Vec::new();
    while let Some(head) = bytes.get(..NEXT_HOP_BYTES) {
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let Some(hop) = bytes.get(NEXT_HOP_BYTES..length) else {
            break;
        };
        found.extend(through(&attributes(hop), number(&head[4..])));
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

/// Returns the gateway that the attributes name.
fn through(attributes: &[(u16, &[u8])], interface: Option<u32>) -> Option<Gateway> {
    let address = attributes.iter().find_map(|(name, value)| match *name {
        RTA_GATEWAY => address(value),
        // `struct rtvia`: a family in two bytes, and the address.
        RTA_VIA => address(value.get(2..)?),
        _ => None,
    });
    Some(Gateway {
        address: address?,
        interface: interface?,
    })
}

/// Parses `struct ndmsg` and its attributes.
fn neighbour(message: &[u8]) -> Option<Neighbour> {
    let interface = number(message.get(4..8)?)?;
    let state = u16::from_ne_bytes(message.get(8..10)?.try_into().ok()?);
    let mut found = (None, None);
    for (name, value) in attributes(message.get(NEIGHBOUR_HEADER_BYTES..)?) {
        match name {
            NDA_DST => found.0 = address(value),
            NDA_CACHEINFO => found.1 = number(value),
            _ => {}
        }
    }
    Some(Neighbour {
        at: Gateway {
            address: found.0?,
            interface,
        },
        state,
        confirmed: found.1,
    })
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let four = || <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from);
    let sixteen = || <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from);
    four().or_else(sixteen)
}

/// Reads the first four bytes in native byte order.
fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
}

/// Parses attributes into type and value. Stops at a truncated attribute.
fn attributes(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut found = Vec::new();
    while let Some(head) = bytes.get(..4) {
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let name = u16::from_ne_bytes([head[2], head[3]]);
        let Some(value) = bytes.get(4..length) else {
            break;
        };
        found.push((name, value));
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

/// Dumps all objects of one kind from the kernel and returns the messages without their headers.
fn list(request: u16, answer: u16, fixed: usize) -> io::Result<Vec<Vec<u8>>> {
    let socket = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )?;
    // The kernel answers immediately; the timeout only guards against hanging forever.
    setsockopt(&socket, ReceiveTimeout, &TimeVal::new(1, 0))?;
    let length = MESSAGE_HEADER_BYTES + fixed;
    let mut message = vec![0; length];
    message[..4].copy_from_slice(&u32::try_from(length).unwrap_or_default().to_ne_bytes());
    message[4..6].copy_from_slice(&request.to_ne_bytes());
    message[6..8].copy_from_slice(&REQUEST_DUMP.to_ne_bytes());
    let kernel = NetlinkAddr::new(0, 0);
    sendto(socket.as_raw_fd(), &message, &kernel, MsgFlags::empty())?;
    let mut found = Vec::new();
    while take(&socket, answer, &mut found)? {}
    Ok(found)
}

/// Reads one datagram of answers. Returns false after the last.
fn take(socket: &OwnedFd, answer: u16, found: &mut Vec<Vec<u8>>) -> io::Result<bool> {
    let mut buffer = vec![0; MAX_NETLINK_MESSAGE_BYTES];
    let count = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
    let mut rest = buffer.get(..count).unwrap_or_default();
    while let Some(header) = rest.get(..MESSAGE_HEADER_BYTES) {
        let length = number(header).unwrap_or_default();
        let length = usize::try_from(length).unwrap_or_default();
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let Some(body) = rest.get(MESSAGE_HEADER_BYTES..length) else {
            break;
        };
        match kind {
            DONE => return Ok(false),
            ERROR => return Err(io::Error::other("the kernel refuses to dump it")),
            kind if kind == answer => found.push(body.to_vec()),
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(count > 0)
}

#[cfg(test)]
mod tests;
