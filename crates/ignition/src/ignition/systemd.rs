//! Parses units and drop-ins.

use super::{
    super::{
        UnitFile, UnitName,
        field_reader::{FieldValue, ObjectReader},
        ignition_dialect::IgnitionDialect,
        parse_context::{ParseContext, insert},
        partial::{PartialConfig, UnitPart},
        versioned_field::{VersionedField, is_there},
    },
    butane_local,
};
use machinist_base::reason::Reason;

pub(super) fn read(
    mut systemd: ObjectReader<'_>,
    dialect: IgnitionDialect,
    parts: &mut PartialConfig,
    reading: &mut ParseContext<'_>,
) {
    for field in systemd.items("units", &mut reading.problems) {
        if let Some((name, unit)) = read_unit(&field, dialect, reading) {
            match parts.units.get_mut(&name) {
                Some(before) if dialect.is_two() => {
                    let earlier = std::mem::replace(before, unit);
                    for (name, drop_in) in earlier.drop_ins {
                        before.drop_ins.entry(name).or_insert(drop_in);
                    }
                }
                _ => insert(&mut parts.units, name, unit, &field, reading),
            }
        }
    }
    systemd.finish(&mut reading.problems);
}

fn read_unit(
    field: &FieldValue<'_>,
    dialect: IgnitionDialect,
    reading: &mut ParseContext<'_>,
) -> Option<(UnitName, UnitPart)> {
    let mut object = field.object(&mut reading.problems)?;
    let name = read_unit_name(&mut object, reading);
    let mut unit = UnitPart {
        contents: read_text(&mut object, dialect, reading),
        enabled: read_enabled(&mut object, dialect, reading),
        mask: object.flag("mask", &mut reading.problems),
        origin: field.origin(&reading.problems),
        ..UnitPart::default()
    };
    for field in object.items("dropins", &mut reading.problems) {
        if let Some((name, drop_in)) = read_drop_in(&field, dialect, reading) {
            insert(&mut unit.drop_ins, name, drop_in, &field, reading);
        }
    }
    // Ignition 2 does not distinguish an empty text or false from an absent field.
    if dialect.is_two() {
        unit.contents = unit.contents.filter(|text| !text.is_empty());
        unit.mask = unit.mask.filter(|mask| *mask);
    }
    object.finish(&mut reading.problems);
    Some((name?, unit))
}

/// Parses the enablement. Ignition 2 has two fields for it; the older one, `enable`, can only
/// enable.
fn read_enabled(
    object: &mut ObjectReader<'_>,
    dialect: IgnitionDialect,
    reading: &mut ParseContext<'_>,
) -> Option<bool> {
    let enabled = is_there(object, VersionedField::new("enabled").two(Some(1)), dialect);
    let enabled = enabled.and_then(|field| field.flag(&mut reading.problems));
    if !dialect.is_two() {
        return enabled;
    }
    let enable = object.get("enable");
    let asked = enable
        .as_ref()
        .and_then(|field| field.flag(&mut reading.problems));
    if let (Some(field), Some(true), Some(false)) = (enable, asked, enabled) {
        let message = "enable and enabled contradict each other";
        field.refuse(&mut reading.problems, Reason::ValueInvalid, message, None);
    }
    enabled.or_else(|| (asked == Some(true)).then_some(true))
}

fn read_unit_name(
    object: &mut ObjectReader<'_>,
    reading: &mut ParseContext<'_>,
) -> Option<UnitName> {
    let Some(field) = object.get("name") else {
        let message = "this unit has no name";
        let reason = Reason::UnitNameInvalid;
        object
            .field
            .refuse(&mut reading.problems, reason, message, Some("name:"));
        return None;
    };
    match UnitName::new(field.text(&mut reading.problems)?) {
        Ok(name) => Some(name),
        Err(error) => {
            let reason = Reason::UnitNameInvalid;
            field.refuse(&mut reading.problems, reason, error.to_string(), None);
            None
        }
    }
}

fn read_drop_in(
    field: &FieldValue<'_>,
    dialect: IgnitionDialect,
    reading: &mut ParseContext<'_>,
) -> Option<(String, Option<String>)> {
    let mut object = field.object(&mut reading.problems)?;
    let name = object
        .need("name", &mut reading.problems)
        .and_then(|field| {
            let name = field.text(&mut reading.problems)?;
            if is_drop_in_name(name) {
                return Some(name.to_owned());
            }
            let message = format!("{name:?} is not a valid drop-in name");
            let expected = Some("a file name that ends in .conf");
            field.refuse(
                &mut reading.problems,
                Reason::UnitNameInvalid,
                message,
                expected,
            );
            None
        });
    let contents = read_text(&mut object, dialect, reading);
    object.finish(&mut reading.problems);
    Some((name?, contents))
}

/// systemd silently skips hidden files and those with another extension.
fn is_drop_in_name(name: &str) -> bool {
    name.len() <= 255
        && name.len() > ".conf".len()
        && name.ends_with(".conf")
        && !name.starts_with('.')
        && !name.contains(|c: char| c == '/' || c.is_control())
}

/// The text of a unit or drop-in, which must parse as a unit file.
fn read_text(
    object: &mut ObjectReader<'_>,
    dialect: IgnitionDialect,
    reading: &mut ParseContext<'_>,
) -> Option<String> {
    let contents = object.get("contents");
    let local = match dialect {
        IgnitionDialect::Butane(_) => object.get("contents_local"),
        _ => None,
    };
    match (contents, local) {
        (Some(_), Some(local)) => {
            let message = "contents and contents_local exclude each other";
            let reason = Reason::ValueInvalid;
            local.refuse(&mut reading.problems, reason, message, None);
            None
        }
        (Some(field), None) => {
            let text = field.text(&mut reading.problems)?;
            check_text(&field, text, "the unit", reading);
            Some(text.to_owned())
        }
        (None, Some(field)) => {
            let text = butane_local::text(&field, reading)?;
            check_text(&field, &text, field.spelling(), reading);
            Some(text)
        }
        (None, None) => None,
    }
}

fn check_text(field: &FieldValue<'_>, text: &str, what: &str, reading: &mut ParseContext<'_>) {
    let reason = Reason::UnitInvalid;
    if text.contains('\0') {
        let message = format!("{what} contains a NUL byte");
        field.refuse(&mut reading.problems, reason, message, None);
    }
    if text.contains("\r\n") {
        let message = format!("the lines of {what} end in CR LF; systemd accepts them");
        field.warn(&mut reading.problems, message);
    }
    for fault in UnitFile::read(text).1 {
        let message = format!("{what}'s {fault}");
        field.refuse_line(&mut reading.problems, reason, fault.line, message);
    }
}
