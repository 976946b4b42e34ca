//! Determines the SELinux label of a new object from the root's own `file_contexts`, with the rules of
//! selabel_file(5).
//!
//! Rules without a metacharacter take precedence over all others, independent of their order; of the remaining
//! rules the last match is used. `<<none>>` means that no label is set.

use std::sync::OnceLock;

use regex::bytes::{Regex, RegexBuilder};

use super::ObjectKind;
use machinist_base::abs_path::AbsPath;

/// The characters that make a path in a rule a pattern; a backslash escapes the next character.
const PATTERN_METACHARACTERS: &str = ".^$?*+|[({";

/// The label in a rule that means "set no label".
const NO_LABEL: &str = "<<none>>";

/// The labelling rules of a root; empty if it has no policy.
#[derive(Clone, Debug, Default)]
pub struct SelinuxLabels {
    rules: Vec<LabelRule>,
    /// Path prefixes that are labelled like other prefixes: the administrator's, then the policy's.
    substitutes: [Vec<(String, String)>; 2],
}

#[derive(Clone, Debug)]
struct LabelRule {
    pattern: String,
    /// The text before the first metacharacter, which every matching path starts with.
    stem: String,
    literal: bool,
    kind: Option<ObjectKind>,
    label: String,
    compiled: OnceLock<Option<Regex>>,
}

/// Only the patterns are compared; they never change.
impl PartialEq for SelinuxLabels {
    fn eq(&self, other: &Self) -> bool {
        let key = |rule: &LabelRule| (rule.pattern.clone(), rule.kind, rule.label.clone());
        self.substitutes == other.substitutes
            && self.rules.iter().map(key).eq(other.rules.iter().map(key))
    }
}

impl SelinuxLabels {
    /// Parses the rules of `texts`, in the order of precedence: `file_contexts`, `.homedirs`,
    /// `.local`; and the substitutes of `.subs` and `.subs_dist`. Malformed lines are skipped.
    pub fn read<'t>(texts: impl IntoIterator<Item = &'t str>, substitutes: [&str; 2]) -> Self {
        let lines = texts.into_iter().flat_map(str::lines);
        Self {
            rules: lines.filter_map(LabelRule::read).collect(),
            substitutes: substitutes.map(|text| text.lines().filter_map(substitute).collect()),
        }
    }

    /// Whether the root has no policy.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The label of a new object of this kind at `path`; none if no label is set.
    pub fn of(&self, path: &AbsPath, kind: ObjectKind) -> Option<&str> {
        if self.is_empty() {
            return None;
        }
        let [own, policys] = &self.substitutes;
        let path = substituted(own, path.as_str().to_owned());
        let path = substituted(policys, path);
        let fits = |rule: &&LabelRule| rule.kind.is_none_or(|of| of == kind) && rule.matches(&path);
        let literal = self.rules.iter().rev().filter(|rule| rule.literal);
        let patterns = self.rules.iter().rev().filter(|rule| !rule.literal);
        let found = literal.chain(patterns).find(fits)?;
        Some(found.label.as_str()).filter(|label| *label != NO_LABEL)
    }
}

/// `/run /var/run`: paths below the first are labelled like paths below the second.
fn substitute(line: &str) -> Option<(String, String)> {
    let mut words = line.split_whitespace();
    let (from, to) = (words.next()?, words.next()?);
    let paths = from.starts_with('/') && to.starts_with('/');
    paths.then(|| (from.to_owned(), to.to_owned()))
}

/// The path with its prefix substituted; if several lines match, the last one is used.
fn substituted(lines: &[(String, String)], path: String) -> String {
    let below = |from: &str| {
        let rest = path.strip_prefix(from.trim_end_matches('/'))?;
        (rest.is_empty() || rest.starts_with('/')).then_some(rest)
    };
    let found = lines
        .iter()
        .rev()
        .find_map(|(from, to)| Some((to, below(from)?)));
    match found {
        Some((to, rest)) => format!("{}{rest}", to.trim_end_matches('/')),
        None => path,
    }
}

impl LabelRule {
    /// `PATTERN [KIND] LABEL`.
    fn read(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (pattern, kind, label) = match words.as_slice() {
            [first, ..] if first.starts_with('#') => return None,
            [pattern, label] => (*pattern, None, *label),
            [pattern, kind, label] => (*pattern, Some(*kind), *label),
            _ => return None,
        };
        let kind = match kind {
            None => None,
            Some("--") => Some(ObjectKind::File),
            Some("-d") => Some(ObjectKind::Directory),
            Some("-l") => Some(ObjectKind::Link),
            Some("-b" | "-c" | "-p" | "-s") => Some(ObjectKind::Other),
            Some(_) => return None,
        };
        let (stem, literal) = stem(pattern);
        Some(Self {
            pattern: pattern.to_owned(),
            stem,
            literal,
            kind,
            label: label.to_owned(),
            compiled: OnceLock::new(),
        })
    }

    fn matches(&self, path: &str) -> bool {
        if self.literal {
            return self.stem == path;
        }
        // Most rules are about other paths, so a pattern is compiled only when it is needed.
        let compiled = || {
            let whole = format!("^(?:{})$", self.pattern);
            RegexBuilder::new(&whole).unicode(false).build().ok()
        };
        path.starts_with(&self.stem)
            && self
                .compiled
                .get_or_init(compiled)
                .as_ref()
                .is_some_and(|regex| regex.is_match(path.as_bytes()))
    }
}

/// The fixed prefix of a pattern, and whether the prefix is the whole pattern. A character that a quantifier makes
/// optional is not part of it, and a pattern with an alternative has no fixed prefix.
fn stem(pattern: &str) -> (String, bool) {
    let mut stem = String::new();
    let mut rest = pattern.chars();
    while let Some(next) = rest.next() {
        match next {
            '\\' => match rest.next() {
                // This is a class such as \d, not a literal character.
                Some(escaped) if escaped.is_ascii_alphanumeric() => return (stem, false),
                Some(escaped) => stem.push(escaped),
                None => return (stem, false),
            },
            meta if PATTERN_METACHARACTERS.contains(meta) => {
                if matches!(meta, '?' | '*' | '{') {
                    stem.pop();
                }
                return match pattern.contains('|') {
                    true => (String::new(), false),
                    false => (stem, false),
                };
            }
            plain => stem.push(plain),
        }
    }
    (stem, true)
}

#[cfg(test)]
mod tests;
