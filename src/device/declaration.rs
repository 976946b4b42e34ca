//! A declaration: one YAML file that names devices and how containers get them.
//!
//! Everything of the documented schema is read strictly. What this version cannot do is refused
//! by name, so that no file is half obeyed.

mod check;
mod written;

use std::collections::BTreeMap;

pub use super::document::{API_VERSION, LARGEST};

use super::{
    Refusal, document,
    glob::Glob,
    inventory::{Asks, Device, Recipe, Resource, Share},
    name::ResourceName,
    source::Source,
};

/// What the file must say it is.
pub const KIND: &str = "DeviceDeclaration";

/// What the machine's owner lets declarations do beyond the defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowances {
    /// Further host directories that may be mounted into containers.
    pub mounts: Vec<crate::path::AbsPath>,
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
    /// Device nodes or links to them, all below `/dev`.
    pub paths: Vec<Glob>,
    /// How devices are shared.
    pub share: Share,
    /// What a container gets.
    pub recipe: Recipe,
    /// Where devices are.
    pub numa: Numa,
    /// Units that use the devices, to be stopped before the machine is changed or goes down.
    pub stop_units: Vec<String>,
}

impl Declaration {
    /// What it offers when these are its devices.
    pub fn offer(&self, source: Source, devices: BTreeMap<String, Device>) -> Resource {
        Resource {
            name: self.resource.clone(),
            source,
            share: self.share,
            recipe: self.recipe.clone(),
            asks: Asks::default(),
            devices,
        }
    }
}

/// Reads one declaration. `file` is named in refusals; all that can be found are returned.
pub fn parse(file: &str, text: &str, allowances: &Allowances) -> Result<Declaration, Vec<Refusal>> {
    document::parse(file, text, |written| check::check(written, allowances))
}

#[cfg(test)]
mod tests;
