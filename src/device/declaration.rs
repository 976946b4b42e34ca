//! Device declarations: YAML files that select devices and define what containers get with them.
//!
//! The documented schema is read strictly. A file that uses anything this version does not support is
//! refused as a whole, with the name of the field.

mod check;
mod entry;
mod written;

use std::collections::BTreeMap;

pub use super::document::{API_VERSION, LARGEST};
pub use entry::{Entry, GroupBy, Hardware, Pci, Probe, Subsystem, Usb, Word};

use super::{
    Pairs, Refusal, document,
    glob::Glob,
    inventory::{Asks, Device, Recipe, Resource, Serve, Share},
    name::ResourceName,
    quantity::Quantity,
    source::Source,
    taint::NodeTaint,
};
use crate::path::AbsPath;

/// The `kind` of such files.
pub const KIND: &str = "DeviceDeclaration";

/// What the administrator allows to declarations beyond the defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowances {
    /// Further host directories that may be mounted into containers.
    pub mounts: Vec<AbsPath>,
    /// How devices of CDI specs are passed to containers by the device plugin API.
    pub cdi: CdiAnswer,
}

/// How a device of a CDI spec is passed to the container runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CdiAnswer {
    /// By its CDI name: the runtime reads the spec.
    #[default]
    Names,
    /// By the edits of its spec, for a kubelet or a runtime without CDI support.
    Edits,
}

/// The NUMA nodes that devices are near to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Numa {
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
    pub matches: Vec<Entry>,
    /// How nodes are grouped into devices.
    pub group: Option<GroupBy>,
    /// The kubelet API by which pods get the devices.
    pub serve: Serve,
    /// How devices are shared.
    pub share: Share,
    /// The device spec.
    pub recipe: Recipe,
    /// How devices of CDI specs are passed to the runtime; with DRA always by name.
    pub cdi: CdiAnswer,
    /// Each device's capacities, which claims may request.
    pub capacity: Pairs<Quantity>,
    /// The NUMA nodes of the devices.
    pub numa: Numa,
    /// The health probes of each device.
    pub probes: Vec<Probe>,
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
            Entry::Path(glob) => Some(glob),
            Entry::Hardware(_) | Entry::Cdi(_) => None,
        })
    }

    /// Whether it selects by more than paths in `/dev`.
    pub fn asks_hardware(&self) -> bool {
        self.group.is_some()
            || self
                .matches
                .iter()
                .any(|one| matches!(one, Entry::Hardware(_)))
    }

    /// Units whose state determines the devices' health.
    pub fn probed_units(&self) -> impl Iterator<Item = &str> {
        self.probes.iter().filter_map(|probe| match probe {
            Probe::Unit(unit) => Some(unit.as_str()),
            Probe::Sysfs { .. } => None,
        })
    }

    /// The resource that it offers with these devices.
    pub fn offer(&self, source: Source, devices: BTreeMap<String, Device>) -> Resource {
        Resource {
            name: self.resource.clone(),
            source,
            serve: self.serve,
            share: self.share,
            recipe: self.recipe.clone(),
            asks: Asks::default(),
            devices,
        }
    }
}

/// Parses a declaration. Errors name `file`; all errors that can be found are returned.
pub fn parse(file: &str, text: &str, allowances: &Allowances) -> Result<Declaration, Vec<Refusal>> {
    document::parse(KIND, file, text, |written| {
        check::check(written, allowances)
    })
}

#[cfg(test)]
mod tests;
