//! Rust source as names and marks; comments, strings and numbers are irrelevant to layering rules.

/// A name, or one mark; `::` is one mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    Name(String),
    Mark(&'static str),
}

use Token::{Mark, Name};

/// The marks that matter; any other becomes `?`.
const MARKS: [(char, &str); 13] = [
    ('{', "{"),
    ('}', "}"),
    ('(', "("),
    (')', ")"),
    ('[', "["),
    (']', "]"),
    (',', ","),
    (';', ";"),
    ('*', "*"),
    ('#', "#"),
    ('!', "!"),
    ('<', "<"),
    ('.', "."),
];

pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        let rest = &chars[at..];
        at += match rest {
            ['/', '/', ..] => rest.iter().take_while(|c| **c != '\n').count(),
            ['/', '*', ..] => comment(rest),
            ['"', ..] => string(rest),
            ['\'', ..] => character(rest),
            ['r' | 'b' | 'c', ..] if prefixed(rest) > 0 => prefixed(rest),
            [':', ':', ..] => {
                found.push(Mark("::"));
                2
            }
            [c, ..] if c.is_alphabetic() || *c == '_' => {
                let name: String = rest.iter().take_while(|c| in_name(**c)).collect();
                let length = name.chars().count();
                found.push(Name(name));
                length
            }
            // A number with its suffix is no name.
            [c, ..] if c.is_ascii_digit() => rest.iter().take_while(|c| in_name(**c)).count(),
            [c, ..] if c.is_whitespace() => 1,
            [c, ..] => {
                let known = MARKS.iter().find(|(mark, _)| mark == c);
                found.push(Mark(known.map_or("?", |(_, mark)| mark)));
                1
            }
            [] => 1,
        };
    }
    found
}

fn in_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Block comments nest.
fn comment(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        match &rest[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] if depth == 1 => return at + 2,
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    at
}

fn string(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != '"' {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// A character, or a lifetime, whose name is then read as an ordinary name.
fn character(rest: &[char]) -> usize {
    match rest {
        ['\'', '\\', ..] => {
            let close = rest[3..].iter().position(|c| *c == '\'');
            close.map_or(rest.len(), |close| close + 4)
        }
        ['\'', _, '\'', ..] => 3,
        // The lifetime's name must not look like a path.
        _ => 1 + rest[1..].iter().take_while(|c| in_name(**c)).count(),
    }
}

/// The length of a string with a prefix (`b"`, `r#"`, `br"`), of a byte (`b'x'`), or of the mark of a
/// raw name (`r#`); 0 for anything else.
fn prefixed(rest: &[char]) -> usize {
    let letters = rest.iter().take_while(|c| "rbc".contains(**c)).count();
    let raw = rest[..letters].contains(&'r');
    let hashes = rest[letters..].iter().take_while(|c| **c == '#').count();
    let after = &rest[letters + hashes..];
    match after.first() {
        Some('"') if raw && letters <= 2 => {
            let end: Vec<char> = std::iter::once('"').chain(vec!['#'; hashes]).collect();
            let body = &after[1..];
            let close = body.windows(end.len()).position(|window| window == end);
            close.map_or(rest.len(), |close| letters + hashes + 1 + close + end.len())
        }
        Some('"') if letters == 1 && hashes == 0 => 1 + string(after),
        Some('\'') if rest[0] == 'b' && letters == 1 && hashes == 0 => 1 + character(after),
        Some(_) if rest[0] == 'r' && letters == 1 && hashes == 1 => 2,
        _ => 0,
    }
}

#[test]
fn comments_strings_and_lifetimes_are_skipped_by_the_tokenizer() {
    let text = r###"
        // std::fs
        /* std::fs /* std::fs */ std::fs */
        a("std::fs \" std::fs", r#"std::fs " std::fs"#, b"std::fs", '"', '\'', '\u{41}', b'"');
        fn f<'std>(x: &'std str) -> r#type { 1_000usize }
        c::d
    "###;
    let names: Vec<_> = tokens(text)
        .into_iter()
        .filter_map(|token| match token {
            Name(name) => Some(name),
            Mark(_) => None,
        })
        .collect();
    assert_eq!(names, ["a", "fn", "f", "x", "str", "type", "c", "d"]);
}
