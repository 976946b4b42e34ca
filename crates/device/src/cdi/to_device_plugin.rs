//! Translates CDI edits into what a device plugin can hand out itself, for a kubelet or runtime
//! without CDI support: device nodes, bind mounts and environment variables. A device with any other
//! edit is refused with the edit's name, since a partly configured device does not work.
//!
//! The edits of the file come first and those of the device after them. If two edits have the same
//! container path or variable, the later one wins, as in the CDI library that runtimes use.

use super::{
    CdiSpecDevice,
    edits::{CdiEdits, Mount, Node},
};
use crate::{
    SmallMap,
    inventory::{DeviceNodeSpec, DeviceSpec, MountSpec},
    mount_allowlist::{self, MAX_ENTRIES, MAX_VALUE_BYTES},
    template::Template,
};
use machinist_base::abs_path::AbsPath;

/// The specification's default for a node without permissions.
const DEFAULT_PERMISSIONS: &str = "rwm";

/// The edits for one device, all of which a device plugin can hand out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerEdits {
    /// Device nodes, in the order of the spec.
    pub nodes: Vec<ContainerNode>,
    mounts: Vec<MountSpec>,
    env: SmallMap<Template>,
}

/// A device node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerNode {
    /// The path on the host.
    pub host: AbsPath,
    inside: AbsPath,
    permissions: String,
    /// The node in the spec. Its type, numbers, mode and owner are compared with the node on the
    /// host, since a device plugin cannot change them.
    wanted: Node,
}

/// The device node that exists on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostNode {
    /// Whether it is a block device; otherwise it is a character device.
    pub block: bool,
    /// Major and minor number.
    pub number: (u32, u32),
    /// Permission bits.
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
}

impl CdiSpecDevice {
    /// Translates the CDI edits for this device.
    ///
    /// # Errors
    ///
    /// The first edit that needs a CDI-aware runtime, as a sentence that names file, device and edit.
    pub fn plain(&self) -> Result<ContainerEdits, String> {
        let mut plain = ContainerEdits::default();
        for (of, edits) in [(" of the whole file", &*self.of_all), ("", &self.own)] {
            plain.add(edits).map_err(|(edit, why)| {
                let place = &self.place;
                format!(
                    "{place}: containerEdits.{edit}{of}: {why}; with devices.cdi: names the container runtime applies it"
                )
            })?;
        }
        let most = [plain.nodes.len(), plain.mounts.len(), plain.env.len()];
        if most.iter().any(|count| *count > MAX_ENTRIES) {
            let place = &self.place;
            return Err(format!(
                "{place}: more than {MAX_ENTRIES} nodes, mounts or variables"
            ));
        }
        Ok(plain)
    }
}

/// The edit that cannot be translated, and why.
type UntranslatableEdit = (String, String);

impl ContainerEdits {
    /// The host paths of its mounts.
    pub fn mounted(&self) -> impl Iterator<Item = &AbsPath> {
        self.mounts.iter().map(|mount| &mount.from)
    }

    /// Adds the edits to a device spec, and replaces entries for the same container path or variable.
    pub fn add_to(self, recipe: &mut DeviceSpec) {
        for node in self.nodes {
            // [`path`] refused paths that contain placeholders.
            let host = Template::literal(node.host.as_str());
            let inside = Template::literal(node.inside.as_str());
            recipe.nodes.retain(|have| have.inside != inside);
            recipe.nodes.extend(host.map(|path| DeviceNodeSpec {
                path,
                inside,
                permissions: node.permissions,
            }));
        }
        for mount in self.mounts {
            recipe.mounts.retain(|have| have.to != mount.to);
            recipe.mounts.push(mount);
        }
        recipe.env.extend(self.env);
    }

    fn add(&mut self, edits: &CdiEdits) -> Result<(), UntranslatableEdit> {
        runtimes_alone(edits)?;
        for (at, node) in edits.device_nodes.iter().enumerate() {
            let edit = || format!("deviceNodes[{at}] ({})", node.path);
            let node = ContainerNode::of(node).map_err(|why| (edit(), why))?;
            self.nodes.retain(|have| have.inside != node.inside);
            self.nodes.push(node);
        }
        for (at, mount) in edits.mounts.iter().enumerate() {
            let edit = || format!("mounts[{at}] ({})", mount.container_path);
            let mount = bound(mount).map_err(|why| (edit(), why))?;
            self.mounts.retain(|have| have.to != mount.to);
            self.mounts.push(mount);
        }
        for (at, text) in edits.env.iter().enumerate() {
            let (key, value) = variable(text).map_err(|why| (format!("env[{at}]"), why))?;
            self.env.insert(key, value);
        }
        Ok(())
    }
}

/// Refuses edits that only a runtime can apply.
fn runtimes_alone(edits: &CdiEdits) -> Result<(), UntranslatableEdit> {
    let fault = |edit: String, what: &str| {
        let why = format!("a device plugin cannot pass {what}");
        Err((edit, why))
    };
    if let Some(hook) = edits.hooks.first() {
        let edit = format!("hooks[0] ({} {})", hook.hook_name, hook.path);
        return fault(edit, "hooks");
    }
    if let Some(device) = edits.net_devices.first() {
        let edit = format!("netDevices[0] ({})", device.host_interface_name);
        return fault(edit, "network interfaces");
    }
    if edits.intel_rdt.is_some() {
        return fault("intelRdt".to_owned(), "an Intel RDT class");
    }
    if !edits.additional_gids.is_empty() {
        return fault("additionalGids".to_owned(), "groups");
    }
    Ok(())
}

/// Checks an absolute path; it must contain no placeholder of a declaration.
fn path(given: &str) -> Result<AbsPath, String> {
    let path = AbsPath::new(given).map_err(|error| error.to_string())?;
    match Template::literal(path.as_str()) {
        Some(_) => Ok(path),
        None => Err(format!("{given:?} contains a placeholder of a declaration")),
    }
}

fn inside(given: &str) -> Result<AbsPath, String> {
    path(given).and_then(|path| match path == AbsPath::root() {
        true => Err("/ cannot be its path in the container".to_owned()),
        false => Ok(path),
    })
}

impl ContainerNode {
    fn of(node: &Node) -> Result<Self, String> {
        let given = node.permissions.as_deref().filter(|it| !it.is_empty());
        let permissions = given.unwrap_or(DEFAULT_PERMISSIONS);
        if !mount_allowlist::are_permissions(permissions) {
            return Err(format!(
                "a device plugin cannot pass a device node with permissions {permissions:?}"
            ));
        }
        if let Some(kind) = node.kind.as_deref()
            && !matches!(kind, "" | "b" | "c" | "u")
        {
            return Err(format!(
                "a device plugin cannot pass a device node of type {kind:?}"
            ));
        }
        Ok(Self {
            host: path(node.host_path.as_ref().unwrap_or(&node.path))?,
            inside: inside(&node.path)?,
            permissions: permissions.to_owned(),
            wanted: node.clone(),
        })
    }

    /// How the node on the host differs from the node in the spec; none if they are the same.
    pub fn differs(&self, found: HostNode) -> Option<String> {
        let wanted = &self.wanted;
        let differs = |what: &str, is: i64, required: Option<i64>| {
            required.filter(|required| *required != is).map(|required| {
                format!(
                    "{} has {what} {is}, the spec requires {required}, which a device plugin cannot set",
                    self.host
                )
            })
        };
        let kind = match wanted.kind.as_deref() {
            Some("b") if !found.block => Some("not a block device"),
            Some("c" | "u") if found.block => Some("not a character device"),
            _ => None,
        };
        if let Some(kind) = kind {
            return Some(format!(
                "{} is {kind}, but the spec requires one",
                self.host
            ));
        }
        if let Some(required) = wanted
            .file_mode
            .filter(|required| required & 0o7777 != found.mode)
        {
            return Some(format!(
                "{} has mode {:03o}, the spec requires {:03o}, which a device plugin cannot set",
                self.host,
                found.mode,
                required & 0o7777
            ));
        }
        // Runtimes take a major number of zero, or none, to mean "the same numbers as on the host".
        let major = wanted.major.filter(|major| *major != 0);
        let minor = major.map(|_| wanted.minor.unwrap_or_default());
        differs("major number", found.number.0.into(), major)
            .or_else(|| differs("minor number", found.number.1.into(), minor))
            .or_else(|| differs("owner", found.owner.0.into(), wanted.uid.map(Into::into)))
            .or_else(|| differs("group", found.owner.1.into(), wanted.gid.map(Into::into)))
    }
}

/// Translates a mount, which must be a recursive private bind mount, read-only or not.
fn bound(mount: &Mount) -> Result<MountSpec, String> {
    let kind = mount.kind.as_deref().unwrap_or_default();
    if !matches!(kind, "" | "none" | "bind") {
        return Err(format!("a device plugin cannot mount a {kind}"));
    }
    let (mut is_bound, mut read_only) = (kind == "bind", false);
    for option in &mount.options {
        match option.as_str() {
            "bind" | "rbind" => is_bound = true,
            "ro" => read_only = true,
            "rw" => read_only = false,
            "private" | "rprivate" => {}
            other => return Err(format!("a device plugin cannot mount with option {other}")),
        }
    }
    if !is_bound {
        return Err(
            "a device plugin supports only bind mounts, and neither type nor options contain bind"
                .to_owned(),
        );
    }
    Ok(MountSpec {
        from: path(&mount.host_path)?,
        to: inside(&mount.container_path)?,
        read_only,
    })
}

fn variable(text: &str) -> Result<(String, Template), String> {
    let (key, value) = text
        .split_once('=')
        .filter(|(key, _)| mount_allowlist::is_variable(key))
        .ok_or_else(|| format!("{text:?} is not an environment variable"))?;
    if value.len() > MAX_VALUE_BYTES || value.contains('\0') {
        return Err(format!(
            "{key} has more than {MAX_VALUE_BYTES} bytes, or a NUL byte"
        ));
    }
    let value = Template::literal(value);
    let value = value.ok_or_else(|| format!("{key} contains a placeholder of a declaration"))?;
    Ok((key.to_owned(), value))
}

#[cfg(test)]
mod tests;
