//! What is said about vendors.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::offers::Offers;
use crate::device::vendor::Vendor;

/// One vendor as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VendorStatus {
    /// Its name.
    pub vendor: String,
    /// The instance that has the session; none while nobody is connected.
    pub instance: Option<String>,
    /// Why its devices lapse unless it says them again, or have lapsed.
    pub lapsing: Option<String>,
    /// Why it has no socket, when it has none.
    pub problem: Option<String>,
    /// It was told to let go of its hardware.
    pub quiesced: bool,
    /// Sessions that it was granted since the agent started.
    pub sessions: u64,
    /// Sessions and messages of its that were refused since.
    pub refused: u64,
    /// Why the last of these was, or why its last session ended.
    pub last_reason: Option<String>,
    /// Why the last snapshot of a resource was refused, by name, until one is accepted.
    pub vain: BTreeMap<String, String>,
    /// What it offers, by name.
    pub resources: BTreeMap<String, OfferStatus>,
}

/// One resource of a vendor's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OfferStatus {
    /// The generation that was accepted last; none when an earlier instance or agent heard it.
    pub generation: Option<u64>,
    /// How many devices it has.
    pub devices: usize,
    /// Who has the name instead.
    pub taken_by: Option<String>,
    /// Its devices are not lent, since nobody vouches for them.
    pub lapsed: bool,
}

impl VendorStatus {
    pub(super) fn of(
        vendor: &Vendor,
        instance: Option<&str>,
        lapsing: Option<&str>,
        offers: &Offers,
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
