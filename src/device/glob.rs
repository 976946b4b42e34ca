//! Path patterns as shells have them: `*`, `?` and `[a-z]`, each within one component.

use crate::path::AbsPath;

/// Why a text is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadGlob {
    /// Not an absolute path once the wildcards are looked away from.
    #[error(transparent)]
    Path(#[from] crate::path::BadPath),
    /// `**` would walk whole trees.
    #[error("{0:?} holds **; one * stands for a part of one component")]
    Deep(String),
    /// A `[` that is not closed.
    #[error("{0:?} holds a [ without its ]")]
    Open(String),
    /// A range that nothing is in.
    #[error("{given:?} holds the range {from}-{to}, which runs backwards")]
    Backwards {
        /// The whole pattern.
        given: String,
        /// Where the range begins.
        from: char,
        /// Where it should end.
        to: char,
    },
}

/// A checked pattern for absolute paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(AbsPath);

impl Glob {
    /// Checks `given`.
    pub fn new(given: &str) -> Result<Self, BadGlob> {
        let path = AbsPath::new(given)?;
        for part in path.components() {
            if part.contains("**") {
                return Err(BadGlob::Deep(given.to_owned()));
            }
            match classes(part) {
                Classes::Good => {}
                Classes::Open => return Err(BadGlob::Open(given.to_owned())),
                Classes::Backwards(from, to) => {
                    let given = given.to_owned();
                    return Err(BadGlob::Backwards { given, from, to });
                }
            }
        }
        Ok(Self(path))
    }

    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// The one path this stands for, when there is no wildcard in it.
    pub fn literal(&self) -> Option<&AbsPath> {
        (!self.0.components().any(is_wild)).then_some(&self.0)
    }

    /// Whether `path` is one that this pattern could find.
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
    /// `list` names the entries of a directory, empty for what is no directory; it is called for
    /// the directories above a wildcard only. Paths without a wildcard at the end are returned
    /// without a look: the caller has to look at them anyway.
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

/// Where the class that opens at the start of `rest` closes. A `]` right behind the `[` or `[!`
/// is an ordinary member, as in shells.
fn class_end(rest: &[char]) -> Option<usize> {
    let start = if matches!(rest.get(1), Some('!' | '^')) {
        2
    } else {
        1
    };
    (start + 1..rest.len()).find(|at| rest[*at] == ']')
}

/// What is wrong with the classes of one component, if anything.
enum Classes {
    Good,
    Open,
    Backwards(char, char),
}

fn classes(part: &str) -> Classes {
    let mut rest: &[char] = &part.chars().collect::<Vec<_>>();
    while let Some(first) = rest.first() {
        let step = if *first == '[' {
            let Some(end) = class_end(rest) else {
                return Classes::Open;
            };
            if let Some((from, to)) = ranges(members(rest, end)).find(|(from, to)| from > to) {
                return Classes::Backwards(from, to);
            }
            end + 1
        } else {
            1
        };
        rest = &rest[step..];
    }
    Classes::Good
}

/// What stands between the brackets of the class that opens at the start of `rest` and closes at `end`.
fn members(rest: &[char], end: usize) -> &[char] {
    let negated = matches!(rest.get(1), Some('!' | '^'));
    &rest[if negated { 2 } else { 1 }..end]
}

/// The members of a class, each as a range; a single one is a range of itself.
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

/// Whether `name` matches one component. A leading dot must be written, as in shells.
pub fn component_matches(pattern: &str, name: &str) -> bool {
    if name.starts_with('.') && !pattern.starts_with('.') {
        return false;
    }
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    matches(&pattern, &name)
}

/// One pass with one point to return to: linear for each `*`, so no pattern can make it explode.
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

/// How many pattern characters stand for `c` at the start of `pattern`; none if they do not.
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
    fn wildcards_mean_what_they_mean_in_a_shell() {
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
    fn hostile_patterns_end_quickly() {
        let pattern = "*a".repeat(100);
        assert!(!component_matches(&pattern, &"b".repeat(255)));
    }

    #[test]
    fn patterns_are_refused_at_the_door() {
        assert!(matches!(Glob::new("/dev/**/x"), Err(BadGlob::Deep(_))));
        assert!(matches!(Glob::new("/dev/[ab"), Err(BadGlob::Open(_))));
        assert_eq!(
            Glob::new("/dev/a[!0-9z-a]").unwrap_err().to_string(),
            "\"/dev/a[!0-9z-a]\" holds the range z-a, which runs backwards"
        );
        assert!(matches!(Glob::new("dev/x"), Err(BadGlob::Path(_))));
        assert!(matches!(
            Glob::new("/dev/../etc/shadow"),
            Err(BadGlob::Path(_))
        ));
    }

    #[test]
    fn expansion_lists_only_above_wildcards_and_stops_at_its_limit() {
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
