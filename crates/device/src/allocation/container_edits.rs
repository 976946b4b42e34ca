//! Builds container allocations from device specs.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{
    AllocatedMount, AllocatedNode, AllocationError, ContainerAllocation, joined_value::JoinedValue,
};
use crate::{
    inventory::{Device, DeviceNode, DeviceNodeSpec, Resource},
    template::Template,
};

/// A container path that is in use, and the host path that uses it.
type TakenPath = (String, String);

/// An allocation in the making. It finds what it has already by name, so that the time grows with
/// the number of entries only: a container may request all devices of a large resource.
#[derive(Debug, Default)]
pub(crate) struct AllocationBuilder {
    nodes: Vec<AllocatedNode>,
    mounts: Vec<AllocatedMount>,
    cdi: Vec<String>,
    env: BTreeMap<String, JoinedValue>,
    annotations: BTreeMap<String, JoinedValue>,
    /// Positions in `nodes` by path in the container.
    node_at: HashMap<String, usize>,
    /// Positions in `mounts` by path in the container.
    mount_at: HashMap<String, usize>,
    cdi_names: HashSet<String>,
}

impl AllocationBuilder {
    /// Adds the edits for this device.
    pub(super) fn add(
        &mut self,
        resource: &Resource,
        id: &str,
        device: &Device,
    ) -> Result<(), AllocationError> {
        let recipe = device.recipe.as_deref().unwrap_or(&resource.recipe);
        let taken = |taken| same_place(resource, id, taken);
        for wanted in &recipe.nodes {
            for node in nodes_of(wanted, id, device) {
                self.add_node(node).map_err(taken)?;
            }
        }
        for wanted in &recipe.mounts {
            let mount = AllocatedMount {
                host: wanted.from.to_string(),
                inside: wanted.to.to_string(),
                read_only: wanted.read_only,
            };
            self.add_mount(mount).map_err(taken)?;
        }
        let inside: Vec<&str> = device.nodes.iter().map(|one| one.inside.as_str()).collect();
        for (into, from) in [
            (&mut self.env, &recipe.env),
            (&mut self.annotations, &recipe.annotations),
        ] {
            for (key, template) in from {
                for value in filled(template, id, &inside) {
                    join_value(into, key, &value);
                }
            }
        }
        for template in &recipe.cdi {
            self.add_cdi(template.fill(id, inside.first().copied().unwrap_or_default()));
        }
        Ok(())
    }

    /// Adds the allocation of another resource. `id` is the device named in the error.
    pub(crate) fn join(
        &mut self,
        resource: &Resource,
        id: Option<&String>,
        other: ContainerAllocation,
    ) -> Result<(), AllocationError> {
        let taken = |taken| same_place(resource, id.map_or("", String::as_str), taken);
        for node in other.nodes {
            self.add_node(node).map_err(taken)?;
        }
        for mount in other.mounts {
            self.add_mount(mount).map_err(taken)?;
        }
        for (into, from) in [
            (&mut self.env, other.env),
            (&mut self.annotations, other.annotations),
        ] {
            for (key, value) in from {
                join_value(into, &key, &value);
            }
        }
        for name in other.cdi {
            self.add_cdi(name);
        }
        Ok(())
    }

    /// The finished allocation.
    pub(crate) fn build(self) -> ContainerAllocation {
        let text = |joined: BTreeMap<String, JoinedValue>| {
            let all = joined.into_iter();
            all.map(|(key, value)| (key, value.into_text())).collect()
        };
        ContainerAllocation {
            nodes: self.nodes,
            mounts: self.mounts,
            env: text(self.env),
            annotations: text(self.annotations),
            cdi: self.cdi,
        }
    }

    /// Adds a node unless it is there already: companion nodes such as /dev/acmectl are part of
    /// every device and are added once.
    fn add_node(&mut self, node: AllocatedNode) -> Result<(), TakenPath> {
        let known = self.node_at.get(&node.inside);
        match known.and_then(|at| self.nodes.get(*at)) {
            Some(have) if have.host == node.host => {}
            Some(have) => return Err((node.inside, have.host.clone())),
            None => {
                self.node_at.insert(node.inside.clone(), self.nodes.len());
                self.nodes.push(node);
            }
        }
        Ok(())
    }

    fn add_mount(&mut self, mount: AllocatedMount) -> Result<(), TakenPath> {
        let known = self.mount_at.get(&mount.inside);
        match known.and_then(|at| self.mounts.get_mut(*at)) {
            // The mount is writable if any device needs it writable: all devices are in one
            // container.
            Some(have) if have.host == mount.host => have.read_only &= mount.read_only,
            Some(have) => return Err((mount.inside, have.host.clone())),
            None => {
                self.mount_at
                    .insert(mount.inside.clone(), self.mounts.len());
                self.mounts.push(mount);
            }
        }
        Ok(())
    }

    fn add_cdi(&mut self, name: String) {
        if self.cdi_names.insert(name.clone()) {
            self.cdi.push(name);
        }
    }
}

fn same_place(resource: &Resource, id: &str, (inside, other): TakenPath) -> AllocationError {
    AllocationError::SamePlace {
        resource: resource.name.clone(),
        id: id.to_owned(),
        inside,
        other,
    }
}

fn join_value(into: &mut BTreeMap<String, JoinedValue>, key: &str, value: &str) {
    match into.get_mut(key) {
        Some(joined) => joined.add(value),
        None => drop(into.insert(key.to_owned(), JoinedValue::new(value))),
    }
}

/// The filled-in template: one value, or one for each node if the template names nodes.
fn filled(template: &Template, id: &str, nodes: &[&str]) -> Vec<String> {
    if template.names_node() {
        nodes.iter().map(|node| template.fill(id, node)).collect()
    } else {
        vec![template.fill(id, "")]
    }
}

fn nodes_of(wanted: &DeviceNodeSpec, id: &str, device: &Device) -> Vec<AllocatedNode> {
    let of = |host: String, node: Option<&DeviceNode>| {
        let name = node.map_or("", |node| node.inside.as_str());
        AllocatedNode {
            inside: match (&wanted.inside, node) {
                (Some(inside), _) => inside.fill(id, name),
                // Only the exact path of the node is mapped to its path in containers; other paths
                // are the same in the container.
                (None, Some(node)) if host == node.host.as_str() => name.to_owned(),
                (None, _) => host.clone(),
            },
            host,
            permissions: wanted.permissions.clone(),
        }
    };
    if wanted.path.names_node() {
        let nodes = device.nodes.iter();
        nodes
            .map(|node| of(wanted.path.fill(id, node.host.as_str()), Some(node)))
            .collect()
    } else {
        vec![of(wanted.path.fill(id, ""), device.nodes.first())]
    }
}
