//! The state of parsing one text.

use std::collections::{BTreeMap, btree_map::Entry};

use super::{ConfigRules, LocalFileSource, diagnostics::Diagnostics, field_reader::FieldValue};
use machinist_base::reason::Reason;

/// The state of parsing one text.
pub(super) struct ParseContext<'a> {
    pub(super) problems: Diagnostics,
    pub(super) rules: &'a ConfigRules,
    /// How many decoded bytes the rest of the text may still contain.
    pub(super) budget: usize,
    /// The name of the text.
    pub(super) text: &'a str,
    /// Access to the files beside the text.
    pub(super) local: &'a dyn LocalFileSource,
    /// The name of documents that have none of their own.
    pub(super) stem: &'a str,
    /// Whether a file without `overwrite` replaces an existing one, as in a MachineConfig.
    pub(super) overwrites: bool,
}

/// Adds an entry under its key, or refuses the second one in a document.
pub(super) fn insert<K: Ord + std::fmt::Display, V>(
    map: &mut BTreeMap<K, V>,
    key: K,
    value: V,
    field: &FieldValue<'_>,
    reading: &mut ParseContext<'_>,
) {
    match map.entry(key) {
        Entry::Vacant(place) => {
            place.insert(value);
        }
        Entry::Occupied(place) => {
            let message = format!("{} is defined twice in one config", place.key());
            field.refuse(&mut reading.problems, Reason::EntryDuplicate, message, None);
        }
    }
}
