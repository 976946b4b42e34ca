//! Parses machinist's YAML documents about devices strictly, and reports all errors with their
//! positions.

mod location;

use std::collections::BTreeSet;

use machinist_yaml::{CoreScalar, CoreSchema, Location, Node, YamlError, YamlFault};
use serde::{Deserialize, de::DeserializeOwned};

use super::Refusal;
use machinist_base::reason::Reason;

/// The only supported version.
pub const API_VERSION: &str = "machinist.dev/v1";
/// The maximum size in bytes. No real document is larger; a larger one is a mistake or an attack and
/// is not parsed.
pub const MAX_DOCUMENT_BYTES: usize = 64 * 1024;

/// The kinds of documents and the directories in which each is read.
const DOCUMENT_KINDS: [(&str, &str); 2] = [
    ("DeviceDeclaration", "devices.d"),
    ("DeviceVendor", "vendors.d"),
];

type YamlNode = Node<CoreScalar>;

/// The fields that identify a document's type.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DocumentHeader {
    api_version: Option<String>,
    kind: Option<String>,
}

/// The error for a document of another version, or of a kind that belongs in another directory:
/// errors about its fields would not help the author.
fn stray(document: &YamlNode, kind: &str) -> Option<Refusal> {
    let head: DocumentHeader = machinist_yaml::decode(document).ok()?;
    if let Some(given) = head.api_version.filter(|given| given != API_VERSION) {
        return Some(unsupported(&given));
    }
    let given = head.kind.filter(|given| given != kind)?;
    let (_, place) = DOCUMENT_KINDS.iter().find(|(known, _)| *known == given)?;
    let message = format!("{given} must be in {place}, not here");
    let refusal = Refusal::new(Reason::ValueInvalid, message).field("kind");
    Some(refusal.expected(kind))
}

fn unsupported(version: &str) -> Refusal {
    let message = format!("{version:?} is not supported");
    let refusal = Refusal::new(Reason::VersionUnsupported, message).field("apiVersion");
    refusal.expected(API_VERSION)
}

/// Parses a document of this kind into its schema `W` and validates it with `check`. All errors that
/// can be found are returned, each with file, line and column.
pub(super) fn parse<W: DeserializeOwned, T>(
    kind: &str,
    file: &str,
    text: &str,
    check: impl FnOnce(W) -> Result<T, Vec<Refusal>>,
) -> Result<T, Vec<Refusal>> {
    let parsed = read(kind, text, check);
    parsed.map_err(|mut refusals| {
        let mut seen = BTreeSet::new();
        refusals.retain(|refusal| seen.insert((refusal.field.clone(), refusal.message.clone())));
        for refusal in &mut refusals {
            refusal.file = Some(file.to_owned());
        }
        refusals
    })
}

fn read<W: DeserializeOwned, T>(
    kind: &str,
    text: &str,
    check: impl FnOnce(W) -> Result<T, Vec<Refusal>>,
) -> Result<T, Vec<Refusal>> {
    if text.len() > MAX_DOCUMENT_BYTES {
        let message = format!("the file has {} bytes", text.len());
        let refusal = Refusal::new(Reason::ValueInvalid, message);
        return Err(vec![
            refusal.expected(format!("at most {MAX_DOCUMENT_BYTES} bytes")),
        ]);
    }
    let to_refusals = |error: YamlError| vec![refusal(error)];
    let document = machinist_yaml::read_only(text, CoreSchema).map_err(to_refusals)?;
    let checked = match stray(&document, kind) {
        Some(stray) => Err(vec![stray]),
        None => (machinist_yaml::decode(&document).map_err(to_refusals)).and_then(check),
    };
    checked.map_err(|mut refusals| {
        location::locate(&document, &mut refusals);
        refusals
    })
}

/// An absent field gets the place of the nearest enclosing one later, like errors of validation.
fn refusal(error: YamlError) -> Refusal {
    let mut refusal = Refusal::new(reason(error.fault), error.message);
    if !error.expected.is_empty() {
        refusal = refusal.expected(error.expected);
    }
    refusal.field = Some(error.field).filter(|field| !field.is_empty());
    if error.fault != YamlFault::FieldMissing {
        set_place(&mut refusal, error.place);
    }
    refusal
}

fn reason(fault: YamlFault) -> Reason {
    match fault {
        YamlFault::Syntax => Reason::SyntaxInvalid,
        YamlFault::KeyDuplicate => Reason::EntryDuplicate,
        YamlFault::FieldUnknown => Reason::FieldUnknown,
        YamlFault::FieldMissing | YamlFault::ValueInvalid => Reason::ValueInvalid,
    }
}

fn set_place(refusal: &mut Refusal, place: Location) {
    (refusal.line, refusal.column) = (Some(place.line), Some(place.column));
}

/// Collects refusals, so that the author of a document sees all of them at once.
#[derive(Debug, Default)]
pub(super) struct Refusals(pub(super) Vec<Refusal>);

impl Refusals {
    /// Adds a refusal; an empty `expected` is left out.
    pub(super) fn refuse(
        &mut self,
        reason: Reason,
        field: &str,
        message: impl Into<String>,
        expected: &str,
    ) {
        let refusal = Refusal::new(reason, message).field(field);
        self.0.push(if expected.is_empty() {
            refusal
        } else {
            refusal.expected(expected)
        });
    }

    /// Adds a refusal of an invalid value.
    pub(super) fn value(&mut self, field: &str, message: impl Into<String>, expected: &str) {
        self.refuse(Reason::ValueInvalid, field, message, expected);
    }

    /// Checks version and kind, which every document has.
    pub(super) fn head(&mut self, given: (&str, &str), kind: &str) {
        if given.0 != API_VERSION {
            self.0.push(unsupported(given.0));
        }
        if given.1 != kind {
            let message = format!("{:?} is not a supported kind", given.1);
            self.value("kind", message, kind);
        }
    }
}
