//! The names of devices in a node's pool: DNS labels, whereas device ids may be longer and have other
//! characters.

use std::collections::BTreeMap;

use crate::{
    inventory::{Inventory, Resource, ServeMode, SharePolicy},
    resource_name::{ResourceName, hex16},
};

/// The longest DNS label (RFC 1123).
const MAX_LABEL_LEN: usize = 63;
/// The number of hexadecimal digits of the digest at the end of a name: 48 bits, so that two of the
/// ten thousand devices of a machine collide with a chance of one in five million.
const DIGEST_HEX_DIGITS: usize = 12;

/// A device inside machinist: the resource, and the device id with the share number.
pub type DeviceKey = (ResourceName, String);

/// The name of a device in the pool: the readable part of its id, and a digest of resource and id.
///
/// It depends on these two alone, so a device keeps its name when other devices are added or removed,
/// and two resources may have devices with the same id.
pub fn device_name(resource: &ResourceName, share: &str) -> String {
    let mut plain = String::new();
    for letter in share.chars().map(|c| c.to_ascii_lowercase()) {
        match letter {
            'a'..='z' | '0'..='9' => plain.push(letter),
            // One dash for all characters between words.
            _ if !plain.is_empty() && !plain.ends_with('-') => plain.push('-'),
            _ => {}
        }
    }
    plain.truncate(MAX_LABEL_LEN - DIGEST_HEX_DIGITS - 1);
    let plain = plain.trim_end_matches('-');
    let digest = hex16(&format!("{resource}\n{share}"));
    let digest = digest.get(..DIGEST_HEX_DIGITS).unwrap_or(&digest);
    match plain {
        "" => format!("d-{digest}"),
        plain => format!("{plain}-{digest}"),
    }
}

/// All shares of a resource, each with its device's id and its number. The scheduler takes the first
/// device that fits, so the order implements the share policy: alternating between devices, or one
/// device after the other.
pub fn shares(resource: &Resource) -> Vec<(&str, u32, String)> {
    let listed = |number: u32| {
        let devices = resource.advertised();
        devices.map(move |(id, _)| (id, number, resource.share_id(id, number)))
    };
    let mut all: Vec<_> = (0..resource.share.replicas).flat_map(listed).collect();
    if resource.share.policy == SharePolicy::Packed {
        all.sort_by(|one, two| (one.0, one.1).cmp(&(two.0, two.1)));
    }
    all
}

/// The devices by their names in the pool.
pub fn names(inventory: &Inventory) -> BTreeMap<String, DeviceKey> {
    let mut names = BTreeMap::new();
    for (name, resource) in inventory.served_by(ServeMode::Dra) {
        for (_, _, share) in shares(resource) {
            names.insert(device_name(name, &share), (name.clone(), share));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{inventory::Share, testing::resource};

    fn is_label(name: &str) -> bool {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        name.len() <= MAX_LABEL_LEN
            && name.starts_with(inner)
            && name.ends_with(inner)
            && name.chars().all(|c| inner(c) || c == '-')
    }

    #[test]
    fn dra_device_names_are_unique_stable_dns_labels() {
        let name = |text: &str| ResourceName::new(text).unwrap();
        let (x, y) = (name("acme.dev/x"), name("acme.dev/y"));
        // This name must never change: allocated claims refer to it.
        assert_eq!(device_name(&x, "fuse::1"), "fuse-1-03e2fefca408");
        let long = "A".repeat(63);
        let ids = [
            "fuse", "Fuse", "fuse::0", "fu_se", "fu-se", "_", "ttyACM0.", &long,
        ];
        let all: std::collections::BTreeSet<_> = ids
            .iter()
            .flat_map(|id| [device_name(&x, id), device_name(&y, id)])
            .collect();
        assert_eq!(all.len(), 2 * ids.len());
        for name in all {
            assert!(is_label(&name), "{name}");
        }
    }

    #[test]
    fn shares_are_listed_in_the_order_of_the_share_policy() {
        let mut shared = resource(2, &[("a", &[]), ("b", &[])]);
        let order = |resource: &Resource| {
            let all = shares(resource).into_iter();
            all.map(|(_, _, share)| share).collect::<Vec<_>>()
        };
        assert_eq!(order(&shared), ["a::0", "b::0", "a::1", "b::1"]);
        shared.share = Share {
            policy: SharePolicy::Packed,
            ..shared.share
        };
        assert_eq!(order(&shared), ["a::0", "a::1", "b::0", "b::1"]);
    }
}
