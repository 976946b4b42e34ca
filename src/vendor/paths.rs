//! What a vendor may hand out: paths held against its file, then looked at on the machine.
//!
//! A look is good for the moment only, so recipes are looked at when they are taken and again whenever they
//! answer for a container. What a vendor's own directories hold later is its word, inside the prefixes that
//! it was given.

use std::collections::HashMap;

use crate::{
    device::{
        allocation::Grant,
        registry::{Node, Prefixes, follow},
        rules,
        vendor::Vendor,
    },
    path::AbsPath,
    root::Root,
};

/// The bounds of one vendor for resources of one domain. Looks once at each path.
pub(super) struct Bounds<'a> {
    /// None: nothing is looked at.
    root: Option<&'a Root>,
    vendor: &'a Vendor,
    domain: &'a str,
    prefixes: Option<Prefixes>,
    nodes: HashMap<AbsPath, Node>,
    mounts: HashMap<AbsPath, Result<(), String>>,
}

impl<'a> Bounds<'a> {
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

    /// Whether a container may get the node; says in words why not. `present` asks that it is there.
    pub(super) fn node(&mut self, path: &AbsPath, present: bool) -> Result<(), String> {
        if !path.as_str().starts_with("/dev/") || !self.vendor.may_lend(path) {
            let name = &self.vendor.name;
            return Err(format!(
                "{path} is not among the nodes that vendor {name} may hand out"
            ));
        }
        if !self.nodes.contains_key(path) {
            let found = self.root.map_or(Node::Device, |root| Node::at(root, path));
            self.nodes.insert(path.clone(), found);
        }
        let found = self.nodes.get(path);
        found.map_or(Ok(()), |found| found.verdict(path, present))
    }

    /// Whether a container may get the directory or file; says in words why not.
    pub(super) fn mount(&mut self, path: &AbsPath) -> Result<(), String> {
        if let Some(known) = self.mounts.get(path) {
            return known.clone();
        }
        let verdict = self.look_at_mount(path);
        self.mounts.insert(path.clone(), verdict.clone());
        verdict
    }

    /// Whether a container may write there: only in the vendor's own directory and in what the machine's owner
    /// named. The rest is software that the host runs.
    pub(super) fn writable(&self, path: &AbsPath) -> Result<(), String> {
        let real = self.root.and_then(|root| follow(root, path).ok().flatten());
        let real = real.map_or_else(|| path.clone(), |(real, _)| real);
        if rules::may_write(&real, self.domain, &self.vendor.mounts) {
            return Ok(());
        }
        Err(format!("{path} must not be writable in containers"))
    }

    fn look_at_mount(&mut self, path: &AbsPath) -> Result<(), String> {
        let (name, further) = (&self.vendor.name, &self.vendor.mounts);
        if !rules::may_mount(path, self.domain, further) {
            return Err(format!(
                "{path} must not be mounted into containers: {} may",
                rules::mountable(self.domain)
            ));
        }
        let Some(root) = self.root else {
            return Ok(());
        };
        let prefixes = self
            .prefixes
            .get_or_insert_with(|| Prefixes::of(root, self.domain, further));
        prefixes.look_at(root, path, &format!("vendor {name}"))
    }

    /// Whether a container may get all of this, as it is now; says in words why not.
    pub(super) fn granted(&mut self, grant: &Grant) -> Result<(), String> {
        let path = |given: &str| AbsPath::new(given).map_err(|error| error.to_string());
        for node in &grant.nodes {
            self.node(&path(&node.host)?, true)?;
        }
        for mount in &grant.mounts {
            let from = path(&mount.host)?;
            self.mount(&from)?;
            if !mount.read_only {
                self.writable(&from)?;
            }
        }
        grant.cdi.iter().try_for_each(|name| self.cdi(name))
    }

    /// Whether a container may get the CDI device; says in words why not.
    pub(super) fn cdi(&self, device: &str) -> Result<(), String> {
        let name = device.split_once('=').map_or("", |(_, name)| name);
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
        if self.vendor.may_name(device) && !name.is_empty() && name.chars().all(plain) {
            return Ok(());
        }
        let vendor = &self.vendor.name;
        Err(format!(
            "{device:?} is no CDI device that vendor {vendor} may name"
        ))
    }
}
