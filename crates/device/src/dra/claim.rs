//! The parts of a ResourceClaim that a DRA driver needs.

use std::fmt;

use serde::Deserialize;

use super::DRIVER_NAME;

/// The identity of a claim in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, Deserialize)]
pub struct ClaimName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The UID of the object; a claim that is created later with the same name has another.
    pub uid: String,
}

impl fmt::Display for ClaimName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Whether a text is a valid UID of a claim: it becomes part of file names.
pub fn is_uid(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.len() <= 64 && text.bytes().all(plain)
}

/// A device of this driver that is allocated to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatedDevice {
    /// The request of the claim, without the name of a subrequest.
    pub request: String,
    /// The pool.
    pub pool: String,
    /// The device's name in the pool.
    pub device: String,
    /// Whether this is admin access: others may use the device at the same time.
    pub admin: bool,
    /// The taints that it tolerates.
    pub tolerations: Vec<DeviceToleration>,
}

/// A toleration of a device taint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceToleration {
    /// The key of the taint; if empty, the operator `Exists` matches any key.
    pub key: String,
    /// `Exists`, or `Equal` if it is empty.
    pub operator: String,
    /// The value for `Equal`; the taints of this driver have no value.
    pub value: String,
    /// The effect of the taint; if empty, any effect.
    pub effect: String,
}

impl DeviceToleration {
    /// Whether it tolerates a taint of this driver, which has no value and the effect `NoSchedule`.
    pub fn covers(&self, key: &str) -> bool {
        let value = self.operator == "Exists" || self.value.is_empty();
        let keys = self.key == key || self.key.is_empty() && self.operator == "Exists";
        keys && value && ["", "NoSchedule"].contains(&self.effect.as_str())
    }
}

/// A ResourceClaim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceClaim {
    /// The UID of the current object.
    pub uid: String,
    /// Its allocated devices of this driver; none while the claim is not allocated.
    pub allocated: Option<Vec<AllocatedDevice>>,
    /// Whether it or its DeviceClass has parameters for this driver, which accepts none.
    pub parameters: bool,
}

/// The error for an API server response that is no valid claim.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to parse the ResourceClaim: {0}")]
pub struct BadClaim(String);

#[derive(Deserialize)]
struct ClaimObject {
    metadata: ClaimMetadata,
    #[serde(default)]
    status: ClaimStatus,
}

#[derive(Deserialize)]
struct ClaimMetadata {
    uid: String,
}

#[derive(Default, Deserialize)]
struct ClaimStatus {
    allocation: Option<ClaimAllocation>,
}

#[derive(Deserialize)]
struct ClaimAllocation {
    #[serde(default)]
    devices: ClaimDevices,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ClaimDevices {
    results: Vec<DeviceAllocationResult>,
    config: Vec<ClaimConfig>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeviceAllocationResult {
    request: String,
    driver: String,
    pool: String,
    device: String,
    admin_access: Option<bool>,
    #[serde(default)]
    tolerations: Vec<DeviceToleration>,
}

#[derive(Deserialize)]
struct ClaimConfig {
    opaque: Option<OpaqueConfig>,
}

#[derive(Deserialize)]
struct OpaqueConfig {
    driver: String,
}

impl ResourceClaim {
    /// Parses a ResourceClaim of any `resource.k8s.io` version: these fields are the same in all.
    pub fn read(object: &str) -> Result<Self, BadClaim> {
        let bad = |error: serde_json::Error| BadClaim(error.to_string());
        let object: ClaimObject = serde_json::from_str(object).map_err(bad)?;
        let Some(allocation) = object.status.allocation else {
            return Ok(Self {
                uid: object.metadata.uid,
                allocated: None,
                parameters: false,
            });
        };
        let devices = allocation.devices;
        let ours = devices
            .results
            .into_iter()
            .filter(|one| one.driver == DRIVER_NAME);
        let allocated = ours.map(|one| AllocatedDevice {
            request: match one.request.split_once('/') {
                Some((request, _)) => request.to_owned(),
                None => one.request,
            },
            pool: one.pool,
            device: one.device,
            admin: one.admin_access == Some(true),
            tolerations: one.tolerations,
        });
        let mut opaque_configs = devices.config.iter().filter_map(|one| one.opaque.as_ref());
        Ok(Self {
            uid: object.metadata.uid,
            allocated: Some(allocated.collect()),
            parameters: opaque_configs.any(|opaque| opaque.driver == DRIVER_NAME),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_allocations_of_this_driver_are_read() {
        let claim = r#"{
            "metadata": {"uid": "u-1", "name": "c"},
            "spec": {"devices": {"requests": [{"name": "one"}]}},
            "status": {"reservedFor": [], "allocation": {"devices": {
                "results": [
                    {"request": "one/better", "driver": "dra.machinist.dev", "pool": "n", "device": "a",
                     "tolerations": [{"key": "machinist.dev/unhealthy", "operator": "Exists"}]},
                    {"request": "two", "driver": "gpu.acme.dev", "pool": "n", "device": "b"}
                ],
                "config": [{"opaque": {"driver": "gpu.acme.dev", "parameters": {}}, "source": "FromClass"}]
            }}}
        }"#;
        let read = ResourceClaim::read(claim).unwrap();
        assert_eq!(read.uid, "u-1");
        assert!(!read.parameters);
        let [one] = read.allocated.as_deref().unwrap() else {
            panic!("{read:?}");
        };
        assert_eq!((one.request.as_str(), one.device.as_str()), ("one", "a"));
        assert!(one.tolerations[0].covers("machinist.dev/unhealthy"));
        assert!(!one.tolerations[0].covers("machinist.dev/withheld"));
        let ours = claim.replace(
            "\"gpu.acme.dev\", \"parameters\"",
            "\"dra.machinist.dev\", \"parameters\"",
        );
        assert!(ResourceClaim::read(&ours).unwrap().parameters);
        let waiting = ResourceClaim::read(r#"{"metadata": {"uid": "u"}}"#).unwrap();
        assert_eq!(waiting.allocated, None);
        for bad in ["", "{}", "[]", r#"{"metadata": {"uid": 1}}"#, "\u{0}"] {
            assert!(ResourceClaim::read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn claim_tolerations_match_the_schedulers_rules() {
        let of = |key: &str, operator: &str, value: &str, effect: &str| DeviceToleration {
            key: key.into(),
            operator: operator.into(),
            value: value.into(),
            effect: effect.into(),
        };
        for (toleration, covers) in [
            (of("k", "Exists", "", ""), true),
            (of("", "Exists", "", ""), true),
            (of("", "", "", ""), false),
            (of("k", "", "", "NoSchedule"), true),
            (of("k", "Equal", "x", ""), false),
            (of("k", "Exists", "", "NoExecute"), false),
            (of("other", "Exists", "", ""), false),
        ] {
            assert_eq!(toleration.covers("k"), covers, "{toleration:?}");
        }
    }

    #[test]
    fn uids_are_validated_before_they_name_files() {
        assert!(is_uid("2c5ea0f6-8a2d-4d6f-9d0b-6b1f9d3c7a11"));
        for bad in ["", "../x", "a/b", "A", "a.b", &"a".repeat(65)] {
            assert!(!is_uid(bad), "{bad}");
        }
    }
}
