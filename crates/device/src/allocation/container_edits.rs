//! Builds container allocations from device specs.

use std::collections::BTreeMap;

use super::{AllocatedMount, AllocatedNode, AllocationError, ContainerAllocation};
use crate::{
    inventory::{Device, DeviceNode, DeviceNodeSpec, MountSpec, Resource},
    template::Template,
};

/// Adds the edits for this device to the allocation.
pub(super) fn add(
    grant: &mut ContainerAllocation,
    resource: &Resource,
    id: &str,
    device: &Device,
) -> Result<(), AllocationError> {
    let recipe = device.recipe.as_deref().unwrap_or(&resource.recipe);
    let taken = |(inside, other): (String, String)| AllocationError::SamePlace {
        resource: resource.name.clone(),
        id: id.to_owned(),
        inside,
        other,
    };
    for wanted in &recipe.nodes {
        for node in nodes_of(wanted, id, device) {
            add_node(&mut grant.nodes, node).map_err(taken)?;
        }
    }
    for wanted in &recipe.mounts {
        add_mount(&mut grant.mounts, wanted).map_err(taken)?;
    }
    let inside: Vec<&str> = device.nodes.iter().map(|one| one.inside.as_str()).collect();
    for (into, from) in [
        (&mut grant.env, &recipe.env),
        (&mut grant.annotations, &recipe.annotations),
    ] {
        for (key, template) in from {
            for value in filled(template, id, &inside) {
                join_value(into, key, value);
            }
        }
    }
    for template in &recipe.cdi {
        let name = template.fill(id, inside.first().copied().unwrap_or_default());
        if !grant.cdi.contains(&name) {
            grant.cdi.push(name);
        }
    }
    Ok(())
}

/// Adds the allocation of another resource. Fails with the container path that both use and the host
/// path that has it already.
pub(super) fn join(
    grant: &mut ContainerAllocation,
    other: ContainerAllocation,
) -> Result<(), (String, String)> {
    for node in other.nodes {
        add_node(&mut grant.nodes, node)?;
    }
    for mount in other.mounts {
        place_mount(&mut grant.mounts, mount)?;
    }
    for (into, from) in [
        (&mut grant.env, other.env),
        (&mut grant.annotations, other.annotations),
    ] {
        for (key, value) in from {
            join_value(into, &key, value);
        }
    }
    for name in other.cdi {
        if !grant.cdi.contains(&name) {
            grant.cdi.push(name);
        }
    }
    Ok(())
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

/// Adds a node unless it is there already: companion nodes such as /dev/acmectl are part of every
/// device and are added once. Fails with the container path and the host path that has it already.
fn add_node(nodes: &mut Vec<AllocatedNode>, node: AllocatedNode) -> Result<(), (String, String)> {
    match nodes.iter().find(|have| have.inside == node.inside) {
        Some(have) if have.host == node.host => {}
        Some(have) => return Err((node.inside, have.host.clone())),
        None => nodes.push(node),
    }
    Ok(())
}

fn add_mount(mounts: &mut Vec<AllocatedMount>, wanted: &MountSpec) -> Result<(), (String, String)> {
    let mount = AllocatedMount {
        host: wanted.from.to_string(),
        inside: wanted.to.to_string(),
        read_only: wanted.read_only,
    };
    place_mount(mounts, mount)
}

fn place_mount(
    mounts: &mut Vec<AllocatedMount>,
    mount: AllocatedMount,
) -> Result<(), (String, String)> {
    match mounts.iter_mut().find(|have| have.inside == mount.inside) {
        // The mount is writable if any device needs it writable: all devices are in one container.
        Some(have) if have.host == mount.host => have.read_only &= mount.read_only,
        Some(have) => return Err((mount.inside, have.host.clone())),
        None => mounts.push(mount),
    }
    Ok(())
}

fn join_value(into: &mut BTreeMap<String, String>, key: &str, value: String) {
    match into.get_mut(key) {
        None => {
            into.insert(key.to_owned(), value);
        }
        // This also finds a value that contains commas itself.
        Some(have) if format!(",{have},").contains(&format!(",{value},")) => {}
        Some(have) => {
            have.push(',');
            have.push_str(&value);
        }
    }
}
