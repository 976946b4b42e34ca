//! Parses the content of a file: a data URL with optional compression and verification, or Butane's
//! inline text.

use super::{
    super::{
        Content,
        content_source::{self, ContentError},
        field_reader::{FieldValue, ObjectReader},
        ignition_dialect::IgnitionDialect,
        parse_context::ParseContext,
        versioned_field::{VersionedField, refuse_known},
    },
    butane_local,
};
use machinist_base::reason::Reason;

const HTTP_HEADERS_FIELD: VersionedField =
    VersionedField::new("httpHeaders").two(None).three(Some(1));

/// Whether contents are given in any way, even a faulty one.
pub(super) fn are_given(contents: &ObjectReader<'_>) -> bool {
    let mut ways = ["source", "inline", "local"].into_iter();
    ways.any(|way| contents.has(way))
}

/// The content of a file; none if it is absent.
pub(super) fn read(
    mut contents: ObjectReader<'_>,
    dialect: IgnitionDialect,
    reading: &mut ParseContext<'_>,
) -> Option<Content> {
    let why = "machinist does not fetch remote content";
    refuse_known(&mut contents, &[HTTP_HEADERS_FIELD], dialect, why, reading);
    let given = read_given(&mut contents, dialect, reading);
    let gzip = read_compression(&mut contents, reading);
    let hash = contents
        .object("verification", &mut reading.problems)
        .and_then(|mut verification| {
            let hash = verification.get("hash");
            verification.finish(&mut reading.problems);
            hash
        });
    contents.finish(&mut reading.problems);
    let hash = hash.and_then(|field| Some((field.text(&mut reading.problems)?, field)));
    let hash = hash.filter(|(wanted, _)| !wanted.is_empty());
    let Some(given) = given else {
        if let Some((_, hash)) = hash {
            let message = "no contents to verify";
            hash.refuse(&mut reading.problems, Reason::ValueInvalid, message, None);
        }
        return None;
    };
    let bytes = read_bytes(&given, gzip, reading)?;
    if let Some(what) = broken_script(&bytes) {
        let (ContentForm::Source(field) | ContentForm::Inline(field) | ContentForm::Local(field)) =
            &given;
        field.warn(
            &mut reading.problems,
            format!("the kernel cannot start this script: {what}"),
        );
    }
    if let Some((wanted, hash)) = hash
        && let Err(bad) = content_source::verify(&bytes, wanted)
    {
        refuse_source(&hash, bad, reading);
    }
    Some(Content::new(bytes))
}

/// The ways to specify contents; Ignition has only the first.
enum ContentForm<'n> {
    /// A URL.
    Source(FieldValue<'n>),
    /// The text itself.
    Inline(FieldValue<'n>),
    /// A file beside the config.
    Local(FieldValue<'n>),
}

fn read_given<'n>(
    contents: &mut ObjectReader<'n>,
    dialect: IgnitionDialect,
    reading: &mut ParseContext<'_>,
) -> Option<ContentForm<'n>> {
    let mut given: Vec<_> = contents
        .get("source")
        .map(ContentForm::Source)
        .into_iter()
        .collect();
    if dialect.is_butane() {
        given.extend(contents.get("inline").map(ContentForm::Inline));
        given.extend(contents.get("local").map(ContentForm::Local));
    }
    let last = given.pop();
    if let (
        Some(ContentForm::Source(field) | ContentForm::Inline(field) | ContentForm::Local(field)),
        false,
    ) = (&last, given.is_empty())
    {
        let message = "source, inline and local exclude each other";
        field.refuse(&mut reading.problems, Reason::ValueInvalid, message, None);
        return None;
    }
    last
}

fn read_compression(contents: &mut ObjectReader<'_>, reading: &mut ParseContext<'_>) -> bool {
    let Some(field) = contents.get("compression") else {
        return false;
    };
    match field.text(&mut reading.problems) {
        Some("gzip") => true,
        None | Some("") => false,
        Some(other) => {
            let message = format!("compression {other:?} is not supported");
            let reason = Reason::FeatureUnsupported;
            field.refuse(&mut reading.problems, reason, message, Some("gzip"));
            false
        }
    }
}

fn read_bytes(
    given: &ContentForm<'_>,
    gzip: bool,
    reading: &mut ParseContext<'_>,
) -> Option<Vec<u8>> {
    let (field, packed) = match given {
        ContentForm::Local(field) => (field, Ok(butane_local::bytes(field, reading)?)),
        ContentForm::Inline(field) => {
            let text = field.text(&mut reading.problems)?;
            (field, Ok(text.as_bytes().to_vec()))
        }
        ContentForm::Source(field) => {
            let text = field.text(&mut reading.problems)?;
            (field, content_source::decode(text))
        }
    };
    // An empty source has no content to decompress.
    let (ContentForm::Source(given) | ContentForm::Inline(given) | ContentForm::Local(given)) =
        given;
    let gzip = gzip && !given.is_empty_text();
    let unpacked = packed.and_then(|bytes| match gzip {
        true => content_source::gunzip(&bytes, reading.budget),
        false if bytes.len() > reading.budget => Err(content_source::too_much()),
        false => Ok(bytes),
    });
    match unpacked {
        Ok(bytes) => {
            reading.budget -= bytes.len();
            Some(bytes)
        }
        Err(bad) => {
            refuse_source(field, bad, reading);
            None
        }
    }
}

/// A fault that keeps a script from being executed although editors hardly show it.
fn broken_script(bytes: &[u8]) -> Option<&'static str> {
    let bare = bytes.strip_prefix(b"\xef\xbb\xbf");
    let script = bare.unwrap_or(bytes).strip_prefix(b"#!")?;
    let first = script.split(|byte| *byte == b'\n').next()?;
    match (bare, first.last()) {
        (Some(_), _) => Some("a byte order mark (U+FEFF) precedes #!"),
        (None, Some(b'\r')) => Some("its first line ends in CR LF"),
        _ => None,
    }
}

fn refuse_source(field: &FieldValue<'_>, bad: ContentError, reading: &mut ParseContext<'_>) {
    field.refuse(&mut reading.problems, bad.reason, bad.message, bad.expected);
}
