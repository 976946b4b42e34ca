//! What a file holds: a data URL, compressed or not, verified or not; or Butane's text.

use super::{
    super::{
        Content,
        document::Reading,
        reader::{Field, Object},
        source::{self, BadSource},
    },
    Dialect, Known, refuse_known,
};
use crate::reason::Reason;

const HEADERS: Known = Known::new("httpHeaders").two(None).three(Some(1));

/// What a file holds; none when nothing is said of it.
pub(super) fn read(
    mut contents: Object<'_>,
    dialect: Dialect,
    reading: &mut Reading<'_>,
) -> Option<Content> {
    let why = "nothing is fetched";
    refuse_known(&mut contents, &[HEADERS], dialect, why, reading);
    let source = contents.get("source");
    let inline = (dialect == Dialect::Butane)
        .then(|| {
            let why = "it reads another file; put its text into contents.inline";
            refuse_known(&mut contents, &[Known::new("local")], dialect, why, reading);
            contents.get("inline")
        })
        .flatten();
    let gzip = read_compression(&mut contents, reading);
    let hash = contents
        .object("verification", &mut reading.problems)
        .and_then(|mut verification| {
            let hash = verification.get("hash");
            verification.finish(&mut reading.problems);
            hash
        });
    let field = match (source, inline) {
        (Some(_), Some(inline)) => {
            let message = "source and inline exclude each other";
            let reason = Reason::ValueInvalid;
            inline.refuse(&mut reading.problems, reason, message, None);
            None
        }
        (Some(source), None) => Some((source, false)),
        (None, Some(inline)) => Some((inline, true)),
        (None, None) => None,
    };
    contents.finish(&mut reading.problems);
    let (field, literal) = field?;
    let bytes = read_bytes(&field, literal, gzip && !literal, reading)?;
    if let Some(hash) = hash
        && let Some(wanted) = hash.text(&mut reading.problems)
        && !wanted.is_empty()
        && let Err(bad) = source::verify(&bytes, wanted)
    {
        refuse_source(&hash, bad, reading);
    }
    Some(Content::new(bytes))
}

fn read_compression(contents: &mut Object<'_>, reading: &mut Reading<'_>) -> bool {
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
    field: &Field<'_>,
    literal: bool,
    gzip: bool,
    reading: &mut Reading<'_>,
) -> Option<Vec<u8>> {
    let text = field.text(&mut reading.problems)?;
    let decoded = if literal {
        Ok(text.as_bytes().to_vec())
    } else {
        source::decode(text)
    };
    let unpacked = decoded.and_then(|bytes| match gzip && !text.is_empty() {
        true => source::gunzip(&bytes, reading.budget),
        false if bytes.len() > reading.budget => Err(source::too_much()),
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

fn refuse_source(field: &Field<'_>, bad: BadSource, reading: &mut Reading<'_>) {
    field.refuse(&mut reading.problems, bad.reason, bad.message, bad.expected);
}
