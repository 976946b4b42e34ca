//! The allocation backend for declarations: checks the paths of a device spec again for each
//! container.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::{Mutex, PoisonError},
};

use super::{MountPrefixes, PathChecker, PathObject, path_for_container};
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

/// The node and mount paths of allocations that come from the declaration itself, each once. Paths
/// from a CDI spec are trusted like the spec and not checked against the allow-list.
fn own_paths(resource: &Resource, grants: &[ContainerAllocation]) -> OwnPaths {
    let mut of_specs = HashSet::new();
    let specs = resource.devices.values();
    for recipe in specs.filter_map(|device| device.recipe.as_ref()) {
        of_specs.extend(hosts(recipe));
    }
    for own in hosts(&resource.recipe) {
        of_specs.remove(&own);
    }
    let own = |host: &&String| !of_specs.contains(*host);
    let nodes = grants.iter().flat_map(|grant| &grant.nodes);
    let mounts = grants.iter().flat_map(|grant| &grant.mounts);
    let nodes: BTreeSet<_> = nodes.map(|node| &node.host).filter(own).collect();
    let mounts: BTreeSet<_> = mounts.map(|mount| &mount.host).filter(own).collect();
    let copy = |paths: BTreeSet<&String>| paths.into_iter().cloned().collect();
    [copy(nodes), copy(mounts)]
}

/// The host paths in a device spec.
fn hosts(recipe: &DeviceSpec) -> impl Iterator<Item = String> {
    let nodes = recipe.nodes.iter().map(|node| node.path.fill("", ""));
    nodes.chain(recipe.mounts.iter().map(|mount| mount.from.to_string()))
}

/// The paths that a declaration names for nodes, and for mounts.
type OwnPaths = [Vec<String>; 2];

/// The paths to hand out for nodes and for mounts, by the paths that the declaration names.
type HandedOut = [BTreeMap<String, String>; 2];

/// How many paths are looked up in one go: few enough that its timeout means a file system that
/// hangs.
const MAX_PATHS_PER_LOOKUP: usize = 1000;

/// Splits the paths into batches of at most [`MAX_PATHS_PER_LOOKUP`] paths.
fn portions([nodes, mounts]: OwnPaths) -> Vec<OwnPaths> {
    let of_nodes = nodes.chunks(MAX_PATHS_PER_LOOKUP);
    let of_mounts = mounts.chunks(MAX_PATHS_PER_LOOKUP);
    of_nodes
        .map(|some| [some.to_vec(), Vec::new()])
        .chain(of_mounts.map(|some| [Vec::new(), some.to_vec()]))
        .collect()
}

/// The paths to hand out for the nodes and mounts; an error, as text, if a path must not be passed
/// to a container.
fn resolve_node(
    root: &Root,
    prefixes: impl FnOnce() -> MountPrefixes,
    [nodes, mounts]: OwnPaths,
) -> Result<HandedOut, String> {
    let path = |given: &str| AbsPath::new(given).map_err(|error| error.to_string());
    let nodes = nodes.into_iter().map(|given| {
        let node = path(&given)?;
        let found = PathObject::at(root, &node);
        found.check_object(&node, true)?;
        let handed = match &found {
            PathObject::Device(real) => path_for_container(root, &node, real).to_string(),
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
    let away = AllocateError::Unreachable {
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
        mut grants: Vec<ContainerAllocation>,
    ) -> AllocationFuture<'a, Vec<ContainerAllocation>> {
        Box::pin(async move {
            let [mut nodes, mut mounts] = HandedOut::default();
            let checker = self.path_checker(&resource.name);
            for paths in portions(own_paths(resource, &grants)) {
                let (root, further) = (self.root.clone(), self.further.clone());
                let name = resource.name.clone();
                let looking = move || {
                    let prefixes = || MountPrefixes::of(&root, name.domain(), &further);
                    resolve_node(&root, prefixes, paths)
                };
                let seen = checker.check_path(looking).await;
                let seen = seen.unwrap_or_else(|no_look| Err(no_look.to_string()));
                let [some_nodes, some_mounts] = seen.map_err(|why| AllocateError::Refused {
                    by: resource.source.clone(),
                    why,
                })?;
                nodes.extend(some_nodes);
                mounts.extend(some_mounts);
            }
            for node in grants.iter_mut().flat_map(|grant| &mut grant.nodes) {
                if let Some(handed) = nodes.get(&node.host) {
                    node.host.clone_from(handed);
                }
            }
            for mount in grants.iter_mut().flat_map(|grant| &mut grant.mounts) {
                if let Some(real) = mounts.get(&mount.host) {
                    mount.host.clone_from(real);
                }
            }
            Ok(grants)
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
    use crate::{
        allocation::{AllocatedNode, tests::growth_of_time},
        inventory::DeviceNodeSpec,
        source::ResourceSource,
        template::Template,
        testing::resource,
    };

    fn with_node(host: &str) -> ContainerAllocation {
        let mut grant = ContainerAllocation::default();
        grant.nodes.push(AllocatedNode {
            host: host.to_owned(),
            inside: host.to_owned(),
            permissions: "rw".to_owned(),
        });
        grant
    }

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
            let grants = vec![with_node(host)];
            let refused = declared.recheck_paths(&resource, grants).await;
            let refused = refused.unwrap_err();
            let whole = format!("allocation from /etc/machinist/devices.d/x.yaml rejected: {why}");
            assert_eq!(refused.to_string(), whole);
        }
    }

    #[test]
    fn the_time_to_recheck_grows_with_containers_and_devices_only() {
        let names: Vec<String> = (0..4000).map(|n| format!("d{n}")).collect();
        let devices: Vec<(&str, &[u32])> = names.iter().map(|name| (&**name, &[][..])).collect();
        let mut whole = resource(1, &devices);
        for (id, device) in &mut whole.devices {
            // As from a CDI spec, so that no path has to exist.
            device.recipe = Some(Box::default());
            let recipe = device.recipe.as_mut().unwrap();
            recipe.nodes.push(DeviceNodeSpec {
                path: Template::new(&format!("/dev/{id}")).unwrap(),
                inside: None,
                permissions: "rw".into(),
            });
        }
        whole.source = ResourceSource::File(AbsPath::new("/x.yaml").unwrap());
        let dir = tempfile::tempdir().unwrap();
        let allocator = DeclarationAllocator::new(Root::open(dir.path()).unwrap(), Vec::new());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let growth = growth_of_time(1000, |count| {
            let mut part = whole.clone();
            part.devices
                .retain(|id, _| id[1..].parse::<usize>().unwrap() < count);
            let some = names[..count].iter();
            let grants = some.map(|id| with_node(&format!("/dev/{id}"))).collect();
            runtime
                .block_on(allocator.recheck_paths(&part, grants))
                .unwrap()
        });
        assert!(
            growth < 8.0,
            "four times as many take {growth} times as long"
        );
    }
}
