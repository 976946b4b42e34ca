//! CDI specs, as toolkits write them: an accepted one names a kind and devices that a container may
//! be given.
use std::collections::BTreeSet;

use machinist_device::cdi::{self, CdiKind};

pub(crate) fn check(text: &str) {
    match cdi::parse("/etc/cdi/a.json", text) {
        Ok(spec) => {
            assert!(CdiKind::new(spec.kind.as_str()).is_ok());
            assert!(!spec.devices.is_empty());
            let names: BTreeSet<_> = spec.devices.iter().map(|one| &one.name).collect();
            assert_eq!(names.len(), spec.devices.len());
        }
        Err(refusal) => assert_eq!(refusal.file.as_deref(), Some("/etc/cdi/a.json")),
    }
}
