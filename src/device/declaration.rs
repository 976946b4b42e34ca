//! A declaration: one YAML file that names devices and how containers get them.
//!
//! Everything of the documented schema is read strictly. What this version cannot do is refused
//! by name, so that no file is half obeyed.

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

/// What the file must say it is.
pub const KIND: &str = "DeviceDeclaration";

/// What the machine's owner lets declarations do beyond the defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowances {
    /// Further host directories that may be mounted into containers.
    pub mounts: Vec<AbsPath>,
    /// How devices of CDI specs are handed out to containers that ask by number.
    pub cdi: CdiAnswer,
}

/// What the kubelet is answered for a device of a CDI spec.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CdiAnswer {
    /// Its name: the runtime reads the spec.
    #[default]
    Names,
    /// What the spec says of it, for a kubelet or a runtime that knows no names.
    Edits,
}

/// Which NUMA nodes devices are near to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Numa {
    /// What sysfs says of each.
    #[default]
    Auto,
    /// Say nothing.
    None,
    /// These, whatever sysfs says.
    Fixed(Vec<u32>),
}

/// A valid declaration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// Its own name, for people.
    pub name: String,
    /// The resource it offers.
    pub resource: ResourceName,
    /// What it finds: whatever any of these does.
    pub matches: Vec<Entry>,
    /// What makes several nodes one device.
    pub group: Option<GroupBy>,
    /// How pods come by them.
    pub serve: Serve,
    /// How devices are shared.
    pub share: Share,
    /// What a container gets.
    pub recipe: Recipe,
    /// How devices of CDI specs are handed out; by claim always by name.
    pub cdi: CdiAnswer,
    /// How much each device has of what claims may ask for.
    pub capacity: Pairs<Quantity>,
    /// Where devices are.
    pub numa: Numa,
    /// What each device must be besides there.
    pub probes: Vec<Probe>,
    /// Units that use the devices, to be stopped before the machine is changed or goes down.
    pub stop_units: Vec<String>,
    /// Nodes that have the resource bear it.
    pub taint: Option<NodeTaint>,
}

impl Declaration {
    /// Whether it has this path by its full name, and not by a pattern.
    pub fn names(&self, path: &AbsPath) -> bool {
        self.paths().any(|glob| glob.literal() == Some(path))
    }

    /// The paths that are named as such.
    pub fn paths(&self) -> impl Iterator<Item = &Glob> {
        self.matches.iter().filter_map(|entry| match entry {
            Entry::Path(glob) => Some(glob),
            Entry::Hardware(_) | Entry::Cdi(_) => None,
        })
    }

    /// Whether it goes by more than names in `/dev`.
    pub fn asks_hardware(&self) -> bool {
        self.group.is_some()
            || self
                .matches
                .iter()
                .any(|one| matches!(one, Entry::Hardware(_)))
    }

    /// Units whose state is a device's health.
    pub fn probed_units(&self) -> impl Iterator<Item = &str> {
        self.probes.iter().filter_map(|probe| match probe {
            Probe::Unit(unit) => Some(unit.as_str()),
            Probe::Sysfs { .. } => None,
        })
    }

    /// What it offers when these are its devices.
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

/// Reads one declaration. `file` is named in refusals; all that can be found are returned.
pub fn parse(file: &str, text: &str, allowances: &Allowances) -> Result<Declaration, Vec<Refusal>> {
    document::parse(KIND, file, text, |written| {
        check::check(written, allowances)
    })
}

#[cfg(test)]
mod tests;
