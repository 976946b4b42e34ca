//! Provides the tokio runtime and the logging of commands.

use std::io::{self, IsTerminal as _};

use tokio::runtime::{Builder, Runtime};

use crate::logging::{self, TelemetryError};
use machinist_status::settings::{LogLevel, LogSettings};

/// For the daemon: two workers, so that a blocking step in one does not block the probes.
pub fn daemon() -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
}

/// For commands that end by themselves: only this thread.
pub fn short() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Starts logging according to the settings and the environment.
pub fn start_logging(log: LogSettings) -> Result<(), TelemetryError> {
    start(log, None)
}

/// The log filter at a terminal, for commands that print a report: only warnings, except those that
/// the printed plan contains.
const REPORT_LOG_FILTER: &str = "warn,machinist_update::reconciler::planning=error";

/// Like [`start_logging`], for a command that prints a report. At a terminal it logs less, unless
/// the user asks for more.
pub fn start_logging_beside_a_page(log: LogSettings) -> Result<(), TelemetryError> {
    let less = log.level == LogLevel::Info && io::stderr().is_terminal();
    start(log, less.then_some(REPORT_LOG_FILTER))
}

fn start(log: LogSettings, filter: Option<&str>) -> Result<(), TelemetryError> {
    let colours = anstream::AutoStream::choice(&io::stderr());
    let environment = logging::Environment {
        filter: std::env::var("MACHINIST_LOG")
            .ok()
            .or_else(|| filter.map(str::to_owned)),
        journal_stream: std::env::var("JOURNAL_STREAM").ok(),
        colours: colours != anstream::ColorChoice::Never,
    };
    logging::start(log, &environment)
}
