//! Parses machinist's YAML documents about devices strictly, and reports all errors with their
//! positions.

mod location;

use std::{collections::BTreeSet, rc::Rc};

use machinist_yaml::{CoreScalar, CoreSchema, Entry, Location, Node, Value, YamlError, YamlFault};
use serde::{Deserialize, de::DeserializeOwned};

use super::Refusal;
use machinist_base::reason::Reason;

/// The only supported version.
pub const API_VERSION: &str = "machinist.dev/v1";
/// The maximum size in bytes. No real document is larger; a larger one is a mistake or an attack and
/// is not parsed.
pub const MAX_DOCUMENT_BYTES: usize = 64 * 1024;

/// The maximum number of wrong values that are reported: more than an author can read.
const MAX_WRONG_VALUES: usize = 64;

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
        None => decode_and_check(&document, check),
    };
    checked.map_err(|mut refusals| {
        location::locate(&document, &mut refusals);
        refusals
    })
}

/// Decodes a document and validates it. After wrong values the rest of the document is validated as well.
fn decode_and_check<W: DeserializeOwned, T>(
    document: &YamlNode,
    check: impl FnOnce(W) -> Result<T, Vec<Refusal>>,
) -> Result<T, Vec<Refusal>> {
    let (written, mut refusals) = decode_sound(document);
    match written.map(check) {
        Some(Ok(checked)) if refusals.is_empty() => return Ok(checked),
        Some(Err(more)) => {
            // What concerns a value that was left out may be its consequence.
            let wrong: Vec<_> = refusals
                .iter()
                .filter_map(|one| one.field.clone())
                .collect();
            let is_new = |field: &String| {
                let related = |wrong: &String| wrong.starts_with(field) || field.starts_with(wrong);
                !wrong.iter().any(related)
            };
            let more = more.into_iter();
            refusals.extend(
                more.filter(|one| wrong.is_empty() || one.field.as_ref().is_some_and(is_new)),
            );
        }
        Some(Ok(_)) | None => {}
    }
    Err(refusals)
}

/// Decodes the document without its wrong values, and returns a refusal of each.
fn decode_sound<W: DeserializeOwned>(document: &YamlNode) -> (Option<W>, Vec<Refusal>) {
    let mut refusals: Vec<Refusal> = Vec::new();
    let mut left = None;
    for _ in 0..MAX_WRONG_VALUES {
        let error = match machinist_yaml::decode(left.as_ref().unwrap_or(document)) {
            Ok(written) => return (Some(written), refusals),
            Err(error) => error,
        };
        let (place, is_missing) = (error.place, error.fault == YamlFault::FieldMissing);
        let refusal = refusal(error);
        if !is_missing || !refusals.iter().any(|one| explains(one, &refusal)) {
            refusals.push(refusal);
        }
        left = without(left.as_ref().unwrap_or(document), place, is_missing);
        if left.is_none() {
            break;
        }
    }
    (None, refusals)
}

/// Whether a field is missing because of an earlier mistake: it or a part of it was left out, or its name is misspelled.
fn explains(earlier: &Refusal, missing: &Refusal) -> bool {
    let parent = |refusal: &Refusal| {
        let field = refusal.field.as_deref().unwrap_or_default();
        field
            .rsplit_once('.')
            .map_or("", |(parent, _)| parent)
            .to_owned()
    };
    let is_misspelled =
        earlier.reason == Reason::FieldUnknown && parent(earlier) == parent(missing);
    let is_left_out = match (&earlier.field, &missing.field) {
        (Some(earlier), Some(missing)) => earlier.starts_with(missing.as_str()),
        _ => false,
    };
    is_misspelled || is_left_out
}

/// The tree without the entry whose key or value begins at `place`; none if there is no such entry. A map begins at
/// its first key: with `outermost` the map is left out, else the entry in it. Of a list, the items after a wrong one
/// are left out as well, because their indices would change.
fn without(node: &YamlNode, place: Location, outermost: bool) -> Option<YamlNode> {
    let below = |inner: &YamlNode| without(inner, place, outermost);
    let value = match &node.value {
        Value::Scalar(_) => return None,
        Value::Map(entries) => {
            let is_here =
                |(key, value): &Entry<CoreScalar>| key.place == place || value.place == place;
            let here = entries.iter().position(is_here);
            let inside = || {
                let found =
                    |(at, (_, value)): (usize, &Entry<CoreScalar>)| Some((at, below(value)?));
                entries.iter().enumerate().find_map(found)
            };
            let mut entries = entries.clone();
            match (here, (!outermost || here.is_none()).then(inside).flatten()) {
                (_, Some((at, inner))) => entries[at].1 = Rc::new(inner),
                (Some(at), None) => drop(entries.remove(at)),
                (None, None) => return None,
            }
            Value::Map(entries)
        }
        Value::List(items) => {
            let here = items.iter().position(|item| item.place == place);
            let inside = || {
                let found = |(at, item): (usize, &Rc<YamlNode>)| Some((at, below(item)?));
                items.iter().enumerate().find_map(found)
            };
            let mut items = items.clone();
            match (here, (!outermost || here.is_none()).then(inside).flatten()) {
                (_, Some((at, inner))) => items[at] = Rc::new(inner),
                (Some(at), None) => items.truncate(at),
                (None, None) => return None,
            }
            Value::List(items)
        }
    };
    Some(YamlNode {
        place: node.place,
        value,
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
