//! Tests the netlink parser message by message, and compares its result with `/proc`.

use super::*;

fn attribute(name: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len() + 4).unwrap();
    let mut bytes = [length.to_ne_bytes(), name.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn route(to: u8, table: u8, kind: u8) -> Vec<u8> {
    let mut bytes = vec![2, to, 0, 0, table, 3, 0, kind, 0, 0, 0, 0];
    bytes.extend(attribute(15, &254_u32.to_ne_bytes()));
    bytes.extend(attribute(RTA_GATEWAY, &[192, 0, 2, 1]));
    bytes.extend(attribute(RTA_OIF, &7_u32.to_ne_bytes()));
    bytes
}

#[test]
fn only_a_default_route_of_the_main_table_has_a_default_gateway() {
    let gateway = Gateway {
        address: "192.0.2.1".parse().unwrap(),
        interface: 7,
    };
    assert_eq!(default_route(&route(0, 254, 1)), Some(vec![gateway]));
    for other in [route(24, 254, 1), route(0, 255, 1), route(0, 254, 7)] {
        assert_eq!(default_route(&other), None, "{other:?}");
    }
    let whole = route(0, 254, 1);
    for cut in 0..whole.len() {
        let found = default_route(&whole[..cut]).unwrap_or_default();
        assert_eq!(found, [], "{cut}");
    }
}

fn gateway(address: &str, interface: u32) -> Gateway {
    Gateway {
        address: address.parse().unwrap(),
        interface,
    }
}

fn octets(address: &str) -> Vec<u8> {
    match address.parse().unwrap() {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

#[test]
fn gateways_of_ipv6_multipath_and_other_family_routes_are_parsed() {
    let head = |family| vec![family, 0, 0, 0, 254, 9, 0, 1, 0, 0, 0, 0];
    let oif = attribute(RTA_OIF, &7_u32.to_ne_bytes());
    let advertised = [
        head(10),
        attribute(RTA_GATEWAY, &octets("fe80::1")),
        oif.clone(),
    ];
    let read = |parts: &[Vec<u8>]| default_route(&parts.concat()).unwrap();
    assert_eq!(read(&advertised), [gateway("fe80::1", 7)]);
    let via = [&10_u16.to_ne_bytes()[..], &octets("fe80::2")].concat();
    let mixed = [head(2), attribute(RTA_VIA, &via), oif];
    assert_eq!(read(&mixed), [gateway("fe80::2", 7)]);
    let hop = |address: &str, interface: u32| {
        let inner = attribute(RTA_GATEWAY, &octets(address));
        let length = u16::try_from(NEXT_HOP_BYTES + inner.len()).unwrap();
        let interface = interface.to_ne_bytes();
        [&length.to_ne_bytes()[..], &[0, 0], &interface, &inner].concat()
    };
    let hops = [hop("fe80::1", 3), hop("2001:db8::1", 4)].concat();
    let several = [head(10), attribute(RTA_MULTIPATH, &hops)];
    let both = [gateway("fe80::1", 3), gateway("2001:db8::1", 4)];
    assert_eq!(read(&several), both);
    for cut in 0..hops.len() {
        assert!(next_hops(&hops[..cut]).len() < 2, "{cut}");
    }
}

#[test]
fn a_link_local_gateway_is_named_with_its_interface() {
    let mut message = vec![0; LINK_HEADER_BYTES];
    message[4..8].copy_from_slice(&7_u32.to_ne_bytes());
    message.extend(attribute(IFLA_IFNAME, b"eth0\0"));
    let links = BTreeMap::from([link(&message).unwrap()]);
    for (address, name) in [
        ("fe80::1", "fe80::1%eth0"),
        ("2001:db8::1", "2001:db8::1"),
        ("192.0.2.1", "192.0.2.1"),
    ] {
        assert_eq!(gateway(address, 7).name(&links), name);
    }
}

#[test]
fn a_neighbour_counts_as_reachable_if_confirmed_within_a_minute() {
    let minute = Duration::from_secs(60);
    for (state, seconds_ago, answers) in [
        (0x02, 1000, true),
        (0x40, 1000, true),
        (0x80, 1000, true),
        (0x04, 30, true),
        (0x08, 59, true),
        (0x10, 60, false),
        (0x04, 1000, false),
        (0x01, 0, false),
        (0x20, 0, false),
        (0x00, 0, false),
    ] {
        let mut bytes = vec![2, 0, 0, 0];
        bytes.extend(7_u32.to_ne_bytes());
        bytes.extend(u16::to_ne_bytes(state));
        bytes.extend([0, 1]);
        bytes.extend(attribute(NDA_DST, &[192, 0, 2, 1]));
        let times = u32::to_ne_bytes(seconds_ago * USER_HZ);
        bytes.extend(attribute(NDA_CACHEINFO, &[times, [0; 4]].concat()));
        let neighbour = neighbour(&bytes).unwrap();
        assert_eq!(neighbour.at.interface, 7);
        assert_eq!(
            neighbour.answers(minute),
            answers,
            "{state:#x} {seconds_ago}"
        );
    }
}

/// The oracles are `/proc/net/route`, where destination and mask of a default route are zero, and
/// `/proc/net/ipv6_route`, where rejecting routes have the flag 0x200.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the kernel's pages are the oracle"
)]
fn netlink_gateways_match_those_in_proc_net() {
    let rows = |path: &str, skip| {
        let table = std::fs::read_to_string(path).unwrap_or_default();
        let rows = table.lines().skip(skip).map(|line| {
            let words = line.split_whitespace();
            words.map(str::to_owned).collect::<Vec<_>>()
        });
        rows.collect::<Vec<_>>()
    };
    let four = rows("/proc/net/route", 1)
        .into_iter()
        .filter(|row| row[1] == "00000000" && row[7] == "00000000" && row[2] != "00000000");
    let four = four.map(|row| {
        let address = u32::from_str_radix(&row[2], 16).unwrap();
        IpAddr::from(Ipv4Addr::from(address.to_ne_bytes()))
    });
    let six = rows("/proc/net/ipv6_route", 0).into_iter().filter(|row| {
        let flags = u32::from_str_radix(&row[8], 16).unwrap();
        row[1] == "00" && row[4] != "0".repeat(32) && flags & 0x200 == 0
    });
    let six = six.map(|row| {
        let address = u128::from_str_radix(&row[4], 16).unwrap();
        IpAddr::from(Ipv6Addr::from(address))
    });
    let shown: BTreeSet<_> = four.chain(six).collect();
    let found = gateways().unwrap();
    let found: BTreeSet<_> = found.iter().map(|gateway| gateway.address).collect();
    assert_eq!(found, shown);
}
