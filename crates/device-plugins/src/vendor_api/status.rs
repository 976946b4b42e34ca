//! The reported status of vendors.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::offered_resources::VendorResources;
use machinist_device::vendor_declaration::Vendor;

/// The current status of one vendor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LiveVendorStatus {
    /// Its name.
    pub vendor: String,
    /// The instance that has the session; `None` while no instance is connected.
    pub instance: Option<String>,
    /// Why its unconfirmed devices are about to lapse, or have lapsed.
    pub lapsing: Option<String>,
    /// Why it has no socket.
    pub problem: Option<String>,
    /// Whether it was ordered to release its hardware.
    pub quiesced: bool,
    /// Sessions granted since the agent started.
    pub sessions: u64,
    /// Sessions and messages refused since the agent started.
    pub refused: u64,
    /// The reason of the last refusal, or of the last session's end.
    pub last_reason: Option<String>,
    /// Why the last snapshot of a resource was refused, by name; removed when one is accepted.
    pub vain: BTreeMap<String, String>,
    /// Its offers, by resource name.
    pub resources: BTreeMap<String, OfferStatus>,
}

/// The status of one offered resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OfferStatus {
    /// The generation accepted last; `None` when it came from an earlier instance or agent.
    pub generation: Option<u64>,
    /// The number of its devices.
    pub devices: usize,
    /// The source that owns the name instead.
    pub taken_by: Option<String>,
    /// Its devices are marked unhealthy because the vendor has not confirmed them in time.
    pub lapsed: bool,
}

impl LiveVendorStatus {
    pub(super) fn of(
        vendor: &Vendor,
        instance: Option<&str>,
        lapsing: Option<&str>,
        offers: &VendorResources,
        quiesced: bool,
    ) -> Self {
        let resources = offers.all.iter().map(|(name, offer)| {
            let status = OfferStatus {
                generation: offer.generation,
                devices: offer.resource.devices.len(),
                taken_by: offer.taken_by.as_ref().map(ToString::to_string),
                lapsed: offer.lapsed,
            };
            (name.to_string(), status)
        });
        Self {
            vendor: vendor.name.clone(),
            instance: instance.map(str::to_owned),
            lapsing: lapsing.map(str::to_owned),
            problem: None,
            quiesced,
            resources: resources.collect(),
            ..Self::default()
        }
    }
}
