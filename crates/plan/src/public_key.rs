//! Checks a line of an authorized_keys file like sshd does, which skips a line that it cannot read.

use machinist_ignition::decode_base64;

/// How the names of key types begin; `sk-` are keys on a security key.
const TYPE_PREFIXES: [&str; 3] = ["ssh-", "ecdsa-", "sk-"];

/// In the type of a certificate, whose fields are not all length-prefixed.
const CERTIFICATE: &str = "-cert-v";

/// Returns why sshd does not accept the line as a key; `None` if it does, or if the line is empty or
/// a comment.
pub(super) fn fault(line: &str) -> Option<String> {
    let line = line.trim_start_matches(BLANKS);
    if line.trim_end().is_empty() || line.starts_with('#') {
        return None;
    }
    // Like sshd: the line is a key, or options and a key.
    let words = match is_type(first_word(line).0) {
        true => line,
        false => match after_options(line) {
            Ok(key) => key,
            Err(why) => return Some(why),
        },
    };
    let (name, rest) = first_word(words);
    let (data, _) = first_word(rest);
    if !is_type(name) {
        return Some("it does not begin with a key type, such as ssh-ed25519".to_owned());
    }
    if data.is_empty() {
        return Some(format!("there is no key after {name}"));
    }
    let Some(blob) = whole_base64(data) else {
        return Some(format!("the text after {name} is not base64"));
    };
    let Some((inside, fields)) = ssh_string(&blob) else {
        return Some("the key is incomplete".to_owned());
    };
    if inside != name.as_bytes() {
        let inside = String::from_utf8_lossy(inside).into_owned();
        return Some(format!("it is a key of type {inside}, not {name}"));
    }
    let whole = name.contains(CERTIFICATE) || are_whole(name, fields);
    (!whole).then(|| "the key is incomplete".to_owned())
}

const BLANKS: [char; 2] = [' ', '\t'];

fn is_type(word: &str) -> bool {
    TYPE_PREFIXES.iter().any(|prefix| word.starts_with(prefix))
}

/// The text up to the first blank, and the text after the blanks.
fn first_word(text: &str) -> (&str, &str) {
    let text = text.trim_end();
    let (word, rest) = text.split_once(BLANKS).unwrap_or((text, ""));
    (word, rest.trim_start_matches(BLANKS))
}

/// The line after its options, which end at the first blank outside of double quotes.
fn after_options(line: &str) -> Result<&str, String> {
    let mut quoted = false;
    let mut escaped = false;
    for (at, c) in line.char_indices() {
        match c {
            '"' if !escaped => quoted = !quoted,
            ' ' | '\t' if !quoted => return Ok(line[at..].trim_start_matches(BLANKS)),
            _ => {}
        }
        escaped = c == '\\';
    }
    match quoted {
        true => Err("a quotation mark in its options is not closed".to_owned()),
        false => Ok(""),
    }
}

/// sshd requires the padding.
fn whole_base64(text: &str) -> Option<Vec<u8>> {
    text.len()
        .is_multiple_of(4)
        .then(|| decode_base64(text))
        .flatten()
}

/// The first string of a key (RFC 4251: its length in four bytes, then its bytes), and the rest.
fn ssh_string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    rest.split_at_checked(length)
}

/// Whether the fields after the type are complete, and nothing follows them.
fn are_whole(name: &str, mut fields: &[u8]) -> bool {
    let mut lengths = Vec::new();
    while !fields.is_empty() {
        let Some((field, rest)) = ssh_string(fields) else {
            return false;
        };
        lengths.push(field.len());
        fields = rest;
    }
    match name {
        "ssh-ed25519" => lengths == [32],
        "ssh-rsa" => lengths.len() == 2,
        _ => !lengths.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ED25519: &str = "AAAAC3NzaC1lZDI1NTE5AAAAIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB";
    const SK: &str = "AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29tAAAAIAICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAAAABHNzaDo=";
    const ECDSA: &str = "AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBPIFtvhVgxhN/pSMdtBS9SRSOB1NaV7DpnydOrzMFoaliOT7LQj7iuMjLkV6dE3tz7brdBw32ZedrxiBReky0UM=";

    #[test]
    fn key_lines_that_sshd_accepts_are_valid() {
        for line in [
            format!("ssh-ed25519 {ED25519}"),
            format!("  ssh-ed25519 \t{ED25519} a comment"),
            format!("no-pty,command=\"echo \\\"a b\\\"\" ssh-ed25519 {ED25519} ann"),
            format!("sk-ssh-ed25519@openssh.com {SK}"),
            format!("ecdsa-sha2-nistp256 {ECDSA} ec"),
            "# ssh-ed25519".to_owned(),
            String::new(),
        ] {
            assert_eq!(fault(&line), None, "{line}");
        }
    }

    #[test]
    fn key_lines_that_sshd_skips_are_reported() {
        let cut = &ED25519[..ED25519.len() - 8];
        for (line, why) in [
            ("not-a-key".to_owned(), "does not begin with a key type"),
            (ED25519.to_owned(), "does not begin with a key type"),
            (
                format!("command=\"ls ssh-ed25519 {ED25519}"),
                "is not closed",
            ),
            ("ssh-ed25519 AAAA".to_owned(), "is incomplete"),
            (format!("ssh-ed25519 {cut}"), "is incomplete"),
            ("ssh-rsa".to_owned(), "no key after ssh-rsa"),
            ("ssh-rsa ann@host".to_owned(), "is not base64"),
            (
                format!("ssh-ed25519 {}", &SK[..SK.len() - 1]),
                "is not base64",
            ),
            (
                format!("ssh-rsa {ED25519}"),
                "of type ssh-ed25519, not ssh-rsa",
            ),
        ] {
            let found = fault(&line).unwrap_or_default();
            assert!(found.contains(why), "{line}: {found}");
        }
    }
}
