//! Decodes content in Ignition's forms: data URLs, gzip, verification hashes.

use std::io::Read as _;

use flate2::read::MultiGzDecoder;
use sha2::{Digest as _, Sha256, Sha512};

use machinist_base::reason::Reason;

/// The maximum number of decoded bytes of all files in one text. It is eight times the maximum text
/// length: about the compression ratio of gzip for ordinary configuration files, and small enough
/// for small machines.
pub(super) const MAX_DECODED_BYTES: usize = 64 << 20;

/// The first bytes of a gzip member (RFC 1952).
const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];

/// Why content cannot be decoded, with the reason code and the expected form.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ContentError {
    pub(super) reason: Reason,
    pub(super) message: String,
    pub(super) expected: Option<&'static str>,
}

fn bad(reason: Reason, message: impl Into<String>, expected: Option<&'static str>) -> ContentError {
    let message = message.into();
    ContentError {
        reason,
        message,
        expected,
    }
}

/// Decodes a data URL; an empty string is an empty file.
///
/// Stricter than browsers, which drop line breaks and everything after `#`: content that would be
/// changed silently is refused.
pub(super) fn decode(source: &str) -> Result<Vec<u8>, ContentError> {
    if source.is_empty() {
        return Ok(Vec::new());
    }
    // Without a colon there is no scheme, so it is not a URL.
    let (scheme, rest) = source.split_once(':').unwrap_or_default();
    match scheme.to_ascii_lowercase().as_str() {
        "data" => {}
        "http" | "https" | "tftp" | "s3" | "gs" | "arn" => {
            let message = format!("the source is remote ({scheme}); only data URLs are supported");
            return Err(bad(Reason::SourceRemote, message, Some("a data: URL")));
        }
        _ => {
            let message = "the source is not a data URL";
            return Err(bad(Reason::ValueInvalid, message, Some("data:,TEXT")));
        }
    }
    let Some((header, body)) = split_at_data(rest) else {
        let message = "the data URL has no comma before its data";
        return Err(bad(Reason::ValueInvalid, message, Some("data:,TEXT")));
    };
    if header.contains(|c: char| c == '#' || c.is_control()) {
        let message = "a line break, tab or # precedes the comma of the data URL";
        return Err(bad(Reason::ValueInvalid, message, Some("data:,TEXT")));
    }
    // Spaces are ignored there, as in `data:text/plain; base64,`.
    let base64 = header.trim_matches(' ').rsplit_once(';');
    let base64 = base64.is_some_and(|(_, last)| {
        let last = last.trim_start_matches(' ');
        last.eq_ignore_ascii_case("base64")
    });
    let bytes = percent_decode(body, base64)?;
    if !base64 {
        return Ok(bytes);
    }
    data_url::forgiving_base64::decode_to_vec(&bytes)
        .map_err(|_| bad(Reason::ValueInvalid, "the data is not base64", None))
}

/// Splits a data URL at the comma before its data. A comma in a quoted value of a parameter is part
/// of that value.
fn split_at_data(rest: &str) -> Option<(&str, &str)> {
    let (mut quoted, mut escaped, mut last) = (false, false, ' ');
    let at = rest.find(|c: char| {
        let ends = c == ',' && !quoted;
        match (quoted, c) {
            _ if escaped => escaped = false,
            (true, '\\') => escaped = true,
            (true, '"') => quoted = false,
            (false, '"') => quoted = last == '=',
            _ => {}
        }
        last = c;
        ends
    });
    // A quote that is never closed quotes nothing.
    let at = at.or_else(|| rest.find(','))?;
    Some((&rest[..at], &rest[at + 1..]))
}

fn percent_decode(body: &str, base64: bool) -> Result<Vec<u8>, ContentError> {
    let invalid = |message, expected| Err(bad(Reason::ValueInvalid, message, Some(expected)));
    let mut bytes = Vec::with_capacity(body.len());
    let mut rest = body.as_bytes();
    loop {
        let special = |byte: &u8| matches!(byte, b'#' | b'%' | b'\n' | b'\r' | b'\t');
        let plain = rest.iter().position(special).unwrap_or(rest.len());
        bytes.extend_from_slice(&rest[..plain]);
        let [byte, tail @ ..] = &rest[plain..] else {
            return Ok(bytes);
        };
        rest = tail;
        match byte {
            b'#' => return invalid("# ends a URL; the text after it would be lost", "%23"),
            // Base64 may be wrapped; in plain data a line break would be lost.
            b'\n' | b'\r' | b'\t' if !base64 => {
                return invalid(
                    "the data URL contains an unescaped line break or tab",
                    "%0A for a line break, %09 for a tab",
                );
            }
            b'%' => {
                let digit = |at: usize| rest.get(at).and_then(|b| char::from(*b).to_digit(16));
                let (Some(high), Some(low)) = (digit(0), digit(1)) else {
                    return invalid("% is not followed by two hex digits", "%25 for % itself");
                };
                bytes.extend(u8::try_from(high << 4 | low));
                rest = &rest[2..];
            }
            folded => bytes.push(*folded),
        }
    }
}

/// Decompresses gzip, up to `most` bytes.
pub(super) fn gunzip(packed: &[u8], most: usize) -> Result<Vec<u8>, ContentError> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    match MultiGzDecoder::new(packed)
        .take(limit)
        .read_to_end(&mut bytes)
    {
        Err(_) => Err(bad(Reason::ValueInvalid, gzip_fault(packed), None)),
        Ok(_) if bytes.len() > most => Err(too_much()),
        Ok(_) => Ok(bytes),
    }
}

fn gzip_fault(packed: &[u8]) -> &'static str {
    match packed.starts_with(GZIP_MAGIC) {
        true => "the gzip data is truncated, damaged, or followed by other data",
        false => "compression is gzip, but the data is not",
    }
}

/// The refusal of content beyond [`MAX_DECODED_BYTES`].
pub(super) fn too_much() -> ContentError {
    let message = format!("the files of this config have more than {MAX_DECODED_BYTES} bytes");
    bad(Reason::ValueInvalid, message, None)
}

/// Compares `bytes` (uncompressed, as in Ignition's specification) with `sha512-…` or `sha256-…`.
pub(super) fn verify(bytes: &[u8], hash: &str) -> Result<(), ContentError> {
    const EXPECTED_HASH: &str = "sha512- or sha256- followed by hex digits";
    let invalid = |message| Err(bad(Reason::ValueInvalid, message, Some(EXPECTED_HASH)));
    let Some((kind, digits)) = hash.split_once('-') else {
        return invalid("the hash has no algorithm");
    };
    let (have, length) = match kind {
        "sha512" => (hex(&Sha512::digest(bytes)), 128),
        "sha256" => (hex(&Sha256::digest(bytes)), 64),
        _ => return invalid("unknown hash algorithm"),
    };
    if digits.len() != length || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return invalid(
            "the hash has the wrong length or contains characters other than hex \
             digits",
        );
    }
    if digits.eq_ignore_ascii_case(&have) {
        return Ok(());
    }
    let message = format!("the content's hash is {kind}-{have}");
    Err(bad(Reason::HashMismatch, message, None))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes of a base64 text, with or without padding.
pub fn decode_base64(text: &str) -> Option<Vec<u8>> {
    data_url::forgiving_base64::decode_to_vec(text.as_bytes()).ok()
}

/// Base64 with padding, the form used for output.
pub(super) fn base64(bytes: &[u8]) -> String {
    const BASE64_DIGITS: &[u8; 64] =
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    let digits =
        |word: u32| [18, 12, 6, 0].map(|shift| BASE64_DIGITS[(word >> shift & 63) as usize]);
    let (whole, rest) = bytes.as_chunks::<3>();
    for [a, b, c] in whole {
        text.extend(digits(u32::from_be_bytes([0, *a, *b, *c])));
    }
    match rest {
        [a, b] => {
            text.extend_from_slice(&digits(u32::from_be_bytes([0, *a, *b, 0]))[..3]);
            text.push(b'=');
        }
        [a] => {
            text.extend_from_slice(&digits(u32::from_be_bytes([0, *a, 0, 0]))[..2]);
            text.extend(b"==");
        }
        _ => {}
    }
    // ASCII is UTF-8, so the default is never used.
    String::from_utf8(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_urls_decode_to_their_exact_bytes() {
        for (url, bytes) in [
            ("", ""),
            ("data:,", ""),
            ("data:,a%20b%0A", "a b\n"),
            ("data:text/plain;charset=utf-8,a b", "a b"),
            ("data:,a+b,c;base64,d", "a+b,c;base64,d"),
            ("data:;base64,aGk=", "hi"),
            ("data:text/plain; charset=utf-8; base64 ,aGk=", "hi"),
            ("data:text/plain; charset=utf-8,a b", "a b"),
            ("data:;base64,aGk", "hi"),
            ("DATA:text/plain;BASE64,aG\n k=", "hi"),
            ("data:;base64,aGk%3D", "hi"),
            (r#"data:text/plain;foo="b,ar",x"#, "x"),
            (r#"data:text/plain;foo="b\",ar";base64,aGk="#, "hi"),
            (r#"data:text/plain;a="b,x"#, "x"),
        ] {
            assert_eq!(decode(url).unwrap(), bytes.as_bytes(), "{url:?}");
        }
        for url in [
            "data",
            "DATA",
            "data:",
            "data:,100%",
            "data:,%g0",
            "data:,a#b",
            "data:a#;base64,aGk=",
            "data:;base\n64,aGk=",
            "data:,a\nb",
            "data:;base64,a",
            "etc",
        ] {
            assert_eq!(
                decode(url).unwrap_err().reason,
                Reason::ValueInvalid,
                "{url:?}"
            );
        }
        let remote = decode("https://example.org/x").unwrap_err();
        assert_eq!(remote.reason, Reason::SourceRemote);
    }

    #[test]
    fn base64_output_is_decoded_by_another_implementation() {
        for length in 0..70 {
            let bytes: Vec<u8> = (0..length).map(|n: u8| n.wrapping_mul(37) ^ 0xa5).collect();
            let back = data_url::forgiving_base64::decode_to_vec(base64(&bytes).as_bytes());
            assert_eq!(back.unwrap(), bytes);
        }
    }

    #[test]
    fn a_gzip_bomb_is_stopped_at_the_size_limit() {
        use std::io::Write as _;
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        packer.write_all(&vec![0; 1 << 20]).unwrap();
        let packed = packer.finish().unwrap();
        assert_eq!(gunzip(&packed, 1 << 20).unwrap().len(), 1 << 20);
        assert_eq!(gunzip(&packed, (1 << 20) - 1), Err(too_much()));
        assert!(gunzip(b"plain", 100).is_err());
        assert!(gunzip(&packed[..packed.len() - 9], 2 << 20).is_err());
    }

    #[test]
    fn content_hashes_are_verified() {
        let sha256 = "sha256-e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let sha512 = "sha512-cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce\
                      47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e";
        assert_eq!(verify(b"", sha256), Ok(()));
        assert_eq!(verify(b"", sha512), Ok(()));
        assert_eq!(
            verify(b"x", sha256).unwrap_err().reason,
            Reason::HashMismatch
        );
        for odd in ["", "sha256", "md5-00", "sha256-00", "sha512-zz"] {
            assert_eq!(verify(b"", odd).unwrap_err().reason, Reason::ValueInvalid);
        }
    }
}
