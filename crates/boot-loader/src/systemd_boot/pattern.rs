//! Patterns that select an entry: `*`, `?`, `[a-z]` and escapes with `\`. Unlike glob(3) they have no negated sets and no
//! named classes, and a pattern with an unclosed set matches nothing.

/// A part of a pattern.
enum Part {
    /// Any number of characters.
    Any,
    /// One character.
    One,
    Literal(char),
    /// One character of these ranges.
    Ranges(Vec<(char, char)>),
}

/// Whether the whole text matches the pattern. A pattern with an unfinished part matches nothing.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let Some(parts) = parse(pattern) else {
        return false;
    };
    let text: Vec<char> = text.chars().collect();
    // After `parts[..part]` and `text[..at]` have matched; `retry` is where the last `*` may take one more.
    let (mut part, mut at, mut retry) = (0, 0, None);
    loop {
        match parts.get(part) {
            None if at == text.len() => return true,
            Some(Part::Any) => {
                part += 1;
                retry = Some((part, at));
                continue;
            }
            Some(one) if text.get(at).is_some_and(|sign| one.is(*sign)) => {
                (part, at) = (part + 1, at + 1);
                continue;
            }
            _ => {}
        }
        match retry {
            Some((after, from)) if from < text.len() => {
                (part, at) = (after, from + 1);
                retry = Some((after, from + 1));
            }
            _ => return false,
        }
    }
}

impl Part {
    fn is(&self, sign: char) -> bool {
        match self {
            Self::Any => false,
            Self::One => true,
            Self::Literal(own) => *own == sign,
            Self::Ranges(ranges) => ranges
                .iter()
                .any(|(from, to)| (*from..=*to).contains(&sign)),
        }
    }
}

fn parse(pattern: &str) -> Option<Vec<Part>> {
    let (mut parts, mut signs) = (Vec::new(), pattern.chars());
    while let Some(sign) = signs.next() {
        parts.push(match sign {
            '*' => Part::Any,
            '?' => Part::One,
            '\\' => Part::Literal(signs.next()?),
            '[' => Part::Ranges(ranges(&mut signs)?),
            _ => Part::Literal(sign),
        });
    }
    Some(parts)
}

/// Parses the set between brackets. The first character may be a bracket, and the first or last one a minus.
fn ranges(signs: &mut std::str::Chars<'_>) -> Option<Vec<(char, char)>> {
    let mut ranges: Vec<(char, char)> = Vec::new();
    let mut can_begin_range = false;
    loop {
        let sign = signs.next()?;
        let is_last = signs.clone().next() == Some(']');
        match sign {
            ']' if !ranges.is_empty() => return Some(ranges),
            '-' if can_begin_range && !is_last => {
                let mut to = signs.next()?;
                if to == '\\' {
                    to = signs.next()?;
                }
                if let Some(last) = ranges.last_mut() {
                    last.1 = to;
                }
                // `[a-c-f]` is a to c, a minus or f.
                can_begin_range = false;
                continue;
            }
            '\\' => {
                let sign = signs.next()?;
                ranges.push((sign, sign));
            }
            _ => ranges.push((sign, sign)),
        }
        can_begin_range = true;
    }
}
