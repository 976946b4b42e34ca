//! Checks a vendor's device spec (nodes, mounts, environment, CDI names) and converts it to our
//! types.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    api::v1::{self as api, Reason},
    path_policy::PathPolicy,
};
use machinist_base::{abs_path::AbsPath, text::is_misleading};
use machinist_device::{
    SmallMap,
    allocation::{AllocatedMount, AllocatedNode, ContainerAllocation},
    inventory::{DeviceNode, DeviceNodeSpec, DeviceSpec, MountSpec},
    mount_allowlist::{self, MAX_ENTRIES, MAX_VALUE_BYTES},
    template::Template,
};

/// A rejection: the code for programs, the sentence for people.
pub(super) type SpecError = (Reason, String);

/// How `{…}` in texts is replaced.
#[derive(Clone, Copy, Debug)]
pub(super) enum TemplateVars<'a> {
    /// Not at all.
    Plain,
    /// As in a template, for the device of this id.
    Of(&'a str),
}

/// A device spec whose paths have been checked and whose texts are final.
#[derive(Debug, Default)]
pub(super) struct ResolvedSpec {
    /// Each with its permissions and the path to hand out.
    nodes: Vec<(DeviceNode, String, AbsPath)>,
    /// Each with its source path after links are resolved.
    mounts: Vec<(MountSpec, AbsPath)>,
    env: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    cdi: Vec<String>,
}

/// Checks a device spec. `present` requires that its nodes exist now.
pub(super) fn check(
    bounds: &mut PathPolicy<'_>,
    given: api::Recipe,
    texts: TemplateVars<'_>,
    present: bool,
) -> Result<ResolvedSpec, SpecError> {
    for (what, count) in [
        ("nodes", given.nodes.len()),
        ("mounts", given.mounts.len()),
        ("variables", given.env.len()),
        ("annotations", given.annotations.len()),
        ("CDI devices", given.cdi.len()),
    ] {
        if count > MAX_ENTRIES {
            let message = format!("{count} {what} are more than {MAX_ENTRIES}");
            return Err((Reason::Limit, message));
        }
    }
    let mut checked = ResolvedSpec::default();
    for node in given.nodes {
        checked
            .nodes
            .push(check_node(bounds, node, texts, present)?);
    }
    let first = checked.nodes.first();
    let first = first.map_or_else(String::new, |(node, ..)| node.host.to_string());
    let fill = |text: &str| filled(text, texts, &first);
    for mount in given.mounts {
        checked.mounts.push(check_mount(bounds, &mount, fill)?);
    }
    let places = checked.nodes.iter().map(|(node, ..)| &node.inside);
    let places = places.chain(checked.mounts.iter().map(|(mount, _)| &mount.to));
    let mut seen = BTreeSet::new();
    for place in places {
        if !seen.insert(place) {
            return Err(invalid(format!("{place} is used twice in the container")));
        }
    }
    checked.env = check_texts(given.env, mount_allowlist::is_variable, fill)?;
    checked.annotations = check_texts(given.annotations, mount_allowlist::is_annotation, fill)?;
    for device in given.cdi {
        let device = fill(&device)?;
        bounds.cdi(&device).map_err(forbidden)?;
        checked.cdi.push(device);
    }
    Ok(checked)
}

fn invalid(message: String) -> SpecError {
    (Reason::RecipeInvalid, message)
}

fn forbidden(message: String) -> SpecError {
    (Reason::PathForbidden, message)
}

/// Parses a path and rejects control characters, which a terminal would interpret.
fn path(given: String) -> Result<AbsPath, SpecError> {
    if given.contains(is_misleading) {
        return Err(forbidden(format!("{given:?} holds a control character")));
    }
    AbsPath::new(given).map_err(|error| forbidden(error.to_string()))
}

/// Rejects braces as well: where the path is used they would be taken for template placeholders.
fn path_without_braces(given: String) -> Result<AbsPath, SpecError> {
    match given.contains(['{', '}']) {
        true => Err(forbidden(format!("{given:?} holds a brace"))),
        false => path(given),
    }
}

fn filled(text: &str, texts: TemplateVars<'_>, node: &str) -> Result<String, SpecError> {
    if text.len() > MAX_VALUE_BYTES || text.contains('\0') {
        let message = format!("a text is longer than {MAX_VALUE_BYTES} bytes or holds a NUL byte");
        return Err(invalid(message));
    }
    match texts {
        TemplateVars::Plain => Ok(text.to_owned()),
        TemplateVars::Of(id) => Template::new(text)
            .map(|template| template.fill(id, node))
            .map_err(|error| invalid(error.to_string())),
    }
}

fn check_node(
    bounds: &mut PathPolicy<'_>,
    given: api::Node,
    texts: TemplateVars<'_>,
    present: bool,
) -> Result<(DeviceNode, String, AbsPath), SpecError> {
    let host = path_without_braces(filled(&given.path, texts, "")?)?;
    let handed = bounds.node(&host, present).map_err(forbidden)?;
    let inside = match given.inside.as_str() {
        "" => host.clone(),
        inside => path_without_braces(filled(inside, texts, host.as_str())?)?,
    };
    if inside == AbsPath::root() {
        return Err(forbidden(
            "/ cannot be the path of a device node".to_owned(),
        ));
    }
    let permissions = match given.permissions.as_str() {
        "" => "rw".to_owned(),
        given if mount_allowlist::are_permissions(given) => given.to_owned(),
        given => {
            let message =
                format!("{given:?} are not valid permissions: any of r, w and m, each once");
            return Err(invalid(message));
        }
    };
    Ok((DeviceNode { host, inside }, permissions, handed))
}

fn check_mount(
    bounds: &mut PathPolicy<'_>,
    given: &api::Mount,
    fill: impl Fn(&str) -> Result<String, SpecError>,
) -> Result<(MountSpec, AbsPath), SpecError> {
    let from = path(fill(&given.from)?)?;
    let real = bounds.mount(&from).map_err(forbidden)?;
    if given.writable {
        bounds.writable(&from, &real).map_err(forbidden)?;
    }
    let to = path(fill(&given.to)?)?;
    if to == AbsPath::root() {
        return Err(forbidden("/ cannot be a mount target".to_owned()));
    }
    let mount = MountSpec {
        from,
        to,
        read_only: !given.writable,
    };
    Ok((mount, real))
}

fn check_texts(
    given: BTreeMap<String, String>,
    allowed: impl Fn(&str) -> bool,
    fill: impl Fn(&str) -> Result<String, SpecError>,
) -> Result<BTreeMap<String, String>, SpecError> {
    let mut texts = BTreeMap::new();
    for (key, value) in given {
        if !allowed(&key) {
            return Err(invalid(format!("{key:?} cannot be set by a vendor")));
        }
        texts.insert(key, fill(&value)?);
    }
    Ok(texts)
}

impl ResolvedSpec {
    /// Converts it for storage in a device. The texts are escaped, so that a template leaves them
    /// unchanged.
    pub(super) fn into_recipe(self) -> Result<(Vec<DeviceNode>, DeviceSpec), SpecError> {
        let template = |text: &str| Template::new(text).map_err(|error| invalid(error.to_string()));
        let all = |texts: BTreeMap<String, String>| {
            let mut all = SmallMap::with_capacity(texts.len());
            for (key, text) in texts {
                all.insert(key, template(&text)?);
            }
            Ok::<_, SpecError>(all)
        };
        let mut nodes = Vec::with_capacity(self.nodes.len());
        let mut recipes = Vec::with_capacity(self.nodes.len());
        for (node, permissions, _) in self.nodes {
            let elsewhere = (node.inside != node.host).then(|| template(node.inside.as_str()));
            recipes.push(DeviceNodeSpec {
                path: template(node.host.as_str())?,
                inside: elsewhere.transpose()?,
                permissions,
            });
            nodes.push(node);
        }
        let mut cdi = Vec::with_capacity(self.cdi.len());
        for name in &self.cdi {
            cdi.push(template(name)?);
        }
        let recipe = DeviceSpec {
            nodes: recipes,
            mounts: self.mounts.into_iter().map(|(mount, _)| mount).collect(),
            env: all(self.env)?,
            annotations: all(self.annotations)?,
            cdi,
        };
        Ok((nodes, recipe))
    }

    /// Converts it to one container's allocation.
    pub(super) fn into_grant(self) -> ContainerAllocation {
        let node = |(node, permissions, handed): (DeviceNode, String, AbsPath)| AllocatedNode {
            host: handed.to_string(),
            inside: node.inside.to_string(),
            permissions,
        };
        let mount = |(mount, real): (MountSpec, AbsPath)| AllocatedMount {
            host: real.to_string(),
            inside: mount.to.to_string(),
            read_only: mount.read_only,
        };
        ContainerAllocation {
            nodes: self.nodes.into_iter().map(node).collect(),
            mounts: self.mounts.into_iter().map(mount).collect(),
            env: self.env,
            annotations: self.annotations,
            cdi: self.cdi,
        }
    }
}
