//! Finds and writes the block of managed keys in a user's own file, whose text [`byte_text`] represents.

use crate::byte_text;
use machinist_ignition::User;

/// The line before the managed keys.
pub(super) const BEGIN_MARKER: &str =
    "# BEGIN keys managed by machinist; changes between these two lines are lost";
/// The same where the line before had no line break; without the keys it has none again.
const BEGIN_MARKER_AFTER_OPEN_LINE: &str = "# BEGIN keys managed by machinist, after a line \
    without a line break; changes between these two lines are lost";
/// The line after the managed keys.
const END_MARKER: &str = "# END keys managed by machinist";

/// The text with the block replaced or appended; all other lines stay unchanged.
pub(super) fn with_block(old: &str, user: &User) -> String {
    let block = |begin| {
        let keys = user.ssh_authorized_keys.iter().map(|key| key.trim_end());
        let block = lines([begin].into_iter().chain(keys).chain([END_MARKER]));
        byte_text::to_text(block.as_bytes())
    };
    match split(old) {
        Some(parts) => format!("{}{}{}", parts.head, block(parts.begin), parts.tail),
        None if old.is_empty() || old.ends_with('\n') => format!("{old}{}", block(BEGIN_MARKER)),
        None => format!("{old}\n{}", block(BEGIN_MARKER_AFTER_OPEN_LINE)),
    }
}

/// The text without the managed block; none if it contains no block.
pub(crate) fn without_block(old: &str) -> Option<String> {
    let KeyFileParts { head, begin, tail } = split(old)?;
    let open = begin == BEGIN_MARKER_AFTER_OPEN_LINE && tail.is_empty();
    let head = head.strip_suffix('\n').filter(|_| open).unwrap_or(head);
    Some(format!("{head}{tail}"))
}

/// Whether a file of SSH keys contains managed keys.
pub fn has_managed_keys(file: &[u8]) -> bool {
    split(&byte_text::to_text(file)).is_some()
}

/// Whether the text has a begin line without its end line: the lines after it count as the user's.
pub(super) fn has_open_block(text: &str) -> bool {
    let (head, tail) = split(text).map_or((text, ""), |parts| (parts.head, parts.tail));
    let mut lines = head.lines().chain(tail.lines());
    lines.any(|line| [BEGIN_MARKER, BEGIN_MARKER_AFTER_OPEN_LINE].contains(&line.trim_end()))
}

/// The text of a file around the managed block.
struct KeyFileParts<'t> {
    head: &'t str,
    /// The first line of the block.
    begin: &'static str,
    tail: &'t str,
}

/// Finds the managed block: an end line, and the last begin line before it. A begin line without its end line does not
/// count: the lines after it may be the user's own keys.
fn split(old: &str) -> Option<KeyFileParts<'_>> {
    let mut begun = None;
    let mut at = 0;
    for piece in old.split_inclusive('\n') {
        let after = at + piece.len();
        let begins = [BEGIN_MARKER, BEGIN_MARKER_AFTER_OPEN_LINE].into_iter();
        match (piece.trim_end(), begun) {
            (END_MARKER, Some((start, begin))) => {
                return Some(KeyFileParts {
                    head: &old[..start],
                    begin,
                    tail: &old[after..],
                });
            }
            (line, _) => {
                begun = begins
                    .map(|begin| (at, begin))
                    .find(|(_, begin)| line == *begin)
                    .or(begun)
            }
        }
        at = after;
    }
    None
}

pub(super) fn lines<'a>(lines: impl IntoIterator<Item = &'a str>) -> String {
    lines.into_iter().flat_map(|line| [line, "\n"]).collect()
}
