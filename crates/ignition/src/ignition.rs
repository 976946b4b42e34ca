//! Parses Ignition 3.0–3.6 and 2.0–2.2, and the sections that Butane shares with them.
//!
//! This is not a deserialiser with derived types, because that stops at the first error and users
//! should get all errors with their places. Ignition 2 is parsed directly instead of being
//! translated to Ignition 3 first, so that errors use the field names of the document.

mod accounts;
mod butane_local;
mod butane_trees;
mod contents;
mod disk_layout;
mod file_mode;
mod key_versions;
mod passwd;
mod storage;
mod systemd;

pub use self::storage::place_fault;

use std::{
    borrow::Cow,
    collections::{BTreeMap, btree_map::Entry},
};

use super::{
    field_reader::{FieldValue, ObjectReader},
    parser::ParseContext,
    partial::PartialConfig,
    unknown_keys::IgnitionSchema,
};
pub(super) use key_versions::versions;
use machinist_base::reason::Reason;

/// The newest supported minor versions. For Ignition 2 they are those that OpenShift translates;
/// the additions of 2.3 concern disks.
pub(super) const MAX_V3_MINOR: u8 = 6;
const MAX_V2_MINOR: u8 = 2;

const ACCEPTED_VERSIONS: &str =
    "2.0.0, 2.1.0, 2.2.0, 3.0.0, 3.1.0, 3.2.0, 3.3.0, 3.4.0, 3.5.0 or 3.6.0";

/// Which fields exist, and how they are spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IgnitionDialect {
    /// Ignition 2 with this minor version.
    Two(u8),
    /// Ignition 3 with this minor version.
    Three(u8),
    /// Butane, which generates Ignition 3 with this minor version: snake case, and content without
    /// data URLs.
    Butane(u8),
}

impl std::fmt::Display for IgnitionDialect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Two(minor) => write!(f, "2.{minor}.0"),
            Self::Three(minor) | Self::Butane(minor) => write!(f, "3.{minor}.0"),
        }
    }
}

impl IgnitionDialect {
    pub(super) fn is_two(self) -> bool {
        matches!(self, Self::Two(_))
    }

    pub(super) fn is_butane(self) -> bool {
        matches!(self, Self::Butane(_))
    }

    /// Whether set-id and sticky bits have an effect; versions before 3.6 never set them.
    fn has_special_modes(self) -> bool {
        matches!(self, Self::Three(6..) | Self::Butane(6..))
    }

    /// A field's name in this dialect; `camel` is Ignition's spelling.
    pub(super) fn key(self, camel: &'static str) -> Cow<'static, str> {
        if !self.is_butane() {
            return camel.into();
        }
        let mut snake = String::with_capacity(camel.len() + 2);
        for c in camel.chars() {
            if c.is_ascii_uppercase() {
                snake.push('_');
            }
            snake.push(c.to_ascii_lowercase());
        }
        snake.into()
    }
}

/// A field that was not part of the first version of its format.
#[derive(Clone, Copy, Debug)]
pub(super) struct VersionedField {
    name: &'static str,
    two: Option<u8>,
    three: Option<u8>,
}

impl VersionedField {
    /// A field that all versions support.
    pub(super) const fn new(name: &'static str) -> Self {
        Self {
            name,
            two: Some(0),
            three: Some(0),
        }
    }

    /// The field was added in this minor version of Ignition 2; none if Ignition 2 never had it.
    const fn two(self, two: Option<u8>) -> Self {
        Self { two, ..self }
    }

    /// The same for Ignition 3.
    const fn three(self, three: Option<u8>) -> Self {
        Self { three, ..self }
    }

    /// The minor version that added the field, and the minor version of the document.
    fn since(self, dialect: IgnitionDialect) -> Option<(u8, u8)> {
        match dialect {
            IgnitionDialect::Two(minor) => self.two.map(|since| (since, minor)),
            IgnitionDialect::Three(minor) => self.three.map(|since| (since, minor)),
            IgnitionDialect::Butane(_) => self.three.map(|_| (0, 0)),
        }
    }
}

/// Parses an Ignition config after checking its version.
pub(super) fn read(field: &FieldValue<'_>, reading: &mut ParseContext<'_>) -> PartialConfig {
    let mut parts = PartialConfig::default();
    let Some(mut object) = field.object(&mut reading.problems) else {
        return parts;
    };
    let Some(dialect) = read_head(&mut object, reading) else {
        return parts;
    };
    let why = "kernel arguments go into spec.kernelArguments of a MachineConfig";
    let known = [VersionedField::new("kernelArguments")
        .two(None)
        .three(Some(3))];
    refuse_known(&mut object, &known, dialect, why, reading);
    let why = "write the files of systemd-networkd below /etc/systemd/network";
    let known = [VersionedField::new("networkd").three(None)];
    refuse_known(&mut object, &known, dialect, why, reading);
    read_sections(&mut object, dialect, &mut parts, reading);
    object.finish(&mut reading.problems);
    reading.problems.enter_schema(None);
    parts
}

/// Parses the section with the version; none for an unsupported version. If the version is missing
/// or invalid, it is refused and the rest is checked as the newest version.
fn read_head(
    object: &mut ObjectReader<'_>,
    reading: &mut ParseContext<'_>,
) -> Option<IgnitionDialect> {
    const DEFAULT_DIALECT: IgnitionDialect = IgnitionDialect::Three(MAX_V3_MINOR);
    let Some(field) = object.need("ignition", &mut reading.problems) else {
        return Some(DEFAULT_DIALECT);
    };
    let Some(mut ignition) = field.object(&mut reading.problems) else {
        return Some(DEFAULT_DIALECT);
    };
    let version = ignition.need("version", &mut reading.problems);
    let version = version.and_then(|field| Some((field.text(&mut reading.problems)?, field)));
    let dialect = match version {
        Some((version, field)) => read_version(version, &field, reading)?,
        None => DEFAULT_DIALECT,
    };
    let why = "machinist does not fetch remote content";
    let known = [
        VersionedField::new("config"),
        VersionedField::new("proxy").two(None).three(Some(1)),
        VersionedField::new("security").two(Some(2)),
        VersionedField::new("timeouts").two(Some(1)),
    ];
    refuse_known(&mut ignition, &known, dialect, why, reading);
    reading.problems.enter_schema(Some(IgnitionSchema {
        dialect,
        root: object.field.path.to_string(),
    }));
    ignition.finish(&mut reading.problems);
    Some(dialect)
}

/// Parses `storage`, `systemd` and `passwd`.
pub(super) fn read_sections(
    object: &mut ObjectReader<'_>,
    dialect: IgnitionDialect,
    parts: &mut PartialConfig,
    reading: &mut ParseContext<'_>,
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

fn read_version(
    version: &str,
    field: &FieldValue<'_>,
    reading: &mut ParseContext<'_>,
) -> Option<IgnitionDialect> {
    let minor = |major: &str, newest: u8| -> Option<u8> {
        let rest = version.strip_prefix(major)?.strip_suffix(".0")?;
        let minor = rest.parse().ok().filter(|minor| *minor <= newest)?;
        (rest.len() == 1).then_some(minor)
    };
    let dialect = minor("3.", MAX_V3_MINOR)
        .map(IgnitionDialect::Three)
        .or_else(|| minor("2.", MAX_V2_MINOR).map(IgnitionDialect::Two));
    if dialect.is_none() {
        let message = format!("Ignition version {version:?} is not supported");
        let reason = Reason::VersionUnsupported;
        field.refuse(
            &mut reading.problems,
            reason,
            message,
            Some(ACCEPTED_VERSIONS),
        );
    }
    dialect
}

/// Refuses fields that the format has and machinist does not support. Empty values have no effect
/// and are common in exports, so they are accepted.
pub(super) fn refuse_known(
    object: &mut ObjectReader<'_>,
    known: &[VersionedField],
    dialect: IgnitionDialect,
    why: &str,
    reading: &mut ParseContext<'_>,
) {
    for known in known {
        let Some(field) = is_there(object, *known, dialect) else {
            continue;
        };
        if !field.is_hollow() {
            let key = dialect.key(known.name);
            let message = format!("{key} is not supported: {why}");
            let reason = Reason::FeatureUnsupported;
            field.refuse(&mut reading.problems, reason, message, None);
        }
    }
}

/// The field, if the document's version supports it. All others are left for [`ObjectReader::finish`].
fn is_there<'n>(
    object: &mut ObjectReader<'n>,
    known: VersionedField,
    dialect: IgnitionDialect,
) -> Option<FieldValue<'n>> {
    let (since, minor) = known.since(dialect)?;
    (minor >= since).then(|| object.get(dialect.key(known.name)))?
}

/// Adds an entry under its key, or refuses the second one in a document.
fn insert<K: Ord + std::fmt::Display, V>(
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
