//! Encodes and decodes the journal's text form.
//!
//! The text has two lines: a header that every version can read, and a body whose SHA-256 is in the header. Readers
//! ignore unknown fields of the body, so a new version may add fields; a version that changes the *meaning* of a
//! field raises `min_reader`.

use serde::{Deserialize, Serialize};

use super::Journal;
use machinist_base::{digest::Digest, reason::Reason};

/// Schema that this version writes.
const SCHEMA_VERSION: u32 = 2;
/// Oldest schema whose readers understand what this version writes.
const MIN_READER_SCHEMA: u32 = 1;
/// The same while a deployment is tried: an older version would neither keep nor discard it.
const MIN_TRIAL_READER_SCHEMA: u32 = 2;

/// Reasons why a text cannot be used as a journal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadJournal {
    /// It is truncated, edited, or not a journal.
    #[error("the journal is unreadable: {0}; to start a new one: machinist journal reset")]
    Unreadable(String),
    /// It was written by a newer, incompatible version.
    #[error(
        "the journal needs a reader of schema {needed}; this version reads up to {SCHEMA_VERSION}"
    )]
    TooNew {
        /// The schema that a reader must support.
        needed: u32,
    },
}

impl BadJournal {
    /// Returns the stable reason code.
    pub const fn reason(&self) -> Reason {
        match self {
            Self::Unreadable(_) => Reason::JournalUnreadable,
            Self::TooNew { .. } => Reason::JournalTooNew,
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    machinist_journal: u32,
    min_reader: u32,
    checksum: Digest,
}

impl Journal {
    /// Encodes the journal into the text that is stored on disk.
    pub fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        let body = serde_json::to_vec(self)?;
        let header = Header {
            machinist_journal: SCHEMA_VERSION,
            min_reader: match self.os_trial {
                Some(_) => MIN_TRIAL_READER_SCHEMA,
                None => MIN_READER_SCHEMA,
            },
            checksum: Digest::of(&body),
        };
        let mut text = serde_json::to_vec(&header)?;
        text.push(b'\n');
        text.extend(body);
        text.push(b'\n');
        Ok(text)
    }

    /// Pads an encoded journal to at least `length` bytes. The padding is spaces in the header, which readers
    /// ignore.
    pub fn padded(mut text: Vec<u8>, length: usize) -> Vec<u8> {
        let missing = length.saturating_sub(text.len());
        if let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            text.splice(end..end, std::iter::repeat_n(b' ', missing));
        }
        text
    }

    /// Decodes the text that [`Journal::encode`] of this or another version wrote.
    pub fn decode(text: &[u8]) -> Result<Self, BadJournal> {
        let unreadable = |why: String| BadJournal::Unreadable(why);
        let split = text.iter().position(|byte| *byte == b'\n');
        let (header, rest) = text.split_at(split.ok_or_else(|| unreadable("no header".into()))?);
        let header: Header = serde_json::from_slice(header)
            .map_err(|error| unreadable(format!("header: {error}")))?;
        if header.min_reader > SCHEMA_VERSION {
            return Err(BadJournal::TooNew {
                needed: header.min_reader,
            });
        }
        let body = rest
            .strip_prefix(b"\n")
            .and_then(|rest| rest.strip_suffix(b"\n"))
            .unwrap_or_default();
        if Digest::of(body) != header.checksum {
            return Err(unreadable("checksum mismatch".into()));
        }
        serde_json::from_slice(body).map_err(|error| unreadable(format!("body: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_round_trips_and_a_torn_one_is_rejected() {
        let journal = Journal {
            machine_id: Some("m".into()),
            ..Journal::default()
        };
        let text = journal.encode().unwrap();
        assert_eq!(Journal::decode(&text).as_ref(), Ok(&journal));
        for cut in 0..text.len() {
            assert!(
                matches!(
                    Journal::decode(&text[..cut]),
                    Err(BadJournal::Unreadable(_))
                ),
                "{cut}"
            );
        }
        for at in 0..text.len() {
            let mut flipped = text.clone();
            flipped[at] ^= 1;
            // A flip in the header's version number can go unnoticed, one in the body cannot.
            let read = Journal::decode(&flipped);
            assert!(
                read.is_err() || read.as_ref() == Ok(&journal),
                "{at}: {read:?}"
            );
        }
    }

    #[test]
    fn a_journal_of_a_newer_version_is_reported_as_such() {
        let text = br#"{"machinistJournal":9,"minReader":3,"checksum":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}
"#;
        assert_eq!(Journal::decode(text), Err(BadJournal::TooNew { needed: 3 }));
    }
}
