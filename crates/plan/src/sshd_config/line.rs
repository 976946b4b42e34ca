//! Splits the lines of sshd's configuration into keywords and values, with sshd's own rules of quoting.

use super::{
    Condition, Directive, SshdValue,
    token::{BLANKS, token},
};

/// Returns the lines that matter for the keys of users, with their numbers. A line that sshd rejects is left out: sshd
/// does not start with it.
pub fn lines(text: &str) -> impl Iterator<Item = (usize, Directive)> {
    let numbered = text.split('\n').zip(1..);
    numbered.filter_map(|(line, number)| Some((number, directive(line)?)))
}

fn directive(line: &str) -> Option<Directive> {
    let mut rest = line.trim_end_matches(BLANKS).trim_end_matches('\u{c}');
    rest = rest.trim_end_matches(BLANKS).trim_start_matches(BLANKS);
    if rest.starts_with('#') {
        return None;
    }
    let keyword = token(&mut rest)?.to_ascii_lowercase();
    if rest.is_empty() {
        return None;
    }
    Some(match keyword.as_str() {
        "match" => Directive::Match(Condition::parse(rest)?),
        "include" => Directive::Include(some_words(rest)?),
        "authorizedkeysfile" => Directive::Set(SshdValue::Files(some_words(rest)?)),
        "authorizedkeyscommand" => Directive::Set(command(rest)?),
        "authorizedkeyscommanduser" => {
            let user = some_words(rest)?.into_iter().next()?;
            Directive::Set(SshdValue::CommandUser(user))
        }
        _ => return None,
    })
}

/// sshd takes the rest of the line unchanged, with comments and quotes, and splits it when it runs the command.
fn command(rest: &str) -> Option<SshdValue> {
    let valid = rest.starts_with('/') || rest.eq_ignore_ascii_case("none");
    let words = valid.then(|| words(rest, false))??;
    Some(SshdValue::Command(rest.to_owned(), words))
}

/// The words of a list, which must have at least one and no empty ones.
fn some_words(text: &str) -> Option<Vec<String>> {
    let found = words(text, true)?;
    let valid = !found.is_empty() && found.iter().all(|word| !word.is_empty());
    valid.then_some(found)
}

/// Splits values at blanks. Quotes of both kinds and backslashes protect blanks, and `#` before a word starts a comment
/// where there are `comments`. Returns none for a quote that is not closed.
fn words(text: &str, comments: bool) -> Option<Vec<String>> {
    let mut found = Vec::new();
    let mut letters = text.chars().peekable();
    loop {
        while letters.next_if(|one| matches!(one, ' ' | '\t')).is_some() {}
        match letters.peek() {
            None => return Some(found),
            Some('#') if comments => return Some(found),
            Some(_) => found.push(word(&mut letters)?),
        }
    }
}

fn word(letters: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Option<String> {
    let mut word = String::new();
    let mut quote = None;
    while let Some(one) = letters.next_if(|one| quote.is_some() || !matches!(one, ' ' | '\t')) {
        let escaped =
            |next: &char| matches!(next, '\'' | '"' | '\\') || (quote.is_none() && *next == ' ');
        match (one, quote) {
            ('\\', _) => word.push(letters.next_if(escaped).unwrap_or('\\')),
            ('"' | '\'', None) => quote = Some(one),
            (_, Some(open)) if one == open => quote = None,
            _ => word.push(one),
        }
    }
    quote.is_none().then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(line: &str) -> Option<Vec<String>> {
        match directive(line) {
            Some(Directive::Set(SshdValue::Files(files))) => Some(files),
            _ => None,
        }
    }

    #[test]
    fn sshd_lines_are_split_with_sshds_rules_of_quoting() {
        // The values are those that `sshd -T` of OpenSSH 9.2 prints.
        let cases: [(&str, &[&str]); 15] = [
            ("AuthorizedKeysFile a b", &["a", "b"]),
            ("  AUTHORIZEDKEYSFILE\ta\t b \r", &["a", "b"]),
            ("AuthorizedKeysFile=a", &["a"]),
            ("AuthorizedKeysFile = a", &["a"]),
            ("AuthorizedKeysFile ==a", &["=a"]),
            ("AuthorizedKeysFile a=b", &["a=b"]),
            ("\"AuthorizedKeysFile\" a", &["a"]),
            ("AuthorizedKeysFile \"a b\" 'c d'", &["a b", "c d"]),
            ("AuthorizedKeysFile a\"b c\"d", &["ab cd"]),
            ("AuthorizedKeysFile a\\ b \\\"c \\x", &["a b", "\"c", "\\x"]),
            ("AuthorizedKeysFile a # b", &["a"]),
            ("AuthorizedKeysFile a #b", &["a"]),
            ("AuthorizedKeysFile a#b", &["a#b"]),
            ("AuthorizedKeysFile \"#a\"", &["#a"]),
            ("AuthorizedKeysFile=\".ssh/x\"", &[".ssh/x"]),
        ];
        for (line, expected) in cases {
            assert_eq!(files(line).unwrap_or_default(), expected, "{line}");
        }
        for line in [
            "#AuthorizedKeysFile a",
            " # AuthorizedKeysFile a",
            "AuthorizedKeysFile",
            "AuthorizedKeysFile # a",
            "AuthorizedKeysFile \"a",
            "AuthorizedKeysFiles a",
            "",
        ] {
            assert_eq!(directive(line), None, "{line}");
        }
    }

    #[test]
    fn an_sshd_command_has_no_comments() {
        let command = |line: &str| match directive(line) {
            Some(Directive::Set(SshdValue::Command(text, words))) => Some((text, words.len())),
            _ => None,
        };
        let given = "AuthorizedKeysCommand /usr/bin/keys %u # c";
        assert_eq!(command(given), Some(("/usr/bin/keys %u # c".to_owned(), 4)));
        assert_eq!(
            command("AuthorizedKeysCommand NONE"),
            Some(("NONE".to_owned(), 1))
        );
        // sshd rejects these: "must be an absolute path".
        assert_eq!(command("AuthorizedKeysCommand none # c"), None);
        assert_eq!(command("AuthorizedKeysCommand \"/usr/bin/keys\" %u"), None);
    }
}
