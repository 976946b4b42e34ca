//! The allocation backend for declarations: checks the paths of a device spec again for each
//! container.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
};

use super::{MountPrefixes, PathChecker, PathObject, handed_out};
use crate::{
    allocation::{ContainerAllocation, PreferredRequest},
    allocator::{
        AllocateError, AllocationFuture, AllocationRequest, AllocationResponse, Allocator,
    },
    inventory::{DeviceSpec, Resource},
    resource_name::ResourceName,
};
use machinist_base::abs_path::AbsPath;
use machinist_rootfs::Root;

/// The allocation backend for the declarations of this machine.
#[derive(Debug)]
pub struct DeclarationAllocator {
    root: Root,
    /// The directories that the administrator allows declarations to mount, beyond the defaults.
    further: Vec<AbsPath>,
    /// One for each resource, so that a hanging mount of one does not block the others.
    path_checkers: Mutex<BTreeMap<ResourceName, PathChecker>>,
}

impl DeclarationAllocator {
    /// Checks paths below `root`.
    pub fn new(root: Root, further: Vec<AbsPath>) -> Self {
        Self {
            root,
            further,
            path_checkers: Mutex::default(),
        }
    }

    fn path_checker(&self, resource: &ResourceName) -> PathChecker {
        // No code panics while it has the lock.
        let mut all = self
            .path_checkers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        all.entry(resource.clone()).or_default().clone()
    }
}

/// The node and mount paths of an allocation that come from the declaration itself. Paths from a CDI
/// spec are trusted like the spec and not checked against the allow-list.
fn own_paths(resource: &Resource, grant: &ContainerAllocation) -> (Vec<String>, Vec<String>) {
    let mut of_specs = BTreeSet::new();
    let specs = resource.devices.values();
    for recipe in specs.filter_map(|device| device.recipe.as_ref()) {
        of_specs.extend(hosts(recipe));
    }
    for own in hosts(&resource.recipe) {
        of_specs.remove(&own);
    }
    let own = |host: &String| !of_specs.contains(host);
    let nodes = grant.nodes.iter().map(|node| node.host.clone());
    let mounts = grant.mounts.iter().map(|mount| mount.host.clone());
    (nodes.filter(own).collect(), mounts.filter(own).collect())
}

/// The host paths in a device spec.
fn hosts(recipe: &DeviceSpec) -> impl Iterator<Item = String> {
    let nodes = recipe.nodes.iter().map(|node| node.path.fill("", ""));
    nodes.chain(recipe.mounts.iter().map(|mount| mount.from.to_string()))
}

/// The paths to hand out for nodes and for mounts, by the paths that the declaration names.
type HandedOut = [BTreeMap<String, String>; 2];

/// The paths to hand out for the nodes and mounts; an error, as text, if a path must not be passed
/// to a container.
fn look(
    root: &Root,
    prefixes: impl FnOnce() -> MountPrefixes,
    (nodes, mounts): (Vec<String>, Vec<String>),
) -> Result<HandedOut, String> {
    let path = |given: &str| AbsPath::new(given).map_err(|error| error.to_string());
    let nodes = nodes.into_iter().map(|given| {
        let node = path(&given)?;
        let found = PathObject::at(root, &node);
        found.check_object(&node, true)?;
        let handed = match &found {
            PathObject::Device(real) => handed_out(root, &node, real).to_string(),
            PathObject::Absent | PathObject::Other(_) => given.clone(),
        };
        Ok((given, handed))
    });
    let nodes = nodes.collect::<Result<_, String>>()?;
    if mounts.is_empty() {
        return Ok([nodes, BTreeMap::new()]);
    }
    let prefixes = prefixes();
    let mounts = mounts.into_iter().map(|mount| {
        let real = prefixes.resolve_mount(root, &path(&mount)?, "a declaration")?;
        Ok((mount, real.to_string()))
    });
    Ok([nodes, mounts.collect::<Result<_, String>>()?])
}

/// The answer to all other calls, which device specs answer instead.
fn is_not_asked<'a, T: Send + 'a>(resource: &Resource) -> AllocationFuture<'a, T> {
    let away = AllocateError::Away {
        by: resource.source.clone(),
        why: "a declaration has no allocation backend".to_owned(),
    };
    Box::pin(std::future::ready(Err(away)))
}

impl Allocator for DeclarationAllocator {
    fn allocate<'a>(
        &'a self,
        resource: &'a Resource,
        _: AllocationRequest<'a>,
    ) -> AllocationFuture<'a, AllocationResponse> {
        is_not_asked(resource)
    }

    fn recheck_paths<'a>(
        &'a self,
        resource: &'a Resource,
        mut grant: ContainerAllocation,
    ) -> AllocationFuture<'a, ContainerAllocation> {
        Box::pin(async move {
            let (root, further) = (self.root.clone(), self.further.clone());
            let (name, paths) = (resource.name.clone(), own_paths(resource, &grant));
            let looking = move || {
                let prefixes = || MountPrefixes::of(&root, name.domain(), &further);
                look(&root, prefixes, paths)
            };
            let seen = self.path_checker(&resource.name).check_path(looking).await;
            let seen = seen.unwrap_or_else(|no_look| Err(no_look.to_string()));
            let [nodes, mounts] = seen.map_err(|why| AllocateError::Refused {
                by: resource.source.clone(),
                why,
            })?;
            for node in &mut grant.nodes {
                if let Some(handed) = nodes.get(&node.host) {
                    node.host.clone_from(handed);
                }
            }
            for mount in &mut grant.mounts {
                if let Some(real) = mounts.get(&mount.host) {
                    mount.host.clone_from(real);
                }
            }
            Ok(grant)
        })
    }

    fn preferred<'a>(
        &'a self,
        resource: &'a Resource,
        _: PreferredRequest<'a>,
    ) -> AllocationFuture<'a, Vec<String>> {
        is_not_asked(resource)
    }

    fn pre_start<'a>(
        &'a self,
        resource: &'a Resource,
        _: AllocationRequest<'a>,
    ) -> AllocationFuture<'a, ()> {
        is_not_asked(resource)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{allocation::AllocatedNode, source::ResourceSource, testing::resource};

    #[tokio::test]
    #[allow(
        clippy::disallowed_methods,
        reason = "plays the outside world that makes files"
    )]
    async fn a_path_that_is_no_longer_a_device_is_not_allocated() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path()).unwrap();
        for below in ["/dev", "/srv"] {
            root.make_dirs(&AbsPath::new(below).unwrap(), 0o755)
                .unwrap();
        }
        for file in ["dev/file", "srv/file"] {
            std::fs::write(dir.path().join(file), "").unwrap();
        }
        std::os::unix::fs::symlink("/srv/file", dir.path().join("dev/link")).unwrap();
        let mut resource = resource(1, &[]);
        resource.source =
            ResourceSource::File(AbsPath::new("/etc/machinist/devices.d/x.yaml").unwrap());
        let declared = DeclarationAllocator::new(root, Vec::new());
        for (host, why) in [
            ("/dev/file", "/dev/file is a regular file, not a device"),
            (
                "/dev/link",
                "/dev/link is a link to /srv/file, outside /dev",
            ),
            ("/dev/gone", "/dev/gone does not exist"),
        ] {
            let mut grant = ContainerAllocation::default();
            grant.nodes.push(AllocatedNode {
                host: host.to_owned(),
                inside: host.to_owned(),
                permissions: "rw".to_owned(),
            });
            let refused = declared.recheck_paths(&resource, grant).await.unwrap_err();
            let whole = format!("allocation from /etc/machinist/devices.d/x.yaml rejected: {why}");
            assert_eq!(refused.to_string(), whole);
        }
    }
}
