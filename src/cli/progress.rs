//! How far an update is, for a person who waits at a terminal.

use std::{
    io::{self, IsTerminal as _, Write as _},
    sync::Mutex,
};

use super::Format;

/// Back to the first column, and what stands there away.
const FRESH_LINE: &str = "\r\x1b[K";

/// One line on stderr that says the phase, while it lasts. Nothing where stderr is no terminal, or one
/// that knows no escapes (`TERM=dumb`), or where a script reads what is printed.
#[derive(Debug)]
pub(super) struct Progress {
    shown: Mutex<Option<String>>,
    terminal: bool,
}

impl Progress {
    pub(super) fn new(output: Format) -> Self {
        let dumb = std::env::var_os("TERM").is_none_or(|kind| kind == "dumb");
        Self {
            shown: Mutex::default(),
            terminal: output == Format::Text && !dumb && io::stderr().is_terminal(),
        }
    }

    /// Shows the phase; one in which nothing is done, or somebody is asked, takes the line away.
    pub(super) fn phase(&self, name: &str) {
        let now = (!matches!(name, "Idle" | "Failed" | "Planned" | "Waiting"))
            .then(|| format!("{name} …"));
        let Ok(mut shown) = self.shown.lock() else {
            return;
        };
        if self.terminal && *shown != now {
            let line = now.as_deref().unwrap_or_default();
            // Whoever cannot be told how far it is can still be told how it ended.
            let _ = write!(io::stderr(), "{FRESH_LINE}{line}");
            *shown = now;
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.phase("Idle");
    }
}
