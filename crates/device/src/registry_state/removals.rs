//! Marks devices whose nodes were removed as unhealthy, before a full scan of all devices.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use super::{RegistryState, declared};
use crate::{
    declaration::{Declaration, DeviceSelector},
    flap_detection::DeviceFlapState,
    inventory::{Device, Health},
    resource_name::device_id,
};
use machinist_base::abs_path::AbsPath;

impl RegistryState {
    /// Marks devices at these paths as unhealthy, with the same result as the next scan. Only devices
    /// that consist of the one path are marked; returns their paths.
    pub fn mark_removed(&mut self, names: &BTreeSet<AbsPath>, now: Duration) -> BTreeSet<AbsPath> {
        let mut removed = BTreeSet::new();
        for (name, by) in &self.owners {
            let Some((file, declaration)) = declared(&self.sources, by) else {
                continue;
            };
            let selectors_changed = self
                .sources
                .get(file)
                .is_some_and(|it| it.selectors_changed);
            let Some(resource) = self.resources.get_mut(name) else {
                continue;
            };
            if selectors_changed || !follows_paths(declaration) {
                continue;
            }
            let flap_states = self.flap_states.entry(name.clone()).or_default();
            for path in names {
                let id = device_id(path.as_str());
                let known = resource.devices.get(&id);
                if !known.is_some_and(|device| is_all_of(path, device)) {
                    continue;
                }
                if let Some(device) = Arc::make_mut(resource).devices.get_mut(&id) {
                    device.health = Health::Unhealthy;
                    device.reason = Some(why(path, declaration));
                }
                let presence = flap_states.entry(id);
                presence
                    .or_insert(DeviceFlapState::first(true, now))
                    .record_presence(false, now);
                removed.insert(path.clone());
            }
        }
        removed
    }
}

/// The same reason that the next scan will give.
fn why(path: &AbsPath, declaration: &Declaration) -> String {
    let by_name = declaration.paths().any(|it| it.literal() == Some(path));
    match by_name {
        true => format!("{path} does not exist"),
        false => format!("{path} is gone"),
    }
}

/// Whether each device exists exactly when its path does.
fn follows_paths(declaration: &Declaration) -> bool {
    let mut matches = declaration.matches.iter();
    declaration.group.is_none() && matches.all(|entry| matches!(entry, DeviceSelector::Path(_)))
}

fn is_all_of(path: &AbsPath, device: &Device) -> bool {
    device.health != Health::Missing && matches!(&device.nodes[..], [node] if node.host == *path)
}
