//! Patterns of file names (glob(3)), of units (systemd.preset(5)) and of users (PATTERNS in ssh_config(5)).

/// A pattern for one name.
#[derive(Clone, Debug)]
pub struct Wildcards(Vec<Part>);

#[derive(Clone, Debug)]
enum Part {
    /// `*`.
    Any,
    /// `?`.
    One,
    /// A bracket expression: whether it is negated, and its ranges.
    Class(bool, Vec<Range>),
    Letter(char),
}

#[derive(Clone, Copy, Debug)]
enum Range {
    Letters(char, char),
    /// `[:digit:]` and the like.
    Named(IsInClass),
}

/// Whether a letter is in a class.
type IsInClass = fn(&char) -> bool;

const CLASSES: [(&str, IsInClass); 8] = [
    ("alnum", char::is_ascii_alphanumeric),
    ("alpha", char::is_ascii_alphabetic),
    ("digit", char::is_ascii_digit),
    ("lower", char::is_ascii_lowercase),
    ("punct", char::is_ascii_punctuation),
    ("space", char::is_ascii_whitespace),
    ("upper", char::is_ascii_uppercase),
    ("xdigit", char::is_ascii_hexdigit),
];

impl Wildcards {
    /// A pattern of one component of a path: `*`, `?`, brackets, and backslashes before letters that stand for
    /// themselves.
    pub fn of_path(pattern: &str) -> Self {
        Self::parse(pattern, true)
    }

    /// A pattern of unit names in a preset file, which has no escapes.
    pub(super) fn of_unit(pattern: &str) -> Self {
        Self::parse(pattern, false)
    }

    fn parse(pattern: &str, escapes: bool) -> Self {
        let letters: Vec<char> = pattern.chars().collect();
        let mut parts = Vec::new();
        let mut rest = letters.as_slice();
        while let Some((first, tail)) = rest.split_first() {
            rest = tail;
            parts.push(match first {
                '*' => Part::Any,
                '?' => Part::One,
                '\\' if escapes && let Some((escaped, tail)) = tail.split_first() => {
                    rest = tail;
                    Part::Letter(*escaped)
                }
                '[' if let Some((class, tail)) = class(tail) => {
                    rest = tail;
                    class
                }
                other => Part::Letter(*other),
            });
        }
        Self(parts)
    }

    /// A pattern of a list, which has only `*` and `?`.
    pub(super) fn of_list(pattern: &str) -> Self {
        let parts = pattern.chars().map(|one| match one {
            '*' => Part::Any,
            '?' => Part::One,
            other => Part::Letter(other),
        });
        Self(parts.collect())
    }

    /// The only name that the pattern matches, if it has no wildcards.
    pub fn literal(&self) -> Option<String> {
        let letters = self.0.iter().map(|part| match part {
            Part::Letter(letter) => Some(*letter),
            _ => None,
        });
        letters.collect()
    }

    /// Whether glob(3) finds a file of this name: only a pattern that begins with a dot finds a hidden one.
    pub fn finds(&self, name: &str) -> bool {
        let hidden = name.starts_with('.') && !matches!(self.0.first(), Some(Part::Letter('.')));
        !hidden && self.matches(name)
    }

    /// Whether the whole name matches.
    pub(super) fn matches(&self, name: &str) -> bool {
        let letters: Vec<char> = name.chars().collect();
        let (mut part, mut at) = (0, 0);
        // The last `*` and the letter from which the parts after it were tried.
        let mut retry: Option<(usize, usize)> = None;
        while at < letters.len() {
            match (self.0.get(part), retry) {
                (Some(Part::Any), _) => {
                    retry = Some((part, at));
                    part += 1;
                }
                (Some(one), _) if one.has(letters[at]) => (part, at) = (part + 1, at + 1),
                (_, Some((star, from))) => {
                    retry = Some((star, from + 1));
                    (part, at) = (star + 1, from + 1);
                }
                _ => return false,
            }
        }
        self.0[part..].iter().all(|rest| matches!(rest, Part::Any))
    }
}

impl Part {
    fn has(&self, letter: char) -> bool {
        match self {
            Self::Any => false,
            Self::One => true,
            Self::Letter(own) => *own == letter,
            Self::Class(negated, ranges) => {
                let in_range = |range: &Range| match range {
                    Range::Letters(low, high) => (*low..=*high).contains(&letter),
                    Range::Named(is) => is(&letter),
                };
                ranges.iter().any(in_range) != *negated
            }
        }
    }
}

/// The bracket expression whose `[` precedes `letters`, and what follows it; none if it is not closed.
fn class(letters: &[char]) -> Option<(Part, &[char])> {
    let (negated, mut rest) = match letters.split_first() {
        Some(('!' | '^', rest)) => (true, rest),
        _ => (false, letters),
    };
    let mut ranges = Vec::new();
    loop {
        let (low, tail) = rest.split_first()?;
        if *low == ']' && !ranges.is_empty() {
            return Some((Part::Class(negated, ranges), tail));
        }
        if let Some((named, tail)) = named_class(rest) {
            ranges.push(Range::Named(named));
            rest = tail;
            continue;
        }
        let (high, tail) = match tail {
            ['-', high, tail @ ..] if *high != ']' => (high, tail),
            _ => (low, tail),
        };
        ranges.push(Range::Letters(*low, *high));
        rest = tail;
    }
}

fn named_class(letters: &[char]) -> Option<(IsInClass, &[char])> {
    let inside = letters.strip_prefix(&['[', ':'])?;
    let end = inside.windows(2).position(|two| two == [':', ']'])?;
    let name: String = inside[..end].iter().collect();
    let (_, is) = CLASSES.iter().find(|(own, _)| *own == name)?;
    Some((*is, &inside[end + 2..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_patterns_find_what_glob_finds() {
        for (pattern, name, found) in [
            ("*.conf", "a.conf", true),
            ("*.conf", ".a.conf", false),
            (".*.conf", ".a.conf", true),
            ("?a.conf", ".a.conf", false),
            ("[.]a.conf", ".a.conf", false),
            ("*.conf", "a.confx", false),
            ("**a*", "bab", true),
            ("a*b*c", "aXbYbc", true),
            ("[0-9]*.conf", "10-a.conf", true),
            ("[0-9]*.conf", "a.conf", false),
            ("[!0-9]*", "a", true),
            ("[!0-9]*", "1", false),
            ("[^0-9]*", "1", false),
            ("[]a]", "]", true),
            ("[[:digit:]x]", "7", true),
            ("[[:digit:]x]", "y", false),
            ("[a", "[a", true),
            ("[a-]", "-", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("", "", true),
        ] {
            assert_eq!(
                Wildcards::of_path(pattern).finds(name),
                found,
                "{pattern} {name}"
            );
        }
        assert_eq!(
            Wildcards::of_path("a\\*b").literal().as_deref(),
            Some("a*b")
        );
        assert_eq!(Wildcards::of_path("a?b").literal(), None);
    }

    #[test]
    fn a_pattern_with_many_stars_is_judged_at_once() {
        let pattern = Wildcards::of_path(&"*a".repeat(200));
        assert!(!pattern.finds(&"a".repeat(199)));
    }
}
