//! Parses the roles of a machine.

use super::{
    extract::{Mismatches, Setting, ValueMismatch},
    fragment::{ValueNode, ValueShape},
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

    /// The roles in their order, each only where it is named first.
    fn each_once(all: Vec<String>) -> Self {
        let mut roles: Vec<String> = Vec::with_capacity(all.len());
        for role in all {
            if !roles.contains(&role) {
                roles.push(role);
            }
        }
        Self(roles)
    }

    fn of_text(node: &ValueNode, text: &str) -> Result<Vec<String>, Vec<ValueMismatch>> {
        let roles: Vec<String> = text.split(',').map(|role| role.trim().to_owned()).collect();
        match roles.iter().all(|role| Self::is_role(role)) {
            true => Ok(roles),
            false => Err(vec![ValueMismatch::new(node, Self::EXPECTED)]),
        }
    }
}

impl Setting for Roles {
    fn read(node: &ValueNode) -> Result<Self, Vec<ValueMismatch>> {
        let wrong_kind = || ValueMismatch::new(node, Self::EXPECTED);
        let items = match &node.shape {
            ValueShape::Text(text) => return Self::of_text(node, text).map(Self::each_once),
            ValueShape::List(items) => items,
            ValueShape::Nothing | ValueShape::Map(_) => return Err(vec![wrong_kind()]),
        };
        let (mut roles, mut wrong) = (Vec::new(), Mismatches::default());
        for (number, item) in items.iter().enumerate() {
            let one = match &item.shape {
                ValueShape::Text(text) => Self::of_text(item, text),
                _ => Err(vec![ValueMismatch::new(item, Self::EXPECTED)]),
            };
            roles.extend(
                wrong
                    .take(&format!("[{number}]"), one)
                    .into_iter()
                    .flatten(),
            );
        }
        wrong.or(Some(Self::each_once(roles)), wrong_kind)
    }

    fn show(&self) -> serde_json::Value {
        self.0.iter().map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::settings::{Fragment, SettingsInputs, load};

    fn roles(text: &str) -> Option<Vec<String>> {
        let flags = Fragment::default().with_flag("--role", "source.role", text);
        let settings = load(SettingsInputs {
            flags,
            ..SettingsInputs::default()
        });
        settings.ok().map(|settings| settings.source_roles)
    }

    #[test]
    fn roles_are_trimmed_and_each_counts_once() {
        for (text, expected) in [
            ("worker", &["worker"][..]),
            ("worker, worker", &["worker"]),
            (" worker ,infra,worker", &["worker", "infra"]),
        ] {
            assert_eq!(roles(text).as_deref().unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn an_empty_role_is_refused() {
        for text in ["", " ", "worker,", ",worker", "worker,,infra", "worker, "] {
            assert_eq!(roles(text), None, "{text:?}");
        }
    }
}
