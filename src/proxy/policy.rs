//! What a plugin may hand out: its answer, read as far as it is known here, held against the vendor's
//! file.
//!
//! A file that names no device nodes allows all below `/dev`, and one that names no CDI kinds allows those
//! of the resource's own domain; mounts come from the usual prefixes and from those that the file adds.
//! Links are resolved first: what counts is where a path leads.

use prost::{Message as _, bytes::Bytes};

use super::dial::plain;
use crate::{
    device::{
        ResourceName,
        rules::{may_mount, may_write, mountable},
        vendor::Vendor,
    },
    kubelet::api::v1beta1 as api,
    path::AbsPath,
    wire::{Part, Weight, parts},
};

/// Annotations by which runtimes are told of CDI devices.
const CDI_PREFIX: &str = "cdi.k8s.io/";

/// Parts of one answer; each of them takes up to 250 bytes once it is read.
const MOST_PARTS: usize = 4096;
/// What `ContainerAllocateResponse` is made of: variables, mounts, nodes, annotations, CDI devices.
const CONTAINER: [Part; 5] = [
    Part(1, Weight::One, None),
    Part(2, Weight::One, None),
    Part(3, Weight::One, None),
    Part(4, Weight::One, None),
    Part(5, Weight::One, None),
];
const ANSWER: [Part; 1] = [Part(1, Weight::One, Some(&CONTAINER))];

/// Why an answer is not passed on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("the plugin's answer cannot be read: {0}")]
    Unreadable(String),
    #[error("the plugin's answer has {0} parts; at most {MOST_PARTS} are read")]
    TooMuch(usize),
    #[error("the plugin's answer holds nothing for the container")]
    Empty,
    #[error("{0:?} is no absolute path without ..")]
    Path(String),
    #[error("the node {path} is not among the devices of the vendor's file ({expected})")]
    Node { path: String, expected: String },
    #[error("the mount of {path} is not allowed; expected {expected}, or a prefix of spec.mounts")]
    Mount { path: String, expected: String },
    #[error("the mount of {path} must be read-only: the host runs what lies there")]
    Writable { path: String },
    #[error("the CDI device {name:?} is not among the kinds of the vendor's file ({expected})")]
    Cdi { name: String, expected: String },
}

/// Whether the answer may be passed on. `real` says where a path of the host leads.
pub(super) fn judge(
    answer: &Bytes,
    vendor: &Vendor,
    resource: &ResourceName,
    real: impl Fn(&AbsPath) -> AbsPath,
) -> Result<(), Refused> {
    match parts(answer, &ANSWER) {
        Ok(found) if found > MOST_PARTS => return Err(Refused::TooMuch(found)),
        Ok(_) => {}
        Err(error) => return Err(Refused::Unreadable(error.to_string())),
    }
    let copy = api::AllocateResponse::decode(answer.clone());
    let copy = copy.map_err(|error| Refused::Unreadable(error.to_string()))?;
    if copy.container_responses.is_empty() {
        return Err(Refused::Empty);
    }
    for container in &copy.container_responses {
        for node in &container.devices {
            judge_node(&node.host_path, vendor, &real)?;
        }
        for mount in &container.mounts {
            judge_mount(mount, vendor, resource, &real)?;
        }
        let annotated = container.annotations.iter();
        let annotated = annotated.filter(|(key, _)| key.starts_with(CDI_PREFIX));
        let annotated = annotated.flat_map(|(_, value)| value.split(',').map(str::trim));
        let named = container.cdi_devices.iter().map(|one| one.name.as_str());
        for name in named.chain(annotated) {
            judge_cdi(name, vendor, resource)?;
        }
    }
    Ok(())
}

/// Runtimes clean paths; a plugin may write `/usr/lib//x/`.
fn clean(given: &str) -> Result<AbsPath, Refused> {
    let parts = given.split('/').filter(|part| !matches!(*part, "" | "."));
    let path = parts.fold(String::new(), |path, part| path + "/" + part);
    let path = if path.is_empty() { "/" } else { &path };
    match AbsPath::new(path) {
        Ok(path) if given.starts_with('/') => Ok(path),
        _ => Err(Refused::Path(plain(given))),
    }
}

fn dev() -> AbsPath {
    AbsPath::new("/dev").unwrap_or_else(|_| AbsPath::root())
}

fn is_node(path: &AbsPath) -> bool {
    let dev = dev();
    *path != dev && path.is_under(&dev)
}

/// By its own name or by that of what it leads to, and always below `/dev`.
fn is_lent(path: &AbsPath, leads_to: &AbsPath, vendor: &Vendor) -> bool {
    let named = vendor.devices.is_empty() || vendor.may_lend(path) || vendor.may_lend(leads_to);
    is_node(path) && is_node(leads_to) && named
}

fn judge_node(
    given: &str,
    vendor: &Vendor,
    real: impl Fn(&AbsPath) -> AbsPath,
) -> Result<(), Refused> {
    let path = clean(given)?;
    if is_lent(&path, &real(&path), vendor) {
        return Ok(());
    }
    let globs: Vec<_> = vendor.devices.iter().map(|glob| glob.as_str()).collect();
    let expected = match globs.as_slice() {
        [] => "all below /dev".to_owned(),
        globs => globs.join(", "),
    };
    let path = plain(given);
    Err(Refused::Node { path, expected })
}

/// Some plugins mount a directory of nodes, such as `/dev/dri/by-path`: the same rule as for nodes.
fn judge_mount(
    mount: &api::Mount,
    vendor: &Vendor,
    resource: &ResourceName,
    real: impl Fn(&AbsPath) -> AbsPath,
) -> Result<(), Refused> {
    let given = mount.host_path.as_str();
    let path = clean(given)?;
    let leads_to = real(&path);
    let (domain, further) = (resource.domain(), &vendor.mounts);
    if is_lent(&path, &leads_to, vendor) || may_write(&leads_to, domain, further) {
        return Ok(());
    }
    if may_mount(&leads_to, domain, further) {
        let path = plain(given);
        return match mount.read_only {
            true => Ok(()),
            false => Err(Refused::Writable { path }),
        };
    }
    let path = match leads_to == path {
        true => plain(given),
        false => plain(&format!("{given} (which leads to {leads_to})")),
    };
    let expected = mountable(resource.domain());
    Err(Refused::Mount { path, expected })
}

fn judge_cdi(name: &str, vendor: &Vendor, resource: &ResourceName) -> Result<(), Refused> {
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
    Err(Refused::Cdi { name, expected })
}

#[cfg(test)]
mod tests;
