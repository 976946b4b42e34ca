//! What a vendor may hand out: paths held against its file, then looked at on the machine.
//!
//! A look is good for the moment only, so recipes are looked at when they are taken and again whenever they
//! answer for a container. What a vendor's own directories hold later is its word, inside the prefixes that
//! it was given.

use std::collections::HashMap;

use crate::{
    device::{
        allocation::Grant,
        registry::{Node, Prefixes, handed_out, is_stable_name},
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
    mounts: HashMap<AbsPath, Result<AbsPath, String>>,
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

    /// The path to hand out for the node, when a container may get it; says in words why not. `present` asks that it is
    /// there.
    pub(super) fn node(&mut self, path: &AbsPath, present: bool) -> Result<AbsPath, String> {
        if !path.as_str().starts_with("/dev/") || !self.vendor.may_lend(path) {
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
        found.map_or(Ok(()), |found| found.verdict(path, present))?;
        Ok(match (found, self.root) {
            (Some(Node::Device(real)), Some(root)) => handed_out(root, path, real).clone(),
            _ => path.clone(),
        })
    }

    fn look_at_node(&self, path: &AbsPath) -> Node {
        let Some(root) = self.root else {
            return Node::Device(path.clone());
        };
        let found = Node::at(root, path);
        match &found {
            Node::Device(real) if !self.vendor.may_lend(real) && !is_stable_name(root, path) => {
                let name = &self.vendor.name;
                Node::Other(format!(
                    "a link to {real}, which is not among the nodes that vendor {name} may hand out"
                ))
            }
            _ => found,
        }
    }

    /// Where the directory or file is, links followed, when a container may get it; says in words why not.
    pub(super) fn mount(&mut self, path: &AbsPath) -> Result<AbsPath, String> {
        if let Some(known) = self.mounts.get(path) {
            return known.clone();
        }
        let verdict = self.look_at_mount(path);
        self.mounts.insert(path.clone(), verdict.clone());
        verdict
    }

    /// Whether a container may write at `path`, which is `real` when links are followed: only in the vendor's own
    /// directory and in what the machine's owner named. The rest is software that the host runs.
    pub(super) fn writable(&self, path: &AbsPath, real: &AbsPath) -> Result<(), String> {
        if rules::may_write(real, self.domain, &self.vendor.mounts) {
            return Ok(());
        }
        Err(format!("{path} must not be writable in containers"))
    }

    fn look_at_mount(&mut self, path: &AbsPath) -> Result<AbsPath, String> {
        let (name, further) = (&self.vendor.name, &self.vendor.mounts);
        if !rules::may_mount(path, self.domain, further) {
            return Err(format!(
                "{path} must not be mounted into containers: {} may",
                rules::mountable(self.domain)
            ));
        }
        let Some(root) = self.root else {
            return Ok(path.clone());
        };
        let prefixes = self
            .prefixes
            .get_or_insert_with(|| Prefixes::of(root, self.domain, further));
        prefixes.look_at(root, path, &format!("vendor {name}"))
    }

    /// All of this with the paths that were judged, when a container may get it as it is now; says in words
    /// why not.
    pub(super) fn granted(&mut self, mut grant: Grant) -> Result<Grant, String> {
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
