//! Names the problem of a key that no setting has.

use super::{
    error::{SettingOrigin, SettingsProblem},
    fragment::{Leaf, describe, env_name},
};
use machinist_base::{reason::Reason, text::edit_distance};

/// Keys of earlier versions, each with its name of today.
const RENAMED_KEYS: [(&str, &str); 2] = [
    ("jobs", "roles"),
    ("readiness.own", "readiness.customGates"),
];

/// The problem of a key that no setting has.
pub(super) fn unknown(leaf: &Leaf, known: &[&str]) -> SettingsProblem {
    let in_env = matches!(leaf.node.at, SettingOrigin::Environment { .. });
    let spelled = |key: &str| match in_env {
        true => env_name(key),
        false => key.to_owned(),
    };
    let renamed = RENAMED_KEYS.iter().find(|(former, _)| {
        let rest = leaf.key.strip_prefix(spelled(former).as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    });
    let section = format!("{}.", leaf.key);
    let below: Vec<_> = known
        .iter()
        .filter(|key| spelled(key).starts_with(&section))
        .copied()
        .collect();
    let value_above = known
        .iter()
        .find(|key| leaf.key.starts_with(&format!("{}.", spelled(key))));
    let (reason, message, expected) = if let Some((_, today)) = renamed {
        let message = format!("unknown key; it is called {} now", spelled(today));
        (Reason::FieldUnknown, message, String::new())
    } else if let Some(key) = value_above {
        let message = format!("found a mapping at {key}");
        (Reason::ValueInvalid, message, "a value".to_owned())
    } else if !below.is_empty() {
        let message = format!("found {} in place of a section", describe(&leaf.node.shape));
        (Reason::ValueInvalid, message, below.join(", "))
    } else {
        let sections: Vec<_> = known.iter().flat_map(|key| sections(key)).collect();
        let meant = match leaf.is_left_empty() {
            true => misspelled(&leaf.key, &spelled, &sections),
            false => None,
        };
        match meant.or_else(|| misspelled(&leaf.key, &spelled, known)) {
            Some(meant) => (
                Reason::FieldUnknown,
                format!("unknown key; did you mean {meant}?"),
                String::new(),
            ),
            None => (
                Reason::FieldUnknown,
                "unknown key".to_owned(),
                beside(&leaf.key, &spelled, known),
            ),
        }
    };
    SettingsProblem {
        at: leaf.node.at.clone(),
        field: leaf.key.clone(),
        reason,
        message,
        expected,
    }
}

/// The sections that contain a key, from the outermost.
fn sections(key: &str) -> impl Iterator<Item = &str> {
    key.match_indices('.').map(|(dot, _)| &key[..dot])
}

/// The known key that differs by at most two letters, or by one if `key` is short.
fn misspelled(key: &str, spelled: &dyn Fn(&str) -> String, known: &[&str]) -> Option<String> {
    // A quoted key with dots is one key, not a misspelled path.
    if key.contains('"') {
        return None;
    }
    let most = if key.len() > 4 { 2 } else { 1 };
    let near = known.iter().map(|one| spelled(one)).filter_map(|one| {
        let distance = edit_distance(&one.to_lowercase(), &key.to_lowercase());
        (distance <= most).then_some((distance, one))
    });
    let nearest = near.min_by_key(|(distance, _)| *distance);
    nearest.map(|(_, one)| one)
}

/// The known keys of the same section, or all sections.
fn beside(key: &str, spelled: &dyn Fn(&str) -> String, known: &[&str]) -> String {
    let section = key
        .rsplit_once('.')
        .map(|(section, _)| format!("{section}."));
    let same: Vec<_> = known
        .iter()
        .filter(|one| {
            section
                .as_deref()
                .is_some_and(|s| spelled(one).starts_with(s))
        })
        .copied()
        .collect();
    if !same.is_empty() {
        return format!("one of {}", same.join(", "));
    }
    let mut tops: Vec<_> = known
        .iter()
        .map(|one| one.split('.').next().unwrap_or(one))
        .collect();
    tops.sort_unstable();
    tops.dedup();
    format!("one of {}", tops.join(", "))
}
