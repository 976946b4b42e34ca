//! Provides the tokio runtime, the logging and the memory protection of commands.

use std::io::{self, IsTerminal as _};

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
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

/// Ensures that no core dump contains the secrets in this process's memory (shadow, keys, tokens),
/// and that no process of the same user reads them. In a container there is no `LimitCORE=0`. The
/// limit alone would not be enough, since the kernel ignores it where `core_pattern` is a pipe.
pub fn protect_memory() -> io::Result<()> {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Core, none)?;
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
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
