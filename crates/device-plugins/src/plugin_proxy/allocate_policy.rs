//! Checks a plugin's allocation answer, as far as its fields are known here, against the vendor's
//! file.
//!
//! A file without device nodes allows everything below `/dev`, and one without CDI kinds allows
//! those of the resource's own domain; mounts come from the usual prefixes and those that the file
//! adds. Links are resolved first: the target's path counts. Only links that udev creates count by
//! their own names.

use std::collections::BTreeMap;

use prost::{Message as _, bytes::Bytes};

use super::plugin_client::plain;
use crate::{
    kubelet::api::v1beta1 as api,
    protobuf_scan::{CountedField, FieldCost, parts, replaced},
};
use machinist_base::abs_path::AbsPath;
use machinist_device::{
    ResourceName,
    mount_allowlist::{is_annotation, may_mount, may_write, mountable},
    vendor_declaration::Vendor,
};

/// Annotations that name CDI devices for runtimes.
const CDI_ANNOTATION_PREFIX: &str = "cdi.k8s.io/";

/// Parts of one answer; each takes up to 250 bytes when decoded.
const MAX_RESPONSE_PARTS: usize = 4096;
/// The protobuf shape of `ContainerAllocateResponse`: variables, mounts, nodes, annotations, CDI
/// devices.
const CONTAINER_SHAPE: [CountedField; 5] = [
    CountedField(1, FieldCost::One, None),
    CountedField(2, FieldCost::One, None),
    CountedField(3, FieldCost::One, None),
    CountedField(4, FieldCost::One, None),
    CountedField(5, FieldCost::One, None),
];
const RESPONSE_SHAPE: [CountedField; 1] = [CountedField(1, FieldCost::One, Some(&CONTAINER_SHAPE))];

/// Why an answer is not forwarded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AllocateRejection {
    #[error("the plugin's answer cannot be read: {0}")]
    Unreadable(String),
    #[error("the plugin's answer has {0} parts; at most {MAX_RESPONSE_PARTS} are read")]
    TooManyParts(usize),
    #[error("the plugin's answer is empty for the container")]
    Empty,
    #[error("{0:?} is not an absolute path without ..")]
    Path(String),
    #[error("the node {path} is not among the devices of the vendor's file ({expected})")]
    Node { path: String, expected: String },
    #[error("the mount of {path} is not allowed; expected {expected}, or a prefix of spec.mounts")]
    Mount { path: String, expected: String },
    #[error("the mount of {path} must be read-only: the host executes files from it")]
    Writable { path: String },
    #[error("the annotation {0:?} is not allowed: container runtimes act on it")]
    Annotation(String),
    #[error("the CDI device {name:?} is not among the kinds of the vendor's file ({expected})")]
    Cdi { name: String, expected: String },
}

/// The result of examining a host path.
#[derive(Clone, Debug)]
pub(super) struct ResolvedPath {
    /// The path with links resolved.
    pub(super) leads_to: AbsPath,
    /// Whether it is a link that udev creates.
    pub(super) is_stable: bool,
    /// The path to hand out for a node.
    pub(super) handed_out: AbsPath,
}

/// The paths of an answer that are links, with the path that the kubelet receives instead of each.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Links {
    nodes: BTreeMap<String, AbsPath>,
    mounts: BTreeMap<String, AbsPath>,
}

/// Returns the targets of the answer's paths if the answer is allowed. `look` examines a host path.
pub(super) fn check(
    answer: &Bytes,
    vendor: &Vendor,
    resource: &ResourceName,
    look: impl Fn(&AbsPath) -> ResolvedPath,
) -> Result<Links, AllocateRejection> {
    match parts(answer, &RESPONSE_SHAPE) {
        Ok(found) if found > MAX_RESPONSE_PARTS => {
            return Err(AllocateRejection::TooManyParts(found));
        }
        Ok(_) => {}
        Err(error) => return Err(AllocateRejection::Unreadable(error.to_string())),
    }
    let copy = api::AllocateResponse::decode(answer.clone());
    let copy = copy.map_err(|error| AllocateRejection::Unreadable(error.to_string()))?;
    if copy.container_responses.is_empty() {
        return Err(AllocateRejection::Empty);
    }
    let mut links = Links::default();
    for container in &copy.container_responses {
        for node in &container.devices {
            if let Some(leads_to) = check_node(&node.host_path, vendor, &look)? {
                links.nodes.insert(node.host_path.clone(), leads_to);
            }
        }
        for mount in &container.mounts {
            let path = clean(&mount.host_path)?;
            let seen = look(&path);
            check_mount(mount, (&path, &seen), vendor, resource)?;
            if seen.leads_to != path {
                links.mounts.insert(mount.host_path.clone(), seen.leads_to);
            }
        }
        check_annotations(container.annotations.keys())?;
        let annotated = container.annotations.iter();
        let annotated = annotated.filter(|(key, _)| key.starts_with(CDI_ANNOTATION_PREFIX));
        let annotated = annotated.flat_map(|(_, value)| value.split(',').map(str::trim));
        let named = container.cdi_devices.iter().map(|one| one.name.as_str());
        for name in named.chain(annotated) {
            check_cdi_devices(name, vendor, resource)?;
        }
    }
    Ok(links)
}

/// Checks annotation keys. Those that name CDI devices are skipped here; their devices are checked
/// against the file's kinds.
fn check_annotations<'a>(keys: impl Iterator<Item = &'a String>) -> Result<(), AllocateRejection> {
    let mut keys = keys.filter(|key| !key.starts_with(CDI_ANNOTATION_PREFIX));
    match keys.find(|key| !is_annotation(key)) {
        Some(key) => Err(AllocateRejection::Annotation(plain(key))),
        None => Ok(()),
    }
}

/// Normalises a path as runtimes do; a plugin may write `/usr/lib//x/`.
fn clean(given: &str) -> Result<AbsPath, AllocateRejection> {
    let parts = given.split('/').filter(|part| !matches!(*part, "" | "."));
    let path = parts.fold(String::new(), |path, part| path + "/" + part);
    let path = if path.is_empty() { "/" } else { &path };
    match AbsPath::new(path) {
        Ok(path) if given.starts_with('/') => Ok(path),
        _ => Err(AllocateRejection::Path(plain(given))),
    }
}

fn dev() -> AbsPath {
    AbsPath::new("/dev").unwrap_or_else(|_| AbsPath::root())
}

fn is_node(path: &AbsPath) -> bool {
    let dev = dev();
    *path != dev && path.is_under(&dev)
}

/// Whether a node is allowed: by its target's path, or by its own path if udev created the link;
/// always below `/dev`.
fn is_allocated(path: &AbsPath, seen: &ResolvedPath, vendor: &Vendor) -> bool {
    let named = vendor.devices.is_empty()
        || vendor.may_pass_node(&seen.leads_to)
        || seen.is_stable && vendor.may_pass_node(path);
    is_node(path) && is_node(&seen.leads_to) && named
}

/// Returns the path that the kubelet receives instead of the node; none if the node's path is kept.
fn check_node(
    given: &str,
    vendor: &Vendor,
    look: impl Fn(&AbsPath) -> ResolvedPath,
) -> Result<Option<AbsPath>, AllocateRejection> {
    let path = clean(given)?;
    let seen = look(&path);
    if is_allocated(&path, &seen, vendor) {
        return Ok((seen.handed_out != path).then_some(seen.handed_out));
    }
    let globs: Vec<_> = vendor.devices.iter().map(|glob| glob.as_str()).collect();
    let expected = match globs.as_slice() {
        [] => "all below /dev".to_owned(),
        globs => globs.join(", "),
    };
    let path = plain(given);
    Err(AllocateRejection::Node { path, expected })
}

/// Some plugins mount a directory of nodes, such as `/dev/dri/by-path`; the rule for nodes applies
/// to it.
fn check_mount(
    mount: &api::Mount,
    (path, seen): (&AbsPath, &ResolvedPath),
    vendor: &Vendor,
    resource: &ResourceName,
) -> Result<(), AllocateRejection> {
    let (given, leads_to) = (mount.host_path.as_str(), &seen.leads_to);
    let (domain, further) = (resource.domain(), &vendor.mounts);
    if is_allocated(path, seen, vendor) || may_write(leads_to, domain, further) {
        return Ok(());
    }
    if may_mount(leads_to, domain, further) {
        let path = plain(given);
        return match mount.read_only {
            true => Ok(()),
            false => Err(AllocateRejection::Writable { path }),
        };
    }
    let path = match leads_to == path {
        true => plain(given),
        false => plain(&format!("{given} (which leads to {leads_to})")),
    };
    let expected = mountable(resource.domain());
    Err(AllocateRejection::Mount { path, expected })
}

fn check_cdi_devices(
    name: &str,
    vendor: &Vendor,
    resource: &ResourceName,
) -> Result<(), AllocateRejection> {
    let own = || {
        let domain = name.split_once('/').map(|(domain, _)| domain);
        vendor.cdi.is_empty() && domain == Some(resource.domain()) && name.contains('=')
    };
    if vendor.may_name(name) || own() {
        return Ok(());
    }
    let expected = match vendor.cdi.as_slice() {
        [] => format!("{}/…", resource.domain()),
        kinds => kinds.join(", "),
    };
    let name = plain(name);
    Err(AllocateRejection::Cdi { name, expected })
}

/// The field numbers that lead to the host path of a mount and of a node: container response, mount
/// or node, host path.
const MOUNT_HOST_PATH_FIELDS: [u32; 3] = [1, 2, 2];
const NODE_HOST_PATH_FIELDS: [u32; 3] = [1, 3, 2];

/// The answer with the paths that were checked, since a link may be replaced before the runtime
/// follows it. Everything else stays byte for byte.
pub(super) fn resolved(answer: &[u8], links: &Links) -> Vec<u8> {
    let mut answer = answer.to_vec();
    for (place, links) in [
        (MOUNT_HOST_PATH_FIELDS, &links.mounts),
        (NODE_HOST_PATH_FIELDS, &links.nodes),
    ] {
        if links.is_empty() {
            continue;
        }
        let leads_to = |source: &[u8]| {
            let source = std::str::from_utf8(source).ok()?;
            Some(links.get(source)?.as_str().as_bytes().to_vec())
        };
        // These bytes were decoded as a message before, so this cannot fail.
        answer = replaced(&answer, &place, &leads_to).unwrap_or_default();
    }
    answer
}

#[cfg(test)]
mod tests;
