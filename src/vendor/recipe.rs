//! Checks a vendor's device spec (nodes, mounts, environment, CDI names) and converts it to our
//! types.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    api::v1::{self as api, Reason},
    paths::Bounds,
};
use crate::{
    device::{
        Pairs,
        allocation::{Grant, MountGrant, NodeGrant},
        inventory::{DeviceNode, MountRecipe, NodeRecipe, Recipe},
        rules::{self, LONGEST_VALUE, MOST_ENTRIES},
        template::Template,
    },
    path::AbsPath,
    words::is_misleading,
};

/// A rejection: the code for programs, the sentence for people.
pub(super) type Fault = (Reason, String);

/// How `{…}` in texts is replaced.
#[derive(Clone, Copy, Debug)]
pub(super) enum Texts<'a> {
    /// Not at all.
    Plain,
    /// As in a template, for the device of this id.
    Of(&'a str),
}

/// A device spec whose paths have been checked and whose texts are final.
#[derive(Debug, Default)]
pub(super) struct Checked {
    /// Each with its permissions and the path to hand out.
    nodes: Vec<(DeviceNode, String, AbsPath)>,
    /// Each with its source path after links are resolved.
    mounts: Vec<(MountRecipe, AbsPath)>,
    env: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    cdi: Vec<String>,
}

/// Checks a device spec. `present` requires that its nodes exist now.
pub(super) fn check(
    bounds: &mut Bounds<'_>,
    given: api::Recipe,
    texts: Texts<'_>,
    present: bool,
) -> Result<Checked, Fault> {
    for (what, count) in [
        ("nodes", given.nodes.len()),
        ("mounts", given.mounts.len()),
        ("variables", given.env.len()),
        ("annotations", given.annotations.len()),
        ("CDI devices", given.cdi.len()),
    ] {
        if count > MOST_ENTRIES {
            let message = format!("{count} {what} are more than {MOST_ENTRIES}");
            return Err((Reason::Limit, message));
        }
    }
    let mut checked = Checked::default();
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
    checked.env = check_texts(given.env, rules::is_variable, fill)?;
    checked.annotations = check_texts(given.annotations, rules::is_vendor_annotation, fill)?;
    for device in given.cdi {
        let device = fill(&device)?;
        bounds.cdi(&device).map_err(forbidden)?;
        checked.cdi.push(device);
    }
    Ok(checked)
}

fn invalid(message: String) -> Fault {
    (Reason::RecipeInvalid, message)
}

fn forbidden(message: String) -> Fault {
    (Reason::PathForbidden, message)
}

/// Parses a path and rejects control characters, which a terminal would interpret.
fn path(given: String) -> Result<AbsPath, Fault> {
    if given.contains(is_misleading) {
        return Err(forbidden(format!("{given:?} holds a control character")));
    }
    AbsPath::new(given).map_err(|error| forbidden(error.to_string()))
}

/// Rejects braces as well: where the path is used they would be taken for template placeholders.
fn path_without_braces(given: String) -> Result<AbsPath, Fault> {
    match given.contains(['{', '}']) {
        true => Err(forbidden(format!("{given:?} holds a brace"))),
        false => path(given),
    }
}

fn filled(text: &str, texts: Texts<'_>, node: &str) -> Result<String, Fault> {
    if text.len() > LONGEST_VALUE || text.contains('\0') {
        let message = format!("a text is longer than {LONGEST_VALUE} bytes or holds a NUL byte");
        return Err(invalid(message));
    }
    match texts {
        Texts::Plain => Ok(text.to_owned()),
        Texts::Of(id) => Template::new(text)
            .map(|template| template.fill(id, node))
            .map_err(|error| invalid(error.to_string())),
    }
}

fn check_node(
    bounds: &mut Bounds<'_>,
    given: api::Node,
    texts: Texts<'_>,
    present: bool,
) -> Result<(DeviceNode, String, AbsPath), Fault> {
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
        given if rules::are_permissions(given) => given.to_owned(),
        given => {
            let message =
                format!("{given:?} are not valid permissions: any of r, w and m, each once");
            return Err(invalid(message));
        }
    };
    Ok((DeviceNode { host, inside }, permissions, handed))
}

fn check_mount(
    bounds: &mut Bounds<'_>,
    given: &api::Mount,
    fill: impl Fn(&str) -> Result<String, Fault>,
) -> Result<(MountRecipe, AbsPath), Fault> {
    let from = path(fill(&given.from)?)?;
    let real = bounds.mount(&from).map_err(forbidden)?;
    if given.writable {
        bounds.writable(&from, &real).map_err(forbidden)?;
    }
    let to = path(fill(&given.to)?)?;
    if to == AbsPath::root() {
        return Err(forbidden("/ cannot be a mount target".to_owned()));
    }
    let mount = MountRecipe {
        from,
        to,
        read_only: !given.writable,
    };
    Ok((mount, real))
}

fn check_texts(
    given: BTreeMap<String, String>,
    allowed: impl Fn(&str) -> bool,
    fill: impl Fn(&str) -> Result<String, Fault>,
) -> Result<BTreeMap<String, String>, Fault> {
    let mut texts = BTreeMap::new();
    for (key, value) in given {
        if !allowed(&key) {
            return Err(invalid(format!("{key:?} cannot be set by a vendor")));
        }
        texts.insert(key, fill(&value)?);
    }
    Ok(texts)
}

impl Checked {
    /// Converts it for storage in a device. The texts are escaped, so that a template leaves them
    /// unchanged.
    pub(super) fn into_recipe(self) -> Result<(Vec<DeviceNode>, Recipe), Fault> {
        let template = |text: &str| Template::new(text).map_err(|error| invalid(error.to_string()));
        let all = |texts: BTreeMap<String, String>| {
            let mut all = Pairs::with_capacity(texts.len());
            for (key, text) in texts {
                all.insert(key, template(&text)?);
            }
            Ok::<_, Fault>(all)
        };
        let mut nodes = Vec::with_capacity(self.nodes.len());
        let mut recipes = Vec::with_capacity(self.nodes.len());
        for (node, permissions, _) in self.nodes {
            let elsewhere = (node.inside != node.host).then(|| template(node.inside.as_str()));
            recipes.push(NodeRecipe {
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
        let recipe = Recipe {
            nodes: recipes,
            mounts: self.mounts.into_iter().map(|(mount, _)| mount).collect(),
            env: all(self.env)?,
            annotations: all(self.annotations)?,
            cdi,
        };
        Ok((nodes, recipe))
    }

    /// Converts it to one container's allocation.
    pub(super) fn into_grant(self) -> Grant {
        let node = |(node, permissions, handed): (DeviceNode, String, AbsPath)| NodeGrant {
            host: handed.to_string(),
            inside: node.inside.to_string(),
            permissions,
        };
        let mount = |(mount, real): (MountRecipe, AbsPath)| MountGrant {
            host: real.to_string(),
            inside: mount.to.to_string(),
            read_only: mount.read_only,
        };
        Grant {
            nodes: self.nodes.into_iter().map(node).collect(),
            mounts: self.mounts.into_iter().map(mount).collect(),
            env: self.env,
            annotations: self.annotations,
            cdi: self.cdi,
        }
    }
}
