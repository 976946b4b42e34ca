//! The snapshots that were rejected in the current session.

use std::collections::{BTreeMap, BTreeSet};

use machinist_device::{ResourceName, inventory::ServeMode, vendor_declaration::Vendor};

pub(super) struct Rejections {
    /// Why the last snapshot of a resource was rejected; removed when one is accepted.
    reasons: BTreeMap<ResourceName, String>,
    /// Resources that a Rejected in this session reported as no longer allowed.
    forbidden: BTreeSet<ResourceName>,
    /// The contract (device plugin or DRA) that the file chooses. A snapshot rejected under one may
    /// be valid under the other.
    serve_mode: ServeMode,
}

impl Rejections {
    pub(super) const fn new(serve_mode: ServeMode) -> Self {
        Self {
            reasons: BTreeMap::new(),
            forbidden: BTreeSet::new(),
            serve_mode,
        }
    }

    /// Forgets those of the last session.
    pub(super) fn clear(&mut self) {
        (self.reasons, self.forbidden) = (BTreeMap::new(), BTreeSet::new());
    }

    pub(super) fn record(&mut self, name: ResourceName, reason: String) {
        self.reasons.insert(name, reason);
    }

    pub(super) fn record_forbidden(&mut self, name: ResourceName) {
        self.forbidden.insert(name);
    }

    pub(super) fn record_accepted(&mut self, name: &ResourceName) {
        self.reasons.remove(name);
    }

    pub(super) fn reason(&self, name: &ResourceName) -> Option<&str> {
        self.reasons.get(name).map(String::as_str)
    }

    /// The rejected resource with this name, and why.
    pub(super) fn find(&self, resource: &str) -> Option<(&ResourceName, &str)> {
        let mut reasons = self.reasons.iter();
        let (name, reason) = reasons.find(|(name, _)| name.as_str() == resource)?;
        Some((name, reason))
    }

    /// A rejected resource that the changed file allows.
    pub(super) fn newly_allowed(&mut self, vendor: &Vendor) -> Option<ResourceName> {
        let mode_changed = std::mem::replace(&mut self.serve_mode, vendor.serve) != vendor.serve;
        let unfit = self.reasons.keys().filter(|_| mode_changed);
        let mut rejected = self.forbidden.iter().chain(unfit);
        rejected.find(|name| vendor.may_claim(name)).cloned()
    }

    /// The reasons by resource name.
    pub(super) fn to_status(&self) -> BTreeMap<String, String> {
        let reasons = self.reasons.iter();
        reasons
            .map(|(name, reason)| (name.to_string(), reason.clone()))
            .collect()
    }
}
