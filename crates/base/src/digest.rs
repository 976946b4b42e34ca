//! Content digests of 32 bytes.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The SHA-256 of some content, written `sha256:<64 lower-case hex digits>`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

/// A text that is not a digest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no digest of the form sha256:<64 hex digits>")]
pub struct BadDigest {
    given: String,
}

impl Digest {
    /// The digest of `content`.
    pub fn of(content: &[u8]) -> Self {
        Self(Sha256::digest(content).into())
    }

    /// The 32 bytes themselves.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Wraps a digest computed elsewhere, for example while encoding.
    pub const fn from_raw(raw: [u8; 32]) -> Self {
        Self(raw)
    }

    /// All 64 hex digits, without the prefix.
    pub fn hex(&self) -> String {
        self.to_string().split_off("sha256:".len())
    }

    /// The first `digits` hex digits, for names.
    pub fn short(&self, digits: usize) -> String {
        let mut hex = self.hex();
        hex.truncate(digits);
        hex
    }

    fn from_hex(hex: &str) -> Option<Self> {
        let digits = hex.as_bytes();
        if digits.len() != 64 {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Some(Self(bytes))
    }
}

/// Accepts only lower case: each digest has one spelling, so that texts compare like digests.
fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

/// Computes the digest of content that arrives in chunks.
#[derive(Clone, Default)]
pub struct Digester(Sha256);

impl Digester {
    /// Starts with no content.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the next chunk.
    pub fn add(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    /// The digest of all chunks in the order in which they were added.
    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

impl fmt::Debug for Digester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digester")
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const HEX_DIGITS: &[u8; 16] = b"0123456789abcdef";
        // One digit at a time through the formatter, thousands of them would slow down an update
        // noticeably.
        let digits = self.0.iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
        let digits = digits.map(|digit| char::from(HEX_DIGITS[usize::from(digit)]));
        let mut text = String::with_capacity(2 * self.0.len());
        text.extend(digits);
        f.write_str("sha256:")?;
        f.write_str(&text)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = BadDigest;
    fn from_str(given: &str) -> Result<Self, BadDigest> {
        given
            .strip_prefix("sha256:")
            .and_then(Self::from_hex)
            .ok_or_else(|| BadDigest {
                given: given.to_owned(),
            })
    }
}

impl TryFrom<String> for Digest {
    type Error = BadDigest;
    fn try_from(given: String) -> Result<Self, BadDigest> {
        given.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first example of FIPS 180-2, appendix B.1.
    const ABC: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_digest_round_trips_through_text() {
        assert_eq!(Digest::of(b"abc").to_string(), ABC);
        assert_eq!(ABC.parse(), Ok(Digest::of(b"abc")));
        let mut pieces = Digester::new();
        pieces.add(b"a");
        pieces.add(b"bc");
        assert_eq!(pieces.finish(), Digest::of(b"abc"));
    }

    #[test]
    fn malformed_digests_are_rejected() {
        let upper = ABC.to_uppercase();
        for bad in ["", "sha256:", &ABC[..70], &upper, &ABC[7..], "sha256:é"] {
            assert!(bad.parse::<Digest>().is_err(), "{bad:?}");
        }
    }
}
