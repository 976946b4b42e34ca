//! Ignition 3.0–3.6, and the sections that Butane shares with it.
//!
//! Read by hand rather than into a deserialiser's types: that stops at the first mistake, and a
//! person should see all of them, with their places.

mod contents;
mod passwd;
mod storage;
mod systemd;

use std::collections::{BTreeMap, btree_map::Entry};

use super::{
    document::Reading,
    parts::Parts,
    reader::{Field, Object},
};
use crate::reason::Reason;

/// The newest minor version of Ignition 3 that is read.
const NEWEST: u8 = 6;

const ACCEPTED: &str = "3.0.0, 3.1.0, 3.2.0, 3.3.0, 3.4.0, 3.5.0 or 3.6.0";

/// How fields are spelled, and which there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Ignition 3 with this minor version.
    Ignition(u8),
    /// Butane: snake case, and content without data URLs.
    Butane,
}

impl Dialect {
    /// A field's name, given as Ignition spells it.
    pub(super) fn key(self, camel: &str) -> String {
        if self != Self::Butane {
            return camel.to_owned();
        }
        let mut snake = String::with_capacity(camel.len() + 2);
        for c in camel.chars() {
            if c.is_ascii_uppercase() {
                snake.push('_');
            }
            snake.push(c.to_ascii_lowercase());
        }
        snake
    }
}

/// A field that the format knows and machinist does not carry out: its name, and the minor version
/// of Ignition 3 that brought it.
pub(super) type Known = (&'static str, u8);

/// Reads an Ignition config after checking its version.
pub(super) fn read(field: &Field<'_>, reading: &mut Reading<'_>) -> Parts {
    let mut parts = Parts::default();
    let Some(mut object) = field.object(&mut reading.problems) else {
        return parts;
    };
    let Some(ignition) = object.need("ignition", &mut reading.problems) else {
        return parts;
    };
    let Some(mut ignition) = ignition.object(&mut reading.problems) else {
        return parts;
    };
    let Some(minor) = read_version(&mut ignition, reading) else {
        return parts;
    };
    let dialect = Dialect::Ignition(minor);
    let why = "nothing is fetched from elsewhere";
    let known: [Known; 4] = [
        ("config", 0),
        ("proxy", 1),
        ("security", 0),
        ("timeouts", 0),
    ];
    refuse_known(&mut ignition, &known, dialect, why, reading);
    ignition.finish(&mut reading.problems);
    let why = "kernel arguments go into spec.kernelArguments of a MachineConfig";
    refuse_known(
        &mut object,
        &[("kernelArguments", 3)],
        dialect,
        why,
        reading,
    );
    read_sections(&mut object, dialect, &mut parts, reading);
    object.finish(&mut reading.problems);
    parts
}

/// Reads `storage`, `systemd` and `passwd`.
pub(super) fn read_sections(
    object: &mut Object<'_>,
    dialect: Dialect,
    parts: &mut Parts,
    reading: &mut Reading<'_>,
) {
    if let Some(storage) = object.object("storage", &mut reading.problems) {
        storage::read(storage, dialect, parts, reading);
    }
    if let Some(systemd) = object.object("systemd", &mut reading.problems) {
        systemd::read(systemd, dialect, parts, reading);
    }
    if let Some(passwd) = object.object("passwd", &mut reading.problems) {
        passwd::read(passwd, dialect, parts, reading);
    }
}

fn read_version(ignition: &mut Object<'_>, reading: &mut Reading<'_>) -> Option<u8> {
    let field = ignition.need("version", &mut reading.problems)?;
    let version = field.text(&mut reading.problems)?;
    let minor = version
        .strip_prefix("3.")
        .and_then(|rest| rest.strip_suffix(".0"))
        .filter(|digits| digits.len() == 1)
        .and_then(|digits| digits.parse().ok())
        .filter(|minor| *minor <= NEWEST);
    if minor.is_none() {
        let message = format!("Ignition {version:?} is not read");
        let reason = Reason::VersionUnsupported;
        field.refuse(&mut reading.problems, reason, message, Some(ACCEPTED));
    }
    minor
}

/// Refuses by name what the format knows and machinist does not do. Empty values say nothing, and
/// exports are full of them; a field newer than the stated version is not known to it.
pub(super) fn refuse_known(
    object: &mut Object<'_>,
    known: &[Known],
    dialect: Dialect,
    why: &str,
    reading: &mut Reading<'_>,
) {
    for (name, since) in known {
        let key = dialect.key(name);
        let too_new = matches!(dialect, Dialect::Ignition(minor) if minor < *since);
        let Some(field) = object
            .get(&key)
            .filter(|field| too_new || !field.is_hollow())
        else {
            continue;
        };
        let (reason, message) = if too_new {
            let message = format!("{key} came with Ignition 3.{since}.0");
            (Reason::FieldUnknown, message)
        } else {
            let message = format!("{key} is not supported: {why}");
            (Reason::FeatureUnsupported, message)
        };
        field.refuse(&mut reading.problems, reason, message, None);
    }
}

/// Adds an entry under its key, or refuses the second one of a document.
fn insert<K: Ord + std::fmt::Display, V>(
    map: &mut BTreeMap<K, V>,
    key: K,
    value: V,
    field: &Field<'_>,
    reading: &mut Reading<'_>,
) {
    match map.entry(key) {
        Entry::Vacant(place) => {
            place.insert(value);
        }
        Entry::Occupied(place) => {
            let message = format!("{} is there twice in one config", place.key());
            field.refuse(&mut reading.problems, Reason::EntryDuplicate, message, None);
        }
    }
}
