//! Represents any bytes as text and back. The databases of users and files of SSH keys have no encoding: chfn(1) accepts
//! a full name in Latin-1, and such a line must not hide the others.

/// Each byte that is not part of a UTF-8 character becomes this private character plus its value. A character of that
/// range in the file itself is represented by its bytes, so that the text can be converted back.
const FIRST: u32 = 0xF700;

/// The range has no ASCII characters: no text becomes a separator of a database.
const ESCAPES: std::ops::RangeInclusive<u32> = FIRST + 0x80..=FIRST + 0xFF;

/// The text of bytes.
pub fn to_text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    let escape = |byte: &u8| char::from_u32(FIRST + u32::from(*byte));
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match ESCAPES.contains(&u32::from(c)) {
                true => text.extend(
                    c.encode_utf8(&mut [0; 4])
                        .as_bytes()
                        .iter()
                        .filter_map(escape),
                ),
                false => text.push(c),
            }
        }
        text.extend(chunk.invalid().iter().filter_map(escape));
    }
    text
}

/// The bytes of a text.
pub fn to_bytes(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    for c in text.chars() {
        let escaped = u32::from(c).checked_sub(FIRST);
        let escaped = escaped.and_then(|byte| u8::try_from(byte).ok());
        match escaped.filter(|byte| !byte.is_ascii()) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_are_restored() {
        let private = "\u{f6ff}\u{f700}\u{f7ff}\u{f800}";
        for bytes in [
            &b"plain"[..],
            b"J\xfcrgen",
            "Jürgen \u{10ffff}".as_bytes(),
            private.as_bytes(),
            b"\xef\x9c",
            b"\xef\x9c\xfc\x80\xff\x00",
        ] {
            assert_eq!(to_bytes(&to_text(bytes)), bytes, "{bytes:?}");
        }
        let separators = "\u{f70a}root2\u{f73a}";
        assert_eq!(to_bytes(separators), separators.as_bytes());
        assert_eq!(
            to_bytes(&to_text(separators.as_bytes())),
            separators.as_bytes()
        );
        let all: Vec<u8> = (0..=255).chain((0..=255).rev()).collect();
        assert_eq!(to_bytes(&to_text(&all)), all);
        assert_eq!(to_text("Jürgen".as_bytes()), "Jürgen");
    }
}
