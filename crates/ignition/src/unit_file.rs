//! Parses unit files like systemd (systemd.syntax(7)): sections, repeated keys, continuation lines,
//! comments, and lists that an empty assignment resets.

/// A unit file, possibly with drop-ins added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitFile {
    entries: Vec<UnitFileEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct UnitFileEntry {
    section: String,
    key: String,
    value: String,
}

/// A line that is not valid in a unit file. systemd skips most of them and logs a warning.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct UnitFault {
    /// The line, from 1.
    pub line: usize,
    /// A description of the fault.
    pub what: &'static str,
}

impl UnitFile {
    /// Parses `text` strictly: every malformed line is a fault. For units in a config.
    pub fn parse(text: &str) -> Result<Self, Vec<UnitFault>> {
        let (file, faults) = Self::read(text);
        if faults.is_empty() {
            Ok(file)
        } else {
            Err(faults)
        }
    }

    /// Parses `text` like systemd and skips malformed lines. For unit files on the machine.
    pub fn read(text: &str) -> (Self, Vec<UnitFault>) {
        let mut file = Self::default();
        let mut faults = Vec::new();
        let mut section: Option<String> = None;
        // Editors of other systems write a byte order mark, and exports keep it.
        let bare = text.strip_prefix(BYTE_ORDER_MARK);
        if bare.is_some() {
            faults.push(UnitFault {
                line: 1,
                what: "a byte order mark (U+FEFF) precedes the text; save it as UTF-8 without one",
            });
        }
        for (line, joined) in logical_lines(bare.unwrap_or(text)) {
            let mut fault = |what| faults.push(UnitFault { line, what });
            let trimmed = joined.trim_matches(WHITE_SPACE);
            if trimmed.is_empty() {
                continue;
            }
            if let Some(head) = trimmed.strip_prefix('[') {
                section = head.strip_suffix(']').map(str::to_owned);
                if section.is_none() {
                    fault("the section's name is not closed with ]");
                }
                continue;
            }
            let Some((key, value)) = trimmed.split_once('=') else {
                fault("this is neither [Section] nor Key=Value");
                continue;
            };
            match &section {
                None => fault("this assignment is outside of any section"),
                Some(_) if key.trim_matches(WHITE_SPACE).is_empty() => fault("no key before ="),
                Some(section) => file.entries.push(UnitFileEntry {
                    section: section.clone(),
                    key: key.trim_matches(WHITE_SPACE).to_owned(),
                    value: value.trim_matches(WHITE_SPACE).to_owned(),
                }),
            }
        }
        (file, faults)
    }

    /// Appends the assignments of a drop-in.
    pub fn add(&mut self, drop_in: Self) {
        self.entries.extend(drop_in.entries);
    }

    /// All values of a list key, in order; an empty assignment drops those before it.
    pub fn values(&self, section: &str, key: &str) -> Vec<&str> {
        let mut values = Vec::new();
        for entry in self.entries.iter().filter(|entry| entry.is(section, key)) {
            if entry.value.is_empty() {
                values.clear();
            } else {
                values.push(entry.value.as_str());
            }
        }
        values
    }

    /// All values of a key that an empty assignment does not reset, in order, without empty ones.
    pub fn all_values<'a>(
        &'a self,
        section: &'a str,
        key: &'a str,
    ) -> impl Iterator<Item = &'a str> {
        let entries = self
            .entries
            .iter()
            .filter(move |entry| entry.is(section, key));
        let values = entries.map(|entry| entry.value.as_str());
        values.filter(|value| !value.is_empty())
    }

    /// The value of a single-value key: the last, unless that is empty.
    pub fn last(&self, section: &str, key: &str) -> Option<&str> {
        self.values(section, key).pop()
    }

    /// All words of a key with a list of words, such as `WantedBy=`.
    pub fn words(&self, section: &str, key: &str) -> Vec<String> {
        let values = self.values(section, key);
        values.into_iter().flat_map(split_words).collect()
    }

    /// All words of a key whose list an empty assignment does not reset, such as `Also=`.
    pub fn all_words(&self, section: &str, key: &str) -> Vec<String> {
        self.all_values(section, key)
            .flat_map(split_words)
            .collect()
    }

    /// Whether a section contains assignments.
    pub fn has_section(&self, section: &str) -> bool {
        self.entries.iter().any(|entry| entry.section == section)
    }
}

impl UnitFileEntry {
    fn is(&self, section: &str, key: &str) -> bool {
        self.section == section && self.key == key
    }
}

/// Marks a text as Unicode for programs that do not assume it.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// The characters that systemd treats as white space.
const WHITE_SPACE: [char; 4] = [' ', '\t', '\n', '\r'];

/// The lines without comments and with continuations joined (a space replaces the backslash), each
/// with the number of its first line. A comment inside a continuation does not end it.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    let mut pending: Option<(usize, String)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start_matches(WHITE_SPACE).starts_with(['#', ';']) {
            continue;
        }
        let (first, mut joined) = pending.take().unwrap_or((number, String::new()));
        let backslashes = line.len() - line.trim_end_matches('\\').len();
        if backslashes % 2 == 1 {
            joined.push_str(&line[..line.len() - 1]);
            joined.push(' ');
            pending = Some((first, joined));
        } else {
            joined.push_str(line);
            lines.push((first, joined));
        }
    }
    lines.extend(pending);
    lines
}

/// Splits a value into words like systemd does for lists of names: at white space, with quotes
/// removed and backslashes kept (`\x2d` is part of a unit's name). Text after an unclosed quote is
/// dropped, as in systemd.
pub fn split_words(value: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if WHITE_SPACE.contains(&c) => words.extend(word.take()),
            (_, '\\') => {
                let word = word.get_or_insert_default();
                word.push(c);
                word.extend(chars.next());
            }
            _ => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_none() {
        words.extend(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_file_is_parsed_as_by_systemd() {
        let file = UnitFile::parse(
            "# comment\n[Unit]\nDescription = Two words \n\n[Service]\nExecStart=/bin/a \\\n; \
             comment inside\n  --flag\nExecStart=/bin/b\nEnvironment=A=1\n[Install]\nWantedBy=a.target\n\
             WantedBy=\nWantedBy=\"b.target\" c\\x2dd.target\nAlias=x.service",
        )
        .unwrap();
        assert_eq!(file.last("Unit", "Description"), Some("Two words"));
        assert_eq!(
            file.values("Service", "ExecStart"),
            ["/bin/a    --flag", "/bin/b"]
        );
        assert_eq!(file.last("Service", "Environment"), Some("A=1"));
        assert_eq!(
            file.words("Install", "WantedBy"),
            ["b.target", "c\\x2dd.target"]
        );
        assert!(file.has_section("Install") && !file.has_section("Timer"));
    }

    #[test]
    fn malformed_unit_lines_are_reported_and_skipped() {
        let text = "Before=x\n[Unit]\nDescription\n=x\n[Service\nExecStart=/bin/a\n[Install]\nA=b";
        let (file, faults) = UnitFile::read(text);
        let lines: Vec<_> = faults.iter().map(|fault| fault.line).collect();
        assert_eq!(lines, [1, 3, 4, 5, 6]);
        assert_eq!(file.values("Install", "A"), ["b"]);
        assert!(UnitFile::parse(text).is_err());
    }

    #[test]
    fn a_byte_order_mark_is_reported_and_the_rest_is_parsed() {
        let (file, faults) = UnitFile::read("\u{feff}[Service]\nExecStart=/bin/a");
        let found: Vec<_> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("line 1: a byte order mark"),
            "{found:?}"
        );
        assert_eq!(file.values("Service", "ExecStart"), ["/bin/a"]);
    }

    #[test]
    fn a_drop_in_adds_to_lists_and_resets_them() {
        let mut file = UnitFile::parse("[Service]\nExecStart=/bin/a\nType=simple").unwrap();
        file.add(UnitFile::parse("[Service]\nExecStart=\nExecStart=/bin/b").unwrap());
        assert_eq!(file.values("Service", "ExecStart"), ["/bin/b"]);
        assert_eq!(file.last("Service", "Type"), Some("simple"));
    }

    #[test]
    fn unit_file_words_end_at_unquoted_white_space() {
        assert_eq!(split_words(" a\t'b c'  d\"e f\" "), ["a", "b c", "de f"]);
        assert_eq!(split_words("a 'b"), ["a"]);
        assert_eq!(split_words("a\\ b"), ["a\\ b"]);
        assert_eq!(split_words("''"), [""]);
    }
}
