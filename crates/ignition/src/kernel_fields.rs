//! Parses the fields for kernel and packages of a MachineConfig and of Butane.

use super::{
    EntryKind, KernelCommandLine,
    diagnostics::Diagnostics,
    field_reader::{FieldValue, ObjectReader},
    parse_context::ParseContext,
    partial::PartialConfig,
};
use machinist_base::reason::Reason;

/// Parses the fields for kernel and packages, which have other names in Butane's `openshift:`
/// section.
pub(super) fn read_kernel(
    object: &mut ObjectReader<'_>,
    arguments_key: &'static str,
    type_key: &'static str,
    parts: &mut PartialConfig,
    reading: &mut ParseContext<'_>,
) {
    let problems = &mut reading.problems;
    for field in object.items(arguments_key, problems) {
        // OpenShift ignores empty arguments.
        if field.is_blank() {
            field.warn(
                problems,
                "an empty kernel argument has no effect".to_owned(),
            );
        } else if let Some(word) = read_word(&field, problems) {
            for argument in KernelCommandLine::parse(&word).iter() {
                let at = field.origin(problems);
                parts.note_os(EntryKind::KernelArgument, argument.as_str(), at);
            }
            parts.kernel_arguments.push(word);
        }
    }
    for field in object.items("extensions", problems) {
        if let Some(word) = read_word(&field, problems) {
            parts.note_os(EntryKind::Extension, &word, field.origin(problems));
            parts.extensions.push(word);
        }
    }
    if let Some(field) = object.get("fips") {
        parts.fips = field.flag(problems).unwrap_or(false);
        parts.note_os(EntryKind::KernelArgument, "fips=1", field.origin(problems));
    }
    if let Some(field) = object.get(type_key) {
        match field.text(problems) {
            None | Some("" | "default") => {}
            Some(kind @ ("realtime" | "64k-pages")) => {
                let origin = field.origin(problems);
                let name = format!("kernelType {kind}");
                parts.note_os(EntryKind::OSImage, &name, origin.clone());
                parts.kernel_type = Some((kind.to_owned(), origin));
            }
            Some(other) => {
                let message = format!("{other:?} is not a known kernel type");
                let expected = Some("default, realtime or 64k-pages");
                field.refuse(problems, Reason::ValueInvalid, message, expected);
            }
        }
    }
}

fn read_word(field: &FieldValue<'_>, problems: &mut Diagnostics) -> Option<String> {
    let word = field.text(problems)?;
    let fault = match word {
        _ if word.trim().is_empty() => "is empty",
        _ if word.contains(['\n', '\r']) => "contains a line break",
        // The kernel separates arguments by tabs as well.
        _ if word.chars().any(|c| c.is_control() && c != '\t') => "contains control characters",
        _ => return Some(word.to_owned()),
    };
    field.refuse(problems, Reason::ValueInvalid, fault, None);
    None
}
