//! Vendor declarations: YAML files in which the administrator allows a program to offer devices,
//! within limits.
//!
//! These files alone define what a vendor may do. A vendor without a file has no socket and no
//! directory.

mod schema;
mod validate;
mod vendor_registry;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

pub use self::vendor_registry::{VendorFiles, VendorRegistry};
use super::{Refusal, glob::Glob, inventory::ServeMode, resource_name::ResourceName, yaml};
use machinist_base::abs_path::AbsPath;

/// The `kind` of such files.
pub const KIND: &str = "DeviceVendor";

/// The directories of vendor files; if two files declare a name, the first directory wins.
pub const VENDOR_DIRS: [&str; 3] = [
    "/etc/machinist/vendors.d",
    "/run/machinist/vendors.d",
    // The node pod writes the vendor files from the cluster here.
    "/run/machinist/cluster/vendors.d",
];

/// How a vendor connects to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum VendorTransport {
    /// By a device driver that uses the vendor API.
    Program,
    /// By an unmodified device plugin, for which the agent acts as the kubelet.
    Plugin,
}

/// The limits on a vendor's offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VendorLimits {
    /// The maximum number of devices of all its resources together.
    pub devices: usize,
    /// The maximum number of resources.
    pub resources: usize,
}

impl Default for VendorLimits {
    fn default() -> Self {
        Self {
            devices: 1000,
            resources: 8,
        }
    }
}

/// Resource names that a vendor may offer: one name, or a prefix followed by `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceNamePattern(String);

impl ResourceNamePattern {
    /// Whether it matches `name`.
    pub fn covers(&self, name: &ResourceName) -> bool {
        match self.0.strip_suffix('*') {
            Some(start) => name.as_str().starts_with(start),
            None => name.as_str() == self.0,
        }
    }

    /// The pattern as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A valid vendor declaration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vendor {
    /// Its name, which is also the name of its directories.
    pub name: String,
    /// How it connects to the agent.
    pub connects: VendorTransport,
    /// The kubelet API by which pods get its devices.
    pub serve: ServeMode,
    /// The user ids that may connect, or own the plugin's socket.
    pub users: Vec<u32>,
    /// The group id of its directory and its socket.
    pub group: u32,
    /// The resource names that it may offer.
    pub resources: Vec<ResourceNamePattern>,
    /// The device nodes that it may pass to containers.
    pub devices: Vec<Glob>,
    /// Host directories that it may mount into containers in addition to the default ones.
    pub mounts: Vec<AbsPath>,
    /// CDI kinds whose devices it may name, such as `acme.dev/gpu`.
    pub cdi: Vec<String>,
    /// How long its devices stay unchanged while it is disconnected.
    pub grace: Duration,
    /// The deadline of each call.
    pub deadline: Duration,
    /// The limits on its offers.
    pub limits: VendorLimits,
}

impl Vendor {
    /// Whether it may offer the resource.
    pub fn may_claim(&self, name: &ResourceName) -> bool {
        self.resources.iter().any(|claim| claim.covers(name))
    }

    /// Whether it may pass the node to containers, judged by the path alone.
    pub fn may_pass_node(&self, node: &AbsPath) -> bool {
        self.devices.iter().any(|glob| glob.matches(node))
    }

    /// Whether processes of this user may connect as this vendor.
    pub fn may_connect(&self, user: u32) -> bool {
        self.users.contains(&user)
    }

    /// Whether it may name the CDI device, written `vendor/class=name`.
    pub fn may_name(&self, device: &str) -> bool {
        let kind = device.split_once('=').map(|(kind, _)| kind);
        kind.is_some_and(|kind| self.cdi.iter().any(|allowed| allowed == kind))
    }
}

/// All vendors of the machine, and the problems with their files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vendors {
    /// Valid vendors, by name.
    pub by_name: BTreeMap<String, Arc<Vendor>>,
    /// Problems for users.
    pub problems: Vec<Refusal>,
    /// Whether a file is invalid and its last valid content is not known: it may declare a vendor
    /// that is not in `by_name`.
    pub blind: bool,
}

/// Parses a vendor declaration. Errors name `file`; all errors that can be found are returned.
pub fn parse(file: &str, text: &str) -> Result<Vendor, Vec<Refusal>> {
    yaml::parse(KIND, file, text, validate::check)
}

#[cfg(test)]
mod tests;
