//! Finds the devices of CDI specs.

use super::{DeviceCandidate, DeviceFinder};
use crate::{
    cdi::{self, CdiSpecDevice, HostNode},
    declaration::CdiDelivery,
    discovery::DiscoveredDevice,
    inventory::DeviceSpec,
    mount_allowlist::MAX_ENTRIES,
    registry::{
        follow_links::follow,
        scan::CdiSpecs,
        watch_target::{WatchDepth, nearest_dir},
    },
    resource_name::device_id,
    template::Template,
};
use machinist_base::{abs_path::AbsPath, error_chain::chain};
use machinist_rootfs::{FileKind, Stat};

impl DeviceFinder<'_> {
    pub(super) fn cdi(&mut self, kind: &str, specs: &CdiSpecs) {
        let offered = cdi::offered(&specs.files, kind);
        self.discovery
            .problems
            .extend(specs.problems.iter().cloned());
        self.discovery.problems.extend(offered.conflicts);
        let contested = offered.contested.into_iter();
        let contested = contested.map(|(name, why)| (device_id(&name), why));
        self.discovery.contested.extend(contested);
        for (name, device) in offered.devices {
            let mut discovered = DiscoveredDevice {
                wrong: device.unusable.clone(),
                ..DiscoveredDevice::default()
            };
            let mut recipe = self.declaration.recipe.clone();
            let named = format!("{kind}={name}");
            for node in &device.nodes {
                let missing = || format!("{node} of {named} does not exist");
                let found = self.specified(node, &mut discovered);
                if let Err(why) = found.and_then(|stat| stat.ok_or_else(missing)) {
                    discovered.wrong = Some(why);
                }
            }
            match self.declaration.cdi {
                // CDI names contain no braces.
                CdiDelivery::Names => recipe.cdi.extend(Template::new(&named).ok()),
                CdiDelivery::Edits => {
                    if let Err(why) = self.edits(&named, &device, &mut discovered, &mut recipe) {
                        discovered.wrong = Some(why);
                    }
                }
            }
            discovered.numa.sort_unstable();
            discovered.numa.dedup();
            discovered.recipe = Some(Box::new(recipe));
            self.candidates.push(DeviceCandidate {
                id: device_id(&name),
                discovered,
                ..DeviceCandidate::default()
            });
        }
    }

    /// Looks up a path of a spec and watches its directory for changes. The error is the reason why
    /// it cannot be looked up.
    fn specified(
        &mut self,
        path: &AbsPath,
        discovered: &mut DiscoveredDevice,
    ) -> Result<Option<Stat>, String> {
        // A node may be created after its spec, without a uevent.
        if let Some(parent) = path.parent() {
            let nearest = nearest_dir(&self.scanner.root, &parent);
            self.dirs.entry(nearest).or_insert(WatchDepth::Names);
        }
        let found = follow(&self.scanner.root, path).map_err(|error| chain(&error))?;
        let Some((_, stat)) = found else {
            return Ok(None);
        };
        if let Some(number) = stat.rdev {
            discovered
                .numa
                .extend(self.scanner.location(stat.kind, number).numa);
        }
        Ok(Some(stat))
    }

    /// Adds the edits of the CDI spec to the device spec; the error is the reason why that is not
    /// possible.
    fn edits(
        &mut self,
        named: &str,
        device: &CdiSpecDevice,
        discovered: &mut DiscoveredDevice,
        recipe: &mut DeviceSpec,
    ) -> Result<(), String> {
        let plain = device.plain()?;
        for node in &plain.nodes {
            let missing = || format!("{} of {named} does not exist", node.host);
            let stat = self
                .specified(&node.host, discovered)?
                .ok_or_else(missing)?;
            let (true, Some(number)) = (is_node(stat.kind), stat.rdev) else {
                let kind = stat.kind.as_str();
                return Err(format!(
                    "{} of {named} is a {kind}, not a device node",
                    node.host
                ));
            };
            let found = HostNode {
                block: stat.kind == FileKind::BlockDevice,
                number,
                mode: stat.mode,
                owner: (stat.uid, stat.gid),
            };
            if let Some(why) = node.differs(found) {
                return Err(format!("{named}: {why}"));
            }
        }
        for from in plain.mounted() {
            // If a mount's host path does not exist, runtimes create an empty directory there.
            let missing = || format!("{from}, which {named} mounts, does not exist");
            self.specified(from, discovered)?.ok_or_else(missing)?;
        }
        plain.add_to(recipe);
        match recipe.has_room() {
            true => Ok(()),
            false => Err(format!(
                "{named} and the declaration's container have more than {MAX_ENTRIES} nodes, mounts or variables"
            )),
        }
    }
}

const fn is_node(kind: FileKind) -> bool {
    matches!(kind, FileKind::CharDevice | FileKind::BlockDevice)
}
