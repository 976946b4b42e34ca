//! Resource names and device ids, as used in the kubelet's APIs.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The error for a resource name that the kubelet would refuse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not a valid resource name: {why}")]
pub struct BadResourceName {
    given: String,
    why: &'static str,
}

/// The name of an extended resource, such as `acme.dev/serial`.
///
/// The rules are the kubelet's own, so that it never refuses a valid [`ResourceName`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ResourceName(String);

impl ResourceName {
    /// The kubelet validates `requests.` + the name, so the prefix counts towards the DNS limit of
    /// 253.
    const MAX_DOMAIN_BYTES: usize = 253 - "requests.".len();
    const MAX_NAME_PART_BYTES: usize = 63;

    /// Validates `given`.
    pub fn new(given: impl Into<String>) -> Result<Self, BadResourceName> {
        let given = given.into();
        match Self::fault(&given) {
            None => Ok(Self(given)),
            Some(why) => Err(BadResourceName { given, why }),
        }
    }

    fn fault(given: &str) -> Option<&'static str> {
        let Some((domain, name)) = given.split_once('/') else {
            return Some("it has no slash");
        };
        if given.contains("kubernetes.io/") {
            return Some("kubernetes.io is reserved for Kubernetes");
        }
        if given.starts_with("requests.") {
            return Some("it starts with requests.");
        }
        if domain.len() > Self::MAX_DOMAIN_BYTES {
            return Some("the part before the slash is longer than 244 characters");
        }
        if !domain.split('.').all(is_dns_label) {
            return Some("the part before the slash is not a DNS name in lower case");
        }
        if name.len() > Self::MAX_NAME_PART_BYTES {
            return Some("the part after the slash is longer than 63 characters");
        }
        if !is_label(name) {
            return Some(
                "the part after the slash contains other characters than letters, digits, -, _ and ., or does \
                 not start and end with a letter or digit",
            );
        }
        None
    }

    /// The whole name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part after the slash.
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or("", |(_, name)| name)
    }

    /// The part before the slash, which identifies the vendor.
    pub fn domain(&self) -> &str {
        self.0.split_once('/').map_or("", |(domain, _)| domain)
    }
}

fn is_dns_label(part: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    ends_with(part, inner) && part.bytes().all(|byte| inner(byte) || byte == b'-')
}

/// Whether it is valid after the slash; the value of a label or taint has the same rules except for
/// its length.
pub(super) fn is_label(part: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric();
    ends_with(part, inner)
        && part
            .bytes()
            .all(|byte| inner(byte) || matches!(byte, b'-' | b'_' | b'.'))
}

fn ends_with(part: &str, allowed: impl Fn(u8) -> bool) -> bool {
    let bytes = part.as_bytes();
    bytes.first().is_some_and(|byte| allowed(*byte))
        && bytes.last().is_some_and(|byte| allowed(*byte))
}

impl fmt::Display for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for ResourceName {
    type Error = BadResourceName;
    fn try_from(given: String) -> Result<Self, BadResourceName> {
        Self::new(given)
    }
}

impl From<ResourceName> for String {
    fn from(name: ResourceName) -> Self {
        name.0
    }
}

/// The maximum length of a device id, according to the comments of the device plugin API.
pub const MAX_ID_LEN: usize = 63;

/// The separator between a device's id and the share number. Device ids of machinist contain no
/// colon, so `fuse::1` can never be the id of a whole device.
pub const SHARE_SEPARATOR: &str = "::";

/// The maximum length without the share number, which leaves room for `::1023`, so that a device
/// keeps its id when sharing is enabled.
const MAX_BASE_ID_LEN: usize = MAX_ID_LEN - "::1023".len();

/// The id of the device at `node`: its path without `/dev/`, with slashes replaced by dashes.
///
/// It depends on the path alone, so a device keeps its id when other devices are added or removed.
/// Ids of paths that are too long or contain unusual characters end in a digest of the whole path.
pub fn device_id(node: &str) -> String {
    let short = node.strip_prefix("/dev/").unwrap_or(node);
    let short = short.trim_start_matches('/');
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/');
    let id: String = short
        .chars()
        .map(|c| if plain(c) && c != '/' { c } else { '-' })
        .collect();
    if id.len() <= MAX_BASE_ID_LEN && short.chars().all(plain) {
        return id;
    }
    let digest = hex16(node);
    let kept: String = id
        .chars()
        .take(MAX_BASE_ID_LEN - digest.len() - 1)
        .collect();
    format!("{kept}-{digest}")
}

/// Sixteen hexadecimal digits that identify `text`: the first 64 bits of its SHA-256, which are
/// enough for the few hundred names of one machine.
pub fn hex16(text: &str) -> String {
    use sha2::Digest as _;
    let digest = sha2::Sha256::digest(text.as_bytes());
    digest
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_names_are_validated_as_by_the_kubelet() {
        let long_domain = format!("{}/x", "a.".repeat(121) + "aa");
        let too_long_domain = format!("{}/x", "a.".repeat(122) + "a");
        assert_eq!(long_domain.len() - 2, 244);
        assert_eq!(too_long_domain.len() - 2, 245);
        let long_name = format!("a.b/{}", "n".repeat(63));
        for good in [
            "acme.dev/serial",
            "a/b",
            "a.b/A_b.c-D",
            &long_domain,
            &long_name,
        ] {
            assert!(ResourceName::new(good).is_ok(), "{good}");
        }
        let too_long_name = format!("a.b/{}", "n".repeat(64));
        for bad in [
            "",
            "serial",
            "/serial",
            "acme.dev/",
            "acme.dev/a/b",
            "Acme.dev/a",
            "acme..dev/a",
            "-acme.dev/a",
            "acme.dev-/a",
            "acme.dev/-a",
            "acme.dev/a.",
            "acme.dev/a b",
            "acme.dev/ä",
            "kubernetes.io/a",
            "x.kubernetes.io/a",
            "requests.acme.dev/a",
            &too_long_domain,
            &too_long_name,
        ] {
            assert!(ResourceName::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn device_ids_derive_from_the_path_and_fit_the_limit() {
        assert_eq!(device_id("/dev/fuse"), "fuse");
        assert_eq!(device_id("/dev/net/tun"), "net-tun");
        assert_eq!(
            device_id("/dev/serial/by-id/usb-A_1-if00"),
            "serial-by-id-usb-A_1-if00"
        );
        let odd = device_id("/dev/disk/by-label/a b");
        assert!(odd.starts_with("disk-by-label-a-b-"), "{odd}");
        assert_ne!(odd, device_id("/dev/disk/by-label/a:b"));
        let long = device_id(&format!("/dev/{}", "x".repeat(200)));
        assert_eq!(long.len(), MAX_BASE_ID_LEN);
        assert_ne!(long, device_id(&format!("/dev/{}", "x".repeat(201))));
    }
}
