//! Formats the note of an event.

use machinist_plan::escape_line;

/// The API server's limit for a note, in bytes.
const MAX_NOTE_BYTES: usize = 1024;

/// Formats the note within the server's limit. The count of dropped events is never cut off.
pub(super) fn format_note(note: &str, left_out: u32) -> String {
    let more = match left_out {
        0 => String::new(),
        count => format!(" ({count} earlier events omitted)"),
    };
    let room = MAX_NOTE_BYTES.saturating_sub(more.len());
    format!(
        "{}{more}",
        machinist_kube_api::truncate_at_char(&escape_line(note), room)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_note_counts_omitted_events_even_when_truncated() {
        assert_eq!(format_note("a", 0), "a");
        assert_eq!(format_note("a", 3), "a (3 earlier events omitted)");
        let long = format_note(&"x".repeat(2 * MAX_NOTE_BYTES), 3);
        assert_eq!(long.len(), MAX_NOTE_BYTES);
        assert!(long.ends_with("earlier events omitted)"));
        assert_eq!(
            format_note("a\x1b[2J\nb\u{202e}", 0),
            "a\u{fffd}[2J\u{fffd}b\u{fffd}"
        );
    }
}
