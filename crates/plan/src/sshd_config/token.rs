//! Splits a line of sshd's configuration into words, as sshd does for keywords and criteria.

pub(super) const BLANKS: [char; 4] = [' ', '\t', '\r', '\n'];

/// Takes the next word off `rest`, as for keywords and the criteria of `Match`: words are separated by blanks or one
/// `=`, and may be quoted. Returns none at the end and for a quote that is not closed.
pub(super) fn token(rest: &mut &str) -> Option<String> {
    let text: &str = rest;
    if text.is_empty() {
        return None;
    }
    let is_end = |one: char| BLANKS.contains(&one) || one == '"' || one == '=';
    let Some(at) = text.find(is_end) else {
        *rest = "";
        return Some(text.to_owned());
    };
    let (word, tail) = text.split_at(at);
    if let Some(quoted) = tail.strip_prefix('"') {
        let (inside, after) = quoted.split_once('"')?;
        *rest = after.trim_start_matches(BLANKS);
        return Some(format!("{word}{inside}"));
    }
    let (separator, after) = tail.split_at(1);
    let mut after = after.trim_start_matches(BLANKS);
    if separator != "="
        && let Some(value) = after.strip_prefix('=')
    {
        after = value.trim_start_matches(BLANKS);
    }
    *rest = after;
    Some(word.to_owned())
}
