//! What several rooms say in the same words.

use std::fmt::Write as _;

/// So many names are in one line of the log.
pub(crate) const IN_A_LINE: usize = 20;

/// The first `most` and how many more, in one line for people: `a, b and 3 more`.
pub(crate) fn few<T: AsRef<str>>(all: impl ExactSizeIterator<Item = T>, most: usize) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_shown_is_counted() {
        assert_eq!(few(["a", "b"].iter(), 2), "a, b");
        assert_eq!(few(["a", "b", "c", "d"].iter(), 2), "a, b and 2 more");
        assert_eq!(few(std::iter::empty::<&str>(), 2), "");
    }
}
