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
mod target_path;

pub use self::target_path::place_fault;

use super::{
    field_reader::{FieldValue, ObjectReader},
    ignition_dialect::{IgnitionDialect, IgnitionSchema},
    parse_context::ParseContext,
    partial::PartialConfig,
    versioned_field::{VersionedField, is_there, refuse_known},
};
pub(super) use key_versions::versions;
use machinist_base::reason::Reason;

/// The newest supported minor versions. For Ignition 2 they are those that OpenShift translates;
/// the additions of 2.3 concern disks.
pub(super) const MAX_V3_MINOR: u8 = 6;
const MAX_V2_MINOR: u8 = 2;

const ACCEPTED_VERSIONS: &str =
    "2.0.0, 2.1.0, 2.2.0, 3.0.0, 3.1.0, 3.2.0, 3.3.0, 3.4.0, 3.5.0 or 3.6.0";

/// Options of the fetches of remote content, which leave the machine unchanged.
const FETCH_OPTIONS: [VersionedField; 3] = [
    VersionedField::new("proxy").two(None).three(Some(1)),
    VersionedField::new("security").two(Some(2)),
    VersionedField::new("timeouts").two(Some(1)),
];

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
    let known = [VersionedField::new("config")];
    refuse_known(&mut ignition, &known, dialect, why, reading);
    for known in FETCH_OPTIONS {
        if let Some(field) = is_there(&mut ignition, known, dialect)
            && !field.is_hollow()
        {
            let message = format!("{} has no effect: {why}", known.name);
            field.warn(&mut reading.problems, message);
        }
    }
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
