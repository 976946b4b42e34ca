//! Parses the roles of a machine.

use super::{
    fragment::{Node, Shape},
    reader::{Misfit, Setting},
};

/// Values of the label `machineconfiguration.openshift.io/role`.
#[derive(Debug, Default)]
pub(super) struct Roles(pub(super) Vec<String>);

impl Roles {
    const EXPECTED: &str = "the name of a role, or a list such as [worker, infra]";

    /// Whether the API server would accept it as the value of a label.
    fn is_role(text: &str) -> bool {
        let inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let end = |c: char| c.is_ascii_alphanumeric();
        (1..=63).contains(&text.len())
            && text.chars().all(inner)
            && text.starts_with(end)
            && text.ends_with(end)
    }

    fn of_text(node: &Node, text: &str) -> Result<Vec<String>, Misfit> {
        let roles: Vec<String> = text.split(',').map(|role| role.trim().to_owned()).collect();
        match roles.iter().all(|role| Self::is_role(role)) {
            true => Ok(roles),
            false => Err(Misfit::new(node, Self::EXPECTED)),
        }
    }
}

impl Setting for Roles {
    fn read(node: &Node) -> Result<Self, Misfit> {
        let items = match &node.shape {
            Shape::Text(text) => return Self::of_text(node, text).map(Self),
            Shape::List(items) => items,
            Shape::Nothing | Shape::Map(_) => return Err(Misfit::new(node, Self::EXPECTED)),
        };
        let mut roles = Vec::new();
        for (number, item) in items.iter().enumerate() {
            let one = match &item.shape {
                Shape::Text(text) => Self::of_text(item, text),
                _ => Err(Misfit::new(item, Self::EXPECTED)),
            };
            roles.extend(one.map_err(|misfit| misfit.below(&format!("[{number}]")))?);
        }
        Ok(Self(roles))
    }

    fn show(&self) -> serde_json::Value {
        self.0.iter().map(String::as_str).collect()
    }
}
