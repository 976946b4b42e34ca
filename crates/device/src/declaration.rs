//! Device declarations: YAML files that select devices and define what containers get with them.
//!
//! The documented schema is read strictly. A file that uses anything this version does not support is
//! refused as a whole, with the name of the field.

mod matcher;
mod schema;
mod validate;

use std::collections::BTreeMap;

pub use super::yaml::{API_VERSION, MAX_DOCUMENT_BYTES};
pub use matcher::{
    DeviceSelector, GlobWord, GroupBy, HardwareSelector, HealthProbe, PciSelector,
    SubsystemSelector, UsbSelector,
};

use super::{
    Refusal, SmallMap,
    glob::Glob,
    inventory::{BackendOptions, Device, DeviceSpec, Resource, ServeMode, Share},
    quantity::Quantity,
    resource_name::ResourceName,
    source::ResourceSource,
    taint::NodeTaint,
    yaml,
};
use machinist_base::abs_path::AbsPath;

/// The `kind` of such files.
pub const KIND: &str = "DeviceDeclaration";

/// What the administrator allows to declarations beyond the defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowances {
    /// Further host directories that may be mounted into containers.
    pub mounts: Vec<AbsPath>,
    /// How devices of CDI specs are passed to containers by the device plugin API.
    pub cdi: CdiDelivery,
}

/// How a device of a CDI spec is passed to the container runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CdiDelivery {
    /// By its CDI name: the runtime reads the spec.
    #[default]
    Names,
    /// By the edits of its spec, for a kubelet or a runtime without CDI support.
    Edits,
}

/// The NUMA nodes that devices are near to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NumaAffinity {
    /// Those that sysfs reports for each device.
    #[default]
    Auto,
    /// Report none.
    None,
    /// These, instead of those in sysfs.
    Fixed(Vec<u32>),
}

/// A valid declaration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// Its name, for users.
    pub name: String,
    /// The resource it offers.
    pub resource: ResourceName,
    /// The selectors: a device must match any of them.
    pub matches: Vec<DeviceSelector>,
    /// How nodes are grouped into devices.
    pub group: Option<GroupBy>,
    /// The kubelet API by which pods get the devices.
    pub serve: ServeMode,
    /// How devices are shared.
    pub share: Share,
    /// The device spec.
    pub recipe: DeviceSpec,
    /// How devices of CDI specs are passed to the runtime; with DRA always by name.
    pub cdi: CdiDelivery,
    /// Each device's capacities, which claims may request.
    pub capacity: SmallMap<Quantity>,
    /// The NUMA nodes of the devices.
    pub numa: NumaAffinity,
    /// The health probes of each device.
    pub probes: Vec<HealthProbe>,
    /// Units that use the devices and must be stopped before the machine is changed or goes down.
    pub stop_units: Vec<String>,
    /// The taint for nodes that have the resource.
    pub taint: Option<NodeTaint>,
}

impl Declaration {
    /// Whether it selects this path by its full name, not by a pattern.
    pub fn names(&self, path: &AbsPath) -> bool {
        self.paths().any(|glob| glob.literal() == Some(path))
    }

    /// The paths and path patterns of entries that have nothing else.
    pub fn paths(&self) -> impl Iterator<Item = &Glob> {
        self.matches.iter().filter_map(|entry| match entry {
            DeviceSelector::Path(glob) => Some(glob),
            DeviceSelector::Hardware(_) | DeviceSelector::Cdi(_) => None,
        })
    }

    /// Whether it selects by more than paths in `/dev`.
    pub fn asks_hardware(&self) -> bool {
        self.group.is_some()
            || self
                .matches
                .iter()
                .any(|one| matches!(one, DeviceSelector::Hardware(_)))
    }

    /// Units whose state determines the devices' health.
    pub fn probed_units(&self) -> impl Iterator<Item = &str> {
        self.probes.iter().filter_map(|probe| match probe {
            HealthProbe::Unit(unit) => Some(unit.as_str()),
            HealthProbe::Sysfs { .. } => None,
        })
    }

    /// The resource that it offers with these devices.
    pub fn offer(&self, source: ResourceSource, devices: BTreeMap<String, Device>) -> Resource {
        Resource {
            name: self.resource.clone(),
            source,
            serve: self.serve,
            share: self.share,
            recipe: self.recipe.clone(),
            asks: BackendOptions::default(),
            devices,
        }
    }
}

/// Parses a declaration. Errors name `file`; all errors that can be found are returned.
pub fn parse(file: &str, text: &str, allowances: &Allowances) -> Result<Declaration, Vec<Refusal>> {
    yaml::parse(KIND, file, text, |written| {
        validate::check(written, allowances)
    })
}

#[cfg(test)]
mod tests;
