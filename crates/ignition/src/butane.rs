//! Parses Butane, the human-friendly form of Ignition with inline content instead of data URLs.
//!
//! Only settings that apply to a running machine are supported. Other files are read through
//! [`super::Local`].

use super::{
    field_reader::FieldValue,
    ignition,
    ignition_dialect::IgnitionDialect,
    kernel_fields::read_kernel,
    parse_context::ParseContext,
    partial::PartialConfig,
    scalar::ScalarValue,
    versioned_field::{VersionedField, refuse_known},
};
use machinist_base::reason::Reason;

/// Parses a Butane config of variant `fcos` or `openshift`.
pub(super) fn read(field: &FieldValue<'_>, reading: &mut ParseContext<'_>) -> PartialConfig {
    let mut parts = PartialConfig::default();
    let Some(mut object) = field.object(&mut reading.problems) else {
        return parts;
    };
    let Some(variant) = object.need("variant", &mut reading.problems) else {
        return parts;
    };
    let version = object.need("version", &mut reading.problems);
    let Some((kind, minor)) = read_version(&variant, version, reading) else {
        return parts;
    };
    let dialect = IgnitionDialect::Butane(minor);
    reading.problems.accept_plain_texts(true);
    object.get("metadata");
    if kind == ButaneVariant::OpenShift
        && let Some(mut section) = object.object("openshift", &mut reading.problems)
    {
        read_kernel(
            &mut section,
            "kernel_arguments",
            "kernel_type",
            &mut parts,
            reading,
        );
        section.finish(&mut reading.problems);
    }
    let known = ["ignition", "bootDevice", "grub", "kernelArguments"].map(VersionedField::new);
    let why = "it concerns the first boot or the boot loader";
    refuse_known(&mut object, &known, dialect, why, reading);
    ignition::read_sections(&mut object, dialect, &mut parts, reading);
    object.finish(&mut reading.problems);
    reading.problems.accept_plain_texts(false);
    parts
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ButaneVariant {
    Fcos,
    OpenShift,
}

impl ButaneVariant {
    /// The minor version of Ignition 3 that Butane generates from a minor version of the variant.
    const fn ignition(self, minor: u8) -> u8 {
        match (self, minor) {
            (Self::Fcos, 0..=2) => minor,
            (Self::Fcos, _) => minor - 1,
            (Self::OpenShift, ..=13) => 2,
            (Self::OpenShift, 14..=18) => 4,
            (Self::OpenShift, 19..=21) => 5,
            (Self::OpenShift, _) => 6,
        }
    }
}

/// The variant, and the minor version of Ignition 3 that Butane generates from it, for supported
/// versions: those that generate Ignition 3.0–3.6. A version that is missing or not a string is
/// refused, and the rest of the text is checked as the newest version.
fn read_version(
    variant: &FieldValue<'_>,
    version: Option<FieldValue<'_>>,
    reading: &mut ParseContext<'_>,
) -> Option<(ButaneVariant, u8)> {
    let problems = &mut reading.problems;
    let (kind, major, minors, accepted) = match variant.text(problems)? {
        "fcos" => (ButaneVariant::Fcos, 1, 0..=7, "1.0.0 to 1.7.0"),
        "openshift" => (ButaneVariant::OpenShift, 4, 8..=22, "4.8.0 to 4.22.0"),
        other => {
            let message = format!("Butane variant {other:?} is not supported");
            let reason = Reason::VersionUnsupported;
            variant.refuse(problems, reason, message, Some("fcos or openshift"));
            return None;
        }
    };
    let newest = (kind, ignition::MAX_V3_MINOR);
    let Some(version) = version else {
        return Some(newest);
    };
    // A number, such as 1.6, is refused with the versions that are supported.
    let text = match version.scalar() {
        Some(ScalarValue::Text(text)) => text,
        Some(scalar) if scalar != ScalarValue::Null => version.spelling(),
        _ => {
            version.text(problems);
            return Some(newest);
        }
    };
    let number = text
        .strip_suffix(".0")
        .and_then(|text| text.split_once('.'))
        .and_then(|(high, low)| Some((high.parse::<u8>().ok()?, low.parse::<u8>().ok()?)));
    let number = number.filter(|(high, low)| *high == major && minors.contains(low));
    if let Some((_, low)) = number {
        return Some((kind, kind.ignition(low)));
    }
    let message = format!("version {text:?} of this variant is not supported");
    version.refuse(
        problems,
        Reason::VersionUnsupported,
        message,
        Some(accepted),
    );
    None
}
