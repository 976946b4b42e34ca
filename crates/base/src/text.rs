//! Formatting shared by several modules.

use std::fmt::Write as _;

/// The width in columns at which text for people is wrapped: that of a terminal.
pub const LINE_COLUMNS: usize = 80;

/// Number of names in one log line.
pub const MAX_NAMES_PER_LINE: usize = 20;

/// The first `most` items and the number of the others, in one line: `a, b and 3 more`.
pub fn join_limited<T: AsRef<str>>(all: impl ExactSizeIterator<Item = T>, most: usize) -> String {
    let more = all.len().saturating_sub(most);
    let mut text = String::new();
    for one in all.take(most) {
        if !text.is_empty() {
            text.push_str(", ");
        }
        text.push_str(one.as_ref());
    }
    if more > 0 {
        // Writing to a String never fails.
        let _ = write!(text, " and {more} more");
    }
    text
}

/// A number with its noun, whose plural ends with `s`: `1 node`, `2 nodes`.
pub fn counted(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    }
}

/// A number with its noun and verb: `1 node is`, `2 nodes are`.
pub fn counted_with_verb(count: usize, noun: &str) -> String {
    let verb = if count == 1 { "is" } else { "are" };
    format!("{} {verb}", counted(count, noun))
}

/// A part of a number with its noun and verb: `1 of 3 nodes is`, `2 of 3 nodes are`, `0 of 1 node is`.
pub fn part_of(part: usize, count: usize, noun: &str) -> String {
    let verb = if part == 1 || count == 1 { "is" } else { "are" };
    format!("{part} of {} {verb}", counted(count, noun))
}

/// Whether `c` can make a line misleading: control characters, line separators, and characters that
/// change the text direction.
pub fn is_misleading(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Makes text from elsewhere (devices, vendors, names, the API server) safe to show in one line: it
/// cannot control the terminal or look like a separate line.
pub fn escape_line(text: &str) -> String {
    let shown = |c: char| {
        if is_misleading(c) && c != '\t' {
            '\u{FFFD}'
        } else {
            c
        }
    };
    text.chars().map(shown).collect()
}

/// Makes a whole page safe for a terminal: line breaks and colours are kept.
pub fn escape_page(text: &str) -> String {
    let mut page = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let length = match c {
            '\x1b' => colour(rest).unwrap_or(0),
            '\n' => 1,
            _ => 0,
        };
        if length > 0 {
            page.push_str(&rest[..length]);
            rest = &rest[length..];
            continue;
        }
        let end = rest[c.len_utf8()..].find(['\x1b', '\n']);
        let end = end.map_or(rest.len(), |end| end + c.len_utf8());
        page += &escape_line(&rest[..end]);
        rest = &rest[end..];
    }
    page
}

/// The length of the colour sequence (ECMA-48 SGR) at the start of `text`.
fn colour(text: &str) -> Option<usize> {
    let parameters = text.strip_prefix("\x1b[")?;
    let end = parameters.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    parameters[end..].starts_with('m').then_some(end + 3)
}

/// Formats one log event: only the final line break is kept.
pub fn log_line(event: &str, colours: bool) -> String {
    let line = event.trim_end_matches('\n').replace('\n', "\\n");
    let line = if colours {
        escape_page(&line)
    } else {
        escape_line(&line)
    };
    line + "\n"
}

/// Escapes terminal control characters in JSON or YAML.
pub fn escape_data(text: &str) -> String {
    let mut data = String::with_capacity(text.len());
    for c in text.chars() {
        match is_misleading(c) && !matches!(c, '\n' | '\t') {
            // Writing to a String never fails.
            true => drop(write!(data, "\\u{:04x}", u32::from(c))),
            false => data.push(c),
        }
    }
    data
}

/// The number of letters to insert, remove, replace or swap with the next one to turn one text into
/// the other.
pub fn edit_distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut rows = vec![vec![0; other.len() + 1]; one.len() + 1];
    for line in 0..=one.len() {
        for column in 0..=other.len() {
            rows[line][column] = match (line, column) {
                (0, rest) | (rest, 0) => rest,
                (i, j) => {
                    let replaced = rows[i - 1][j - 1] + usize::from(one[i - 1] != other[j - 1]);
                    let exchanged =
                        i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1];
                    let exchanged = exchanged.then(|| rows[i - 2][j - 2] + 1);
                    let moved = rows[i - 1][j].min(rows[i][j - 1]) + 1;
                    replaced.min(moved).min(exchanged.unwrap_or(usize::MAX))
                }
            };
        }
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_bidi_characters_are_misleading_and_letters_are_not() {
        for bad in [
            '\n', '\u{1b}', '\u{7f}', '\u{9b}', '\u{202e}', '\u{2067}', '\u{2028}',
        ] {
            assert!(is_misleading(bad), "{bad:?}");
        }
        assert!(!"Az 0-é漢".chars().any(is_misleading));
    }

    #[test]
    fn a_shortened_list_counts_the_omitted_items() {
        assert_eq!(join_limited(["a", "b"].iter(), 2), "a, b");
        assert_eq!(
            join_limited(["a", "b", "c", "d"].iter(), 2),
            "a, b and 2 more"
        );
        assert_eq!(join_limited(std::iter::empty::<&str>(), 2), "");
    }

    /// Colours, other sequences of ESC and of C1, line ends, and characters that reverse the text
    /// direction.
    const HOSTILE: &str = "a\x1b[31mred\x1b[2J\x1b]0;t\x07\u{9b}2J\r\nforged\u{202e}txt\u{2066}\u{200f}\u{2028}\x7f\x1b";

    #[test]
    fn escaped_text_has_no_terminal_control_characters() {
        let line = escape_line(HOSTILE);
        assert!(!line.chars().any(is_misleading), "{line:?}");
        assert_eq!(escape_line("größer\tas it is – ✓"), "größer\tas it is – ✓");
        let shown = escape_page(HOSTILE);
        assert!(shown.contains("a\x1b[31mred\u{fffd}[2J"), "{shown:?}");
        let plain = shown.replace("\x1b[31m", "").replace('\n', "");
        assert!(!plain.chars().any(is_misleading), "{shown:?}");
        assert_eq!(
            escape_page("\x1b[1;32mgood\x1b[0m\n"),
            "\x1b[1;32mgood\x1b[0m\n"
        );
    }

    #[test]
    fn a_log_event_is_escaped_to_one_line() {
        for colours in [false, true] {
            let line = log_line(&format!("{HOSTILE}\n"), colours);
            assert_eq!(line.matches('\n').count(), 1, "{line:?}");
            assert!(
                line.ends_with('\n') && line.contains("\\nforged"),
                "{line:?}"
            );
        }
    }

    #[test]
    fn escaping_json_keeps_its_meaning() {
        let json = serde_json::to_string_pretty(&[HOSTILE]).unwrap();
        let shown = escape_data(&json);
        assert!(
            !shown.chars().any(|c| is_misleading(c) && c != '\n'),
            "{shown:?}"
        );
        let read: [String; 1] = serde_json::from_str(&shown).unwrap();
        assert_eq!(read, [HOSTILE]);
    }

    #[test]
    fn numbers_agree_with_their_nouns_and_verbs() {
        assert_eq!(counted(0, "node"), "0 nodes");
        assert_eq!(counted(1, "node"), "1 node");
        assert_eq!(counted_with_verb(1, "node"), "1 node is");
        assert_eq!(counted_with_verb(2, "node"), "2 nodes are");
        let parts = [(0, 1), (1, 1), (0, 2), (1, 2), (2, 2)];
        assert_eq!(
            parts.map(|(part, count)| part_of(part, count, "node")),
            [
                "0 of 1 node is",
                "1 of 1 node is",
                "0 of 2 nodes are",
                "1 of 2 nodes is",
                "2 of 2 nodes are",
            ]
        );
    }

    #[test]
    fn edit_distance_counts_differing_letters() {
        for (one, other, letters) in [
            ("contents", "content", 1),
            ("contents", "contants", 1),
            ("enabled", "enable", 1),
            ("links", "luks", 2),
            ("", "ab", 2),
            ("mask", "mask", 0),
            ("mask", "maks", 1),
        ] {
            assert_eq!(edit_distance(one, other), letters, "{one} {other}");
            assert_eq!(edit_distance(other, one), letters, "{other} {one}");
        }
    }
}
