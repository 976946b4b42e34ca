//! Prints the progress of a drain and what blocks it.

use std::{
    collections::BTreeSet,
    io::{self, IsTerminal as _},
};

use crate::cli::output::write_error;
use machinist_base::{reason::Reason, text::LINE_COLUMNS};
use machinist_drain::{PodId, eviction::EvictionProgress};
use machinist_plan::escape_line;

/// Returns to the first column and erases the line.
const ERASE_LINE: &str = "\r\x1b[K";

/// The maximum line width: a longer line would be wrapped, and its first part could not be erased.
const MAX_PROGRESS_COLUMNS: usize = LINE_COLUMNS - 1;

/// Prints on stderr: each new blocker on a line of its own, and on a terminal the progress below
/// them.
pub(super) struct DrainProgressPrinter {
    node: String,
    told: BTreeSet<(PodId, Reason)>,
    text: bool,
    terminal: bool,
    shown: bool,
}

impl DrainProgressPrinter {
    /// Prints nothing if `text` is false, because a script reads the output then.
    pub(super) fn new(node: &str, text: bool) -> Self {
        let dumb = std::env::var_os("TERM").is_none_or(|kind| kind == "dumb");
        Self {
            node: node.to_owned(),
            told: BTreeSet::new(),
            text,
            terminal: text && !dumb && io::stderr().is_terminal(),
            shown: false,
        }
    }

    pub(super) fn print_progress(&mut self, progress: &EvictionProgress) {
        if !self.text || !progress.begun {
            return;
        }
        let mut lines = String::new();
        for (pod, note) in progress.notes.iter() {
            if self.told.insert((pod.clone(), note.reason())) {
                lines += &escape_line(&format!("{pod} {}", note.sentence()));
                lines.push('\n');
            }
        }
        for wait in progress.blockers() {
            if self.told.insert((wait.pod.clone(), wait.what.reason())) {
                lines += &escape_line(&wait.sentence());
                lines.push('\n');
            }
        }
        if !lines.is_empty() {
            self.clear();
            write_error(&lines);
        }
        if self.terminal {
            let line = self.line(progress);
            write_error(&format!("{ERASE_LINE}{line}"));
            self.shown = true;
        }
    }

    fn line(&self, progress: &EvictionProgress) -> String {
        let away = match progress.away_since {
            Some(_) => ", API server unreachable",
            None => "",
        };
        let line = format!(
            "{}: {} to evict, {} terminating, {} removed{away} …",
            self.node, progress.to_go, progress.leaving, progress.gone
        );
        line.chars().take(MAX_PROGRESS_COLUMNS).collect()
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            write_error(ERASE_LINE);
        }
    }
}

impl Drop for DrainProgressPrinter {
    fn drop(&mut self) {
        self.clear();
    }
}
