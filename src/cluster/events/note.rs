//! Formats the note of an event.

use crate::{crd, plan::printable};

/// The API server's limit for a note, in bytes.
const NOTE: usize = 1024;

/// Formats the note within the server's limit. The count of dropped events is never cut off.
pub(super) fn noted(note: &str, left_out: u32) -> String {
    let more = match left_out {
        0 => String::new(),
        count => format!(" ({count} earlier events omitted)"),
    };
    let room = NOTE.saturating_sub(more.len());
    format!("{}{more}", crd::cut(&printable(note), room))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_says_how_many_were_left_out_also_where_it_is_cut() {
        assert_eq!(noted("a", 0), "a");
        assert_eq!(noted("a", 3), "a (3 earlier events omitted)");
        let long = noted(&"x".repeat(2 * NOTE), 3);
        assert_eq!(long.len(), NOTE);
        assert!(long.ends_with("earlier events omitted)"));
        assert_eq!(
            noted("a\x1b[2J\nb\u{202e}", 0),
            "a\u{fffd}[2J\u{fffd}b\u{fffd}"
        );
    }
}
