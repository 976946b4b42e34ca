//! Our own YAML documents about devices: how one is read strictly, and how all that is wrong with it
//! is collected and placed.

mod place;
mod shape;

use std::collections::BTreeSet;

use serde::{Deserialize, de::DeserializeOwned};

use super::Refusal;
use crate::reason::Reason;

/// The only version there is.
pub const API_VERSION: &str = "machinist.dev/v1";
/// No document needs more; what is larger is a mistake or an attack, and is not even read.
pub const LARGEST: usize = 64 * 1024;

/// Our kinds of documents, and where each is read.
const KINDS: [(&str, &str); 2] = [
    ("DeviceDeclaration", "devices.d"),
    ("DeviceVendor", "vendors.d"),
];

/// The little of a document that says what it is.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    api_version: Option<String>,
    kind: Option<String>,
}

/// That a document is of another version, or was put where another kind is read: its fields would tell nobody.
fn stray(text: &str, kind: &str) -> Option<Refusal> {
    let head: Head = serde_saphyr::from_str_with_options(text, place::options()).ok()?;
    if let Some(given) = head.api_version.filter(|given| given != API_VERSION) {
        return Some(unsupported(&given));
    }
    let given = head.kind.filter(|given| given != kind)?;
    let (_, place) = KINDS.iter().find(|(known, _)| *known == given)?;
    let message = format!("a {given} is read in {place}, and this is no place for one");
    let refusal = Refusal::new(Reason::ValueInvalid, message).field("kind");
    Some(refusal.expected(kind))
}

fn unsupported(version: &str) -> Refusal {
    let message = format!("{version:?} is not supported");
    let refusal = Refusal::new(Reason::VersionUnsupported, message).field("apiVersion");
    refusal.expected(API_VERSION)
}

/// Reads one document of this kind: its shape `W`, then what `check` makes of it. `file` is named in refusals; all
/// that can be found are returned, each with its line and column.
pub(super) fn parse<W: DeserializeOwned, T>(
    kind: &str,
    file: &str,
    text: &str,
    check: impl FnOnce(W) -> Result<T, Vec<Refusal>>,
) -> Result<T, Vec<Refusal>> {
    let parsed = if text.len() > LARGEST {
        let message = format!("the file has {} bytes", text.len());
        let refusal = Refusal::new(Reason::ValueInvalid, message);
        Err(vec![refusal.expected(format!("at most {LARGEST} bytes"))])
    } else if let Some(stray) = stray(text, kind) {
        Err(vec![stray])
    } else {
        match serde_saphyr::from_str_with_options(text, place::options()) {
            Ok(written) => check(written),
            Err(error) => Err(vec![place::refusal(text, &error)]),
        }
    };
    parsed.map_err(|mut refusals| {
        place::locate(text, &mut refusals);
        let mut seen = BTreeSet::new();
        refusals.retain(|refusal| seen.insert((refusal.field.clone(), refusal.message.clone())));
        for refusal in &mut refusals {
            refusal.file = Some(file.to_owned());
        }
        refusals
    })
}

/// Collects refusals, so that a document's author sees all of them at once.
#[derive(Debug, Default)]
pub(super) struct Refusals(pub(super) Vec<Refusal>);

impl Refusals {
    /// Adds one; an empty `expected` says nothing.
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

    /// A value that cannot be.
    pub(super) fn value(&mut self, field: &str, message: impl Into<String>, expected: &str) {
        self.refuse(Reason::ValueInvalid, field, message, expected);
    }

    /// Version and kind, which every document begins with.
    pub(super) fn head(&mut self, given: (&str, &str), kind: &str) {
        if given.0 != API_VERSION {
            self.0.push(unsupported(given.0));
        }
        if given.1 != kind {
            let message = format!("{:?} is no kind of file read here", given.1);
            self.value("kind", message, kind);
        }
    }
}
