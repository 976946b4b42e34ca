//! Handles keys that the version of a document does not support.

use std::{borrow::Cow, cmp::Reverse};

use super::{
    Refusal,
    diagnostics::Diagnostics,
    field_reader::{FieldValue, ObjectReader},
    ignition::versions,
    ignition_dialect::IgnitionSchema,
};
use machinist_base::{reason::Reason, text::edit_distance};

/// Keys that identify an entry and have no effect by themselves.
const IDENTITY_KEYS: [&str; 7] = [
    "path",
    "name",
    "filesystem",
    "kind",
    "apiVersion",
    "metadata",
    "ignition",
];

/// Keys with the main value of an entry. If one is misspelled, the rest of its entry has no effect.
const CONTENT_KEYS: [&str; 5] = ["contents", "source", "inline", "target", "units"];

impl IgnitionSchema {
    /// The place of an object in the table of keys: without the root, and without indexes.
    fn place(&self, object: &FieldValue<'_>) -> String {
        let path = object.path.to_string();
        let path = path.strip_prefix(&self.root).unwrap_or(&path);
        let mut place = String::with_capacity(path.len());
        for c in path.trim_start_matches('.').chars() {
            if !(c.is_ascii_digit() && place.ends_with('[')) {
                place.push(c);
            }
        }
        place
    }
}

impl ObjectReader<'_> {
    /// Checks the keys that were not read. A key is only a warning if another version of Ignition
    /// supports it, if its value is empty, or if the API server accepted the config and the rest of
    /// the entry still has its effect; otherwise the key is refused.
    pub(super) fn finish(self, problems: &mut Diagnostics) {
        let unknown = |key: &str| !self.known.iter().any(|known| *known == key);
        for (key, field) in self.entries().filter(|(key, _)| unknown(key)) {
            let origin = self.origin_of(key, problems);
            let slip = self.slip(key);
            if let Some(message) = self.of_another_version(key, slip.is_some(), problems) {
                problems.warn(&origin, message);
                continue;
            }
            let meant = slip.or_else(|| self.longer(key));
            let question = meant.map_or(String::new(), |meant| format!("; did you mean {meant}?"));
            if field.is_hollow() || self.may_be_ignored(key, slip, problems) {
                let message = format!("unknown field, which has no effect{question}");
                problems.warn(&origin, message);
                continue;
            }
            let message = format!("unknown field{question}");
            let mut refusal = Refusal::new(Reason::FieldUnknown, message).at(&origin);
            if meant.is_none() {
                refusal = refusal.expected(format!("one of {}", self.known.join(", ")));
            }
            problems.push(refusal);
        }
    }

    /// The warning about a key that another version supports. A key of the other major version that
    /// resembles a key of this one is treated as a misspelling.
    fn of_another_version(&self, key: &str, slip: bool, problems: &Diagnostics) -> Option<String> {
        let schema = problems.schema()?;
        let versions = versions(&schema.place(&self.field), key)?;
        let dialect = schema.dialect;
        if versions.contain(dialect) || (slip && !versions.of_same_major(dialect)) {
            return None;
        }
        Some(format!(
            "{key} is a field of Ignition {versions} and has no effect in {dialect}"
        ))
    }

    /// Whether an unknown key with a value may be ignored.
    fn may_be_ignored(&self, key: &str, slip: Option<&str>, problems: &Diagnostics) -> bool {
        // Ignition ignores the case of keys, so this key has an effect there.
        let same_but_case = slip.is_some_and(|meant| meant.eq_ignore_ascii_case(key));
        if same_but_case && problems.schema().is_some() {
            return false;
        }
        let replaces =
            slip.is_some_and(|meant| CONTENT_KEYS.contains(&meant) && !self.has_value(meant));
        problems.ignores_unknown_keys()
            && (problems.in_rendered_config() || !(self.has_identity_only() || replaces))
    }

    fn has_value(&self, key: &str) -> bool {
        self.entries()
            .any(|(have, field)| have == key && !field.is_hollow())
    }

    /// Whether only the keys that identify the entry have a value.
    fn has_identity_only(&self) -> bool {
        let known = |key: &str| self.known.iter().any(|known| *known == key);
        !self
            .entries()
            .any(|(key, field)| known(key) && !IDENTITY_KEYS.contains(&key) && !field.is_hollow())
    }

    /// The known key that differs from `key` by at most two letters, or one if `key` is short.
    fn slip(&self, key: &str) -> Option<&str> {
        let key = plain(key);
        let most = if key.len() > 4 { 2 } else { 1 };
        let near = self.known.iter().filter_map(|known| {
            let known_key = plain(known);
            if known_key.len().abs_diff(key.len()) > most {
                return None;
            }
            let distance = edit_distance(&known_key, &key);
            (distance <= most).then_some((distance, known))
        });
        near.min_by_key(|(distance, _)| *distance)
            .map(|(_, known)| known.as_ref())
    }

    /// The known key that shares more than half of `key`, such as `kernelArguments` for
    /// `kernelArgs`.
    fn longer(&self, key: &str) -> Option<&str> {
        let key = plain(key);
        let shared = |known: &&Cow<'static, str>| {
            let known = plain(known);
            let same = known.bytes().zip(key.bytes()).take_while(|(a, b)| a == b);
            same.count()
        };
        let meant = self
            .known
            .iter()
            .max_by_key(|known| (shared(known), Reverse(known.len())))?;
        (2 * shared(&meant) > key.len()).then_some(meant)
    }
}

/// A key normalised for the spelling differences between the formats.
fn plain(key: &str) -> String {
    key.replace(['_', '-'], "").to_lowercase()
}
