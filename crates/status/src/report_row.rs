//! Formats one row of the status for people, wrapped at the width of a terminal.

use std::fmt::{self, Write};

use anstyle::{AnsiColor, Style};

use machinist_base::text::LINE_COLUMNS;

pub(super) const WARNING_STYLE: Style = AnsiColor::Yellow.on_default();

/// One sentence after `head`, wrapped between words; further lines are indented to the first word.
pub(super) fn folded(out: &mut String, head: &str, text: &str) -> fmt::Result {
    let indent = width(head);
    let mut column = indent;
    out.push_str(head);
    for (at, word) in text.split(' ').enumerate() {
        let length = width(word);
        if at > 0 && column + 1 + length > LINE_COLUMNS {
            write!(out, "\n{:indent$}", "")?;
            column = indent;
        } else if at > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out.push('\n');
    Ok(())
}

/// The number of columns of a text, without the escape sequences of colours.
fn width(text: &str) -> usize {
    let mut escaped = false;
    let shown = text.chars().filter(|letter| {
        let begins = *letter == '\u{1b}';
        let shown = !escaped && !begins;
        escaped = begins || (escaped && *letter != 'm');
        shown
    });
    shown.count()
}
