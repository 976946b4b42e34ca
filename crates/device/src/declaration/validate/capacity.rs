//! Validates the capacities of devices.

use std::collections::BTreeMap;

use super::{DeclarationValidator, schema::QuantityDoc};
use crate::{
    SmallMap, dra::pool, inventory::ServeMode, mount_allowlist::MAX_CAPACITIES, quantity::Quantity,
};
use machinist_base::reason::Reason;

impl DeclarationValidator<'_> {
    /// The capacities by name. Invalid names and amounts are refused at their fields.
    pub(super) fn capacity(
        &mut self,
        serve: ServeMode,
        given: BTreeMap<String, QuantityDoc>,
    ) -> SmallMap<Quantity> {
        if serve != ServeMode::Dra && !given.is_empty() {
            self.refuse(
                Reason::FeatureUnsupported,
                "spec.capacity",
                "device plugins have no capacity: the kubelet only counts devices",
                "serve: dra, or no capacity",
            );
        }
        if given.len() > MAX_CAPACITIES {
            let message = format!("{} capacities", given.len());
            self.value("spec.capacity", message, "at most 16");
        }
        let mut read = SmallMap::default();
        for (name, amount) in given {
            let field = format!("spec.capacity.{name}");
            if !pool::is_name(&name) {
                let expected = "letters, digits and _, at most 32, with or without a domain";
                self.value(
                    &field,
                    format!("{name:?} is not a valid capacity name"),
                    expected,
                );
                continue;
            }
            match Quantity::new(&amount.0) {
                Ok(amount) => {
                    read.insert(name, amount);
                }
                Err(error) => self.value(
                    &field,
                    error.to_string(),
                    "a quantity such as 40Gi, 8 or 500m",
                ),
            }
        }
        read
    }
}
