//! A vendor: one YAML file by which the machine's owner lets a program offer devices, and within
//! which bounds.
//!
//! What a vendor may do is written here and nowhere else. A name that no file declares has no socket
//! and no directory.

mod book;
mod check;
mod written;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

pub use self::book::{Book, Files};
use super::{Refusal, document, glob::Glob, inventory::Serve, name::ResourceName};
use crate::path::AbsPath;

/// What the file must say it is.
pub const KIND: &str = "DeviceVendor";

/// Where vendors are declared; the first directory wins a name that both declare.
pub const VENDOR_DIRS: [&str; 3] = [
    "/etc/machinist/vendors.d",
    "/run/machinist/vendors.d",
    // Where the pod of a node has what its cluster says.
    "/run/machinist/cluster/vendors.d",
];

/// How a vendor reaches the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Connects {
    /// A program of its own that speaks the vendor API.
    Program,
    /// An unmodified device plugin that takes the agent for the kubelet.
    Plugin,
}

/// How much a vendor may offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Devices of all its resources together.
    pub devices: usize,
    /// Resources.
    pub resources: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            devices: 1000,
            resources: 8,
        }
    }
}

/// Resources that may be claimed: one name, or all that begin alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim(String);

impl Claim {
    /// Whether it covers `name`.
    pub fn covers(&self, name: &ResourceName) -> bool {
        match self.0.strip_suffix('*') {
            Some(start) => name.as_str().starts_with(start),
            None => name.as_str() == self.0,
        }
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A valid declaration of a vendor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vendor {
    /// Its name, which is also that of its directories.
    pub name: String,
    /// How it reaches the agent.
    pub connects: Connects,
    /// How pods come by what it offers.
    pub serve: Serve,
    /// Users that may connect, or own the plugin's socket.
    pub users: Vec<u32>,
    /// The group that its directory and its socket belong to.
    pub group: u32,
    /// What it may claim.
    pub resources: Vec<Claim>,
    /// Device nodes that it may hand out.
    pub devices: Vec<Glob>,
    /// Host directories that it may mount into containers beside the default ones.
    pub mounts: Vec<AbsPath>,
    /// Kinds of CDI devices that it may name, such as `acme.dev/gpu`.
    pub cdi: Vec<String>,
    /// How long its devices stay as they are while it is away.
    pub grace: Duration,
    /// How long it may take to answer one question.
    pub deadline: Duration,
    /// How much it may offer.
    pub limits: Limits,
}

impl Vendor {
    /// Whether it may offer the resource.
    pub fn may_claim(&self, name: &ResourceName) -> bool {
        self.resources.iter().any(|claim| claim.covers(name))
    }

    /// Whether it may hand out the node, by its path alone.
    pub fn may_lend(&self, node: &AbsPath) -> bool {
        self.devices.iter().any(|glob| glob.matches(node))
    }

    /// Whether processes of this user may speak for it.
    pub fn may_connect(&self, user: u32) -> bool {
        self.users.contains(&user)
    }

    /// Whether it may name the CDI device, written `vendor/class=name`.
    pub fn may_name(&self, device: &str) -> bool {
        let kind = device.split_once('=').map(|(kind, _)| kind);
        kind.is_some_and(|kind| self.cdi.iter().any(|allowed| allowed == kind))
    }
}

/// All vendors of the machine, and what is wrong with their files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vendors {
    /// By name.
    pub by_name: BTreeMap<String, Arc<Vendor>>,
    /// Told to people.
    pub problems: Vec<Refusal>,
    /// A file is wrong, and nobody knows what it said when it was good: whoever is not here may be declared in
    /// it.
    pub blind: bool,
}

/// Reads one declaration. `file` is named in refusals; all that can be found are returned.
pub fn parse(file: &str, text: &str) -> Result<Vendor, Vec<Refusal>> {
    document::parse(KIND, file, text, check::check)
}

#[cfg(test)]
mod tests;
