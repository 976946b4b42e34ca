//! Validates a session's Hello and builds its Welcome.

use std::time::Duration;

use tonic::Status;

use super::{
    api::v1::{self as api, FromAgent, Kept, VERSION, from_agent},
    limits::{
        MAX_MESSAGE_PARTS, MAX_SNAPSHOT_TOTAL_BYTES, MAX_SNAPSHOT_TOTAL_PARTS,
        MAX_VENDOR_MESSAGE_BYTES, MESSAGES_PER_SECOND,
    },
    task_messages::{message, millis},
};
use machinist_device::{ResourceName, vendor_declaration::Vendor};

const MAX_VERSIONS: usize = 16;
const MAX_INSTANCE_LEN: usize = 128;

/// Checks a Hello against the vendor's file, without regard to other sessions.
pub(super) fn check(vendor: &Vendor, hello: &api::Hello) -> Result<(), Status> {
    let name = &vendor.name;
    if hello.vendor != *name {
        return Err(Status::permission_denied(format!(
            "this is the socket of vendor {name}"
        )));
    }
    let versions = &hello.api_versions;
    if versions.len() > MAX_VERSIONS || !versions.iter().any(|version| version == VERSION) {
        return Err(Status::invalid_argument(format!(
            "the driver supports none of machinist's API versions: {VERSION}"
        )));
    }
    let (instance, printable) = (&hello.instance, |byte: u8| (0x20..0x7f).contains(&byte));
    let good = (1..=MAX_INSTANCE_LEN).contains(&instance.len());
    if !good || !instance.bytes().all(printable) {
        return Err(Status::invalid_argument(format!(
            "the instance name is not 1 to {MAX_INSTANCE_LEN} printable ASCII characters"
        )));
    }
    let (count, most) = (hello.resources.len(), vendor.limits.resources);
    if count == 0 || count > most {
        return Err(Status::resource_exhausted(format!(
            "{count} resources are named; vendor {name} may offer 1 to {most}"
        )));
    }
    for given in &hello.resources {
        // A longer text is no valid name, so only its beginning is repeated.
        let given: String = given.chars().take(320).collect();
        let resource = ResourceName::new(given)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        if !vendor.may_claim(&resource) {
            return Err(Status::permission_denied(format!(
                "vendor {name} may not offer {resource}"
            )));
        }
    }
    Ok(())
}

/// Builds the answer to a Hello.
pub(super) fn welcome(
    vendor: &Vendor,
    session: u64,
    heartbeat: Duration,
    kept: Vec<Kept>,
) -> FromAgent {
    message(from_agent::Said::Welcome(api::Welcome {
        api_version: VERSION.to_owned(),
        session,
        limits: Some(api::Limits {
            devices: small(vendor.limits.devices),
            resources: small(vendor.limits.resources),
            message_bytes: small(MAX_VENDOR_MESSAGE_BYTES),
            kept_bytes: small(MAX_SNAPSHOT_TOTAL_BYTES),
            kept_parts: small(MAX_SNAPSHOT_TOTAL_PARTS),
            message_parts: small(MAX_MESSAGE_PARTS),
            messages_per_second: MESSAGES_PER_SECOND,
        }),
        heartbeat_ms: millis(heartbeat),
        grace_ms: millis(vendor.grace),
        kept,
    }))
}

fn small(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
