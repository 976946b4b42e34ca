//! Shows the progress of an update at a terminal.

use std::{
    io::{self, IsTerminal as _, Write as _},
    sync::Mutex,
};

use super::Format;

/// Returns to the first column and erases the line.
const ERASE_LINE: &str = "\r\x1b[K";

/// One line on stderr with the current phase. Nothing is shown if stderr is not a terminal, if the
/// terminal does not support escapes (`TERM=dumb`), or if a script reads the output.
#[derive(Debug)]
pub(super) struct UpdateProgressLine {
    shown: Mutex<Option<String>>,
    terminal: bool,
}

impl UpdateProgressLine {
    pub(super) fn new(output: Format) -> Self {
        let dumb = std::env::var_os("TERM").is_none_or(|kind| kind == "dumb");
        Self {
            shown: Mutex::default(),
            terminal: output == Format::Text && !dumb && io::stderr().is_terminal(),
        }
    }

    /// Shows the phase; a phase without activity, or in which the user is asked, erases the line.
    pub(super) fn phase(&self, name: &str) {
        let now = (!matches!(name, "Idle" | "Failed" | "Planned" | "Waiting"))
            .then(|| format!("{name} …"));
        let Ok(mut shown) = self.shown.lock() else {
            return;
        };
        if self.terminal && *shown != now {
            let line = now.as_deref().unwrap_or_default();
            // A failure to show the progress is ignored; the result is still printed.
            let _ = write!(io::stderr(), "{ERASE_LINE}{line}");
            *shown = now;
        }
    }
}

impl Drop for UpdateProgressLine {
    fn drop(&mut self) {
        self.phase("Idle");
    }
}
