//! Selects the MachineConfigs that apply to this machine's roles.

use std::collections::{BTreeMap, BTreeSet};

use super::{ConfigDocument, Refusal, diagnostics::RENDERED_PREFIX};
use machinist_base::{reason::Reason, text};

/// The maximum number of MachineConfigs named in one message.
const MAX_NAMED_CONFIGS: usize = 5;

/// Removes the documents of roles other than `roles` and returns a message about them. Documents
/// without a role apply to every role; a rendered config always applies to the machine that it was
/// rendered for.
///
/// # Errors
/// `roles` is empty and the documents have several roles.
pub(super) fn select(
    documents: &mut Vec<ConfigDocument>,
    roles: &[String],
) -> Result<Option<String>, Refusal> {
    if roles.is_empty() {
        return match mixed(documents) {
            Some(refusal) => Err(refusal),
            None => Ok(None),
        };
    }
    let is_ours = |document: &ConfigDocument| match role(document) {
        Some(role) => roles.iter().any(|ours| ours == role),
        None => true,
    };
    let others = documents.iter().filter(|document| !is_ours(document));
    let others: Vec<String> = others.map(shown).collect();
    documents.retain(is_ours);
    Ok((!others.is_empty()).then(|| {
        format!(
            "ignored, because their role is not {}: {}",
            roles.join(" or "),
            text::join_limited(others.iter(), MAX_NAMED_CONFIGS)
        )
    }))
}

/// The role that decides whether a document applies.
fn role(document: &ConfigDocument) -> Option<&str> {
    let role = document.role.as_deref().filter(|role| !role.is_empty());
    role.filter(|_| !document.name.starts_with(RENDERED_PREFIX))
}

/// The refusal of documents with several roles, naming one file of each.
fn mixed(documents: &[ConfigDocument]) -> Option<Refusal> {
    let mut files: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for document in documents {
        if let Some(role) = role(document) {
            let file = document.origin.file.as_deref().unwrap_or(&document.name);
            files.entry(role).or_default().insert(file);
        }
    }
    if files.len() < 2 {
        return None;
    }
    let each = files.iter().map(|(role, files)| {
        let files = text::join_limited(files.iter(), MAX_NAMED_CONFIGS);
        format!("{role} ({files})")
    });
    let each: Vec<String> = each.collect();
    let message = format!("MachineConfigs of several roles found: {}", each.join("; "));
    let refusal = Refusal::new(Reason::RolesMixed, message);
    Some(refusal.expected("the roles of this machine in --role or in the setting source.role"))
}

fn shown(document: &ConfigDocument) -> String {
    let role = document.role.as_deref().unwrap_or_default();
    let file = document.origin.file.as_deref().unwrap_or_default();
    format!("{} ({file}, role {role})", document.name)
}
