//! Path patterns with the shell wildcards `*`, `?` and `[a-z]`, each within one path component.

use machinist_base::abs_path::AbsPath;

/// Why a text is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadGlob {
    /// It is not an absolute path, wildcards aside.
    #[error(transparent)]
    Path(#[from] machinist_base::abs_path::BadPath),
    /// `**`, which would walk whole directory trees, is not supported.
    #[error("{0:?} contains **; a * matches within one path component")]
    Deep(String),
    /// A `[` is not closed.
    #[error("{0:?} contains [ without its ]")]
    Open(String),
    /// The range is empty.
    #[error("{given:?} contains the reversed range {from}-{to}")]
    ReversedRange {
        /// The whole pattern.
        given: String,
        /// The start of the range.
        from: char,
        /// The end of the range.
        to: char,
    },
}

/// A valid pattern for absolute paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(AbsPath);

impl Glob {
    /// Parses a pattern.
    pub fn new(given: &str) -> Result<Self, BadGlob> {
        let path = AbsPath::new(given)?;
        for part in path.components() {
            if part.contains("**") {
                return Err(BadGlob::Deep(given.to_owned()));
            }
            match classes(part) {
                Classes::Good => {}
                Classes::Open => return Err(BadGlob::Open(given.to_owned())),
                Classes::ReversedRange(from, to) => {
                    let given = given.to_owned();
                    return Err(BadGlob::ReversedRange { given, from, to });
                }
            }
        }
        Ok(Self(path))
    }

    /// The pattern as text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// The only path that matches, if there is no wildcard.
    pub fn literal(&self) -> Option<&AbsPath> {
        (!self.0.components().any(is_wild)).then_some(&self.0)
    }

    /// Whether `path` matches.
    pub fn matches(&self, path: &AbsPath) -> bool {
        let (mut parts, mut names) = (self.0.components(), path.components());
        loop {
            match (parts.next(), names.next()) {
                (None, None) => return true,
                (Some(part), Some(name)) if component_matches(part, name) => {}
                _ => return false,
            }
        }
    }

    /// All existing paths that match, sorted, at most `limit`, and whether there were more.
    ///
    /// `list` returns the names in a directory, or nothing if it is no directory; it is called only
    /// for directories above a wildcard. If the last component has no wildcard, its existence is not
    /// checked, since the caller has to stat the paths anyway.
    pub fn expand(
        &self,
        limit: usize,
        mut list: impl FnMut(&AbsPath) -> Vec<String>,
    ) -> (Vec<AbsPath>, bool) {
        let mut found = vec![AbsPath::root()];
        let mut cut = false;
        for part in self.0.components() {
            let mut next = Vec::new();
            for directory in &found {
                if is_wild(part) {
                    let names = list(directory).into_iter();
                    let hits = names.filter(|name| component_matches(part, name));
                    next.extend(hits.filter_map(|name| directory.join(&name).ok()));
                } else if let Ok(path) = directory.join(part) {
                    next.push(path);
                }
            }
            next.sort();
            cut |= next.len() > limit;
            next.truncate(limit);
            found = next;
        }
        (found, cut)
    }
}

fn is_wild(part: &str) -> bool {
    part.contains(['*', '?', '['])
}

/// The index of the `]` that closes the class at the start of `rest`. A `]` right behind the `[` or
/// `[!` is an ordinary member, as in shells.
fn class_end(rest: &[char]) -> Option<usize> {
    let start = if matches!(rest.get(1), Some('!' | '^')) {
        2
    } else {
        1
    };
    (start + 1..rest.len()).find(|at| rest[*at] == ']')
}

/// The first error in the character classes of one component, if any.
enum Classes {
    Good,
    Open,
    ReversedRange(char, char),
}

fn classes(part: &str) -> Classes {
    let mut rest: &[char] = &part.chars().collect::<Vec<_>>();
    while let Some(first) = rest.first() {
        let step = if *first == '[' {
            let Some(end) = class_end(rest) else {
                return Classes::Open;
            };
            if let Some((from, to)) = ranges(members(rest, end)).find(|(from, to)| from > to) {
                return Classes::ReversedRange(from, to);
            }
            end + 1
        } else {
            1
        };
        rest = &rest[step..];
    }
    Classes::Good
}

/// The characters between the brackets of the class that opens at the start of `rest` and closes at
/// `end`.
fn members(rest: &[char], end: usize) -> &[char] {
    let negated = matches!(rest.get(1), Some('!' | '^'));
    &rest[if negated { 2 } else { 1 }..end]
}

/// The members of a class, each as a range; a single character is a range of itself.
fn ranges(mut members: &[char]) -> impl Iterator<Item = (char, char)> {
    std::iter::from_fn(move || {
        let (range, rest) = match members {
            [from, '-', to, rest @ ..] => ((*from, *to), rest),
            [one, rest @ ..] => ((*one, *one), rest),
            [] => return None,
        };
        members = rest;
        Some(range)
    })
}

/// Whether `name` matches one component. A leading dot must be matched literally, as in shells.
pub fn component_matches(pattern: &str, name: &str) -> bool {
    if name.starts_with('.') && !pattern.starts_with('.') {
        return false;
    }
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    matches(&pattern, &name)
}

/// Matches with one pass and one point of backtracking, so that the time is at most the product of
/// both lengths for any pattern.
fn matches(pattern: &[char], name: &[char]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if pattern.get(p) == Some(&'*') {
            star = Some((p + 1, n));
            p += 1;
        } else if let Some(step) = single(&pattern[p..], name[n]) {
            p += step;
            n += 1;
        } else if let Some((after, from)) = star {
            star = Some((after, from + 1));
            p = after;
            n = from + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// The number of pattern characters at the start of `pattern` that match `c`; none if they do not
/// match.
fn single(pattern: &[char], c: char) -> Option<usize> {
    match *pattern.first()? {
        '?' => Some(1),
        '[' => {
            let end = class_end(pattern)?;
            let negated = matches!(pattern.get(1), Some('!' | '^'));
            let mut ranges = ranges(members(pattern, end));
            let member = ranges.any(|(from, to)| (from..=to).contains(&c));
            (member != negated).then_some(end + 1)
        }
        plain => (plain == c).then_some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match_as_in_a_shell() {
        for (pattern, name, expected) in [
            ("tty*", "ttyUSB0", true),
            ("tty*", "console", false),
            ("*", ".hidden", false),
            (".*", ".hidden", true),
            ("video?", "video0", true),
            ("video?", "video10", false),
            ("video[0-3]", "video2", true),
            ("video[0-3]", "video4", false),
            ("video[!0-3]", "video4", true),
            ("video[]x]", "video]", true),
            ("*-if0*", "usb-a-if1-if00", true),
            ("a*b*c", "abbbcb", false),
            ("a*b*c", "abbbcbc", true),
            ("[a-]", "-", true),
            ("[a-a-]", "-", true),
            ("[a-a-]", "b", false),
            ("", "", true),
        ] {
            assert_eq!(
                component_matches(pattern, name),
                expected,
                "{pattern} {name}"
            );
        }
    }

    #[test]
    fn hostile_glob_patterns_terminate_quickly() {
        let pattern = "*a".repeat(100);
        assert!(!component_matches(&pattern, &"b".repeat(255)));
    }

    #[test]
    fn invalid_glob_patterns_are_rejected_when_parsed() {
        assert!(matches!(Glob::new("/dev/**/x"), Err(BadGlob::Deep(_))));
        assert!(matches!(Glob::new("/dev/[ab"), Err(BadGlob::Open(_))));
        assert_eq!(
            Glob::new("/dev/a[!0-9z-a]").unwrap_err().to_string(),
            "\"/dev/a[!0-9z-a]\" contains the reversed range z-a"
        );
        assert!(matches!(Glob::new("dev/x"), Err(BadGlob::Path(_))));
        assert!(matches!(
            Glob::new("/dev/../etc/shadow"),
            Err(BadGlob::Path(_))
        ));
    }

    #[test]
    fn glob_expansion_lists_only_wildcard_parents_and_stops_at_its_limit() {
        let mut asked = Vec::new();
        let glob = Glob::new("/dev/*/card*").unwrap();
        let (found, cut) = glob.expand(3, |directory| {
            asked.push(directory.to_string());
            match directory.as_str() {
                "/dev" => vec!["dri".into(), "null".into()],
                "/dev/dri" => (0..9).map(|n| format!("card{n}")).collect(),
                _ => Vec::new(),
            }
        });
        assert_eq!(asked, ["/dev", "/dev/dri", "/dev/null"]);
        assert_eq!(found.len(), 3);
        assert!(cut);
        let literal = Glob::new("/dev/fuse").unwrap();
        let (found, cut) = literal.expand(3, |_| panic!("nothing to list"));
        assert_eq!((found.len(), cut), (1, false));
    }
}
