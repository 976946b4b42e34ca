//! Checks the paths that a vendor may hand out, first against its file, then on the machine.
//!
//! A check is valid only for the moment, so device specs are checked on arrival and again before
//! each allocation. The contents of the vendor's own directories, inside its allowed prefixes, are
//! the vendor's responsibility.

use std::collections::HashMap;

use machinist_base::abs_path::AbsPath;
use machinist_device::{
    allocation::ContainerAllocation,
    mount_allowlist,
    registry::{MountPrefixes, PathObject, is_stable_name, path_for_container},
    vendor_declaration::Vendor,
};
use machinist_rootfs::Root;

/// The rules of one vendor for resources of one domain. Checks each path once.
pub(super) struct PathPolicy<'a> {
    /// `None`: nothing is checked on the machine.
    root: Option<&'a Root>,
    vendor: &'a Vendor,
    domain: &'a str,
    prefixes: Option<MountPrefixes>,
    nodes: HashMap<AbsPath, PathObject>,
    mounts: HashMap<AbsPath, Result<AbsPath, String>>,
}

impl<'a> PathPolicy<'a> {
    pub(super) fn new(root: Option<&'a Root>, vendor: &'a Vendor, domain: &'a str) -> Self {
        Self {
            root,
            vendor,
            domain,
            prefixes: None,
            nodes: HashMap::new(),
            mounts: HashMap::new(),
        }
    }

    /// Returns the path to hand out for the device node if a container may get it; the error is a
    /// sentence. `present` requires that it exists.
    pub(super) fn node(&mut self, path: &AbsPath, present: bool) -> Result<AbsPath, String> {
        if !path.as_str().starts_with("/dev/") || !self.vendor.may_pass_node(path) {
            let name = &self.vendor.name;
            return Err(format!(
                "{path} is not among the nodes that vendor {name} may hand out"
            ));
        }
        if !self.nodes.contains_key(path) {
            let found = self.look_at_node(path);
            self.nodes.insert(path.clone(), found);
        }
        let found = self.nodes.get(path);
        found.map_or(Ok(()), |found| found.check_object(path, present))?;
        Ok(match (found, self.root) {
            (Some(PathObject::Device(real)), Some(root)) => {
                path_for_container(root, path, real).clone()
            }
            _ => path.clone(),
        })
    }

    fn look_at_node(&self, path: &AbsPath) -> PathObject {
        let Some(root) = self.root else {
            return PathObject::Device(path.clone());
        };
        let found = PathObject::at(root, path);
        match &found {
            PathObject::Device(real)
                if !self.vendor.may_pass_node(real) && !is_stable_name(root, path) =>
            {
                let name = &self.vendor.name;
                PathObject::Other(format!(
                    "a link to {real}, which is not among the nodes that vendor {name} may hand out"
                ))
            }
            _ => found,
        }
    }

    /// Resolves links and checks whether a container may get the directory or file; the error is a
    /// sentence.
    pub(super) fn mount(&mut self, path: &AbsPath) -> Result<AbsPath, String> {
        if let Some(known) = self.mounts.get(path) {
            return known.clone();
        }
        let verdict = self.look_at_mount(path);
        self.mounts.insert(path.clone(), verdict.clone());
        verdict
    }

    /// Whether a container may write at `path`, which resolves to `real`: only in the vendor's own
    /// directory and in the prefixes that the machine's owner allowed. Everything else is software
    /// that the host runs.
    pub(super) fn writable(&self, path: &AbsPath, real: &AbsPath) -> Result<(), String> {
        if mount_allowlist::may_write(real, self.domain, &self.vendor.mounts) {
            return Ok(());
        }
        Err(format!("{path} must not be writable in containers"))
    }

    fn look_at_mount(&mut self, path: &AbsPath) -> Result<AbsPath, String> {
        let (name, further) = (&self.vendor.name, &self.vendor.mounts);
        if !mount_allowlist::may_mount(path, self.domain, further) {
            return Err(format!(
                "{path} must not be mounted into containers: {} may",
                mount_allowlist::mountable(self.domain)
            ));
        }
        let Some(root) = self.root else {
            return Ok(path.clone());
        };
        let prefixes = self
            .prefixes
            .get_or_insert_with(|| MountPrefixes::of(root, self.domain, further));
        prefixes.resolve_mount(root, path, &format!("vendor {name}"))
    }

    /// Checks a whole allocation against the machine's current state and replaces its paths by the
    /// checked ones; the error is a sentence.
    pub(super) fn granted(
        &mut self,
        mut grant: ContainerAllocation,
    ) -> Result<ContainerAllocation, String> {
        let path = |given: &str| AbsPath::new(given).map_err(|error| error.to_string());
        for node in &mut grant.nodes {
            node.host = self.node(&path(&node.host)?, true)?.to_string();
        }
        for mount in &mut grant.mounts {
            let from = path(&mount.host)?;
            let real = self.mount(&from)?;
            if !mount.read_only {
                self.writable(&from, &real)?;
            }
            mount.host = real.to_string();
        }
        grant.cdi.iter().try_for_each(|name| self.cdi(name))?;
        Ok(grant)
    }

    /// Checks whether a container may get the CDI device; the error is a sentence.
    pub(super) fn cdi(&self, device: &str) -> Result<(), String> {
        let name = device.split_once('=').map_or("", |(_, name)| name);
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
        if self.vendor.may_name(device) && !name.is_empty() && name.chars().all(plain) {
            return Ok(());
        }
        let vendor = &self.vendor.name;
        Err(format!(
            "{device:?} is not a CDI device that vendor {vendor} may use"
        ))
    }
}
