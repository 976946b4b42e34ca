//! What commands run in: the tokio runtime and the log.

use std::io;

use tokio::runtime::{Builder, Runtime};

use crate::{
    config::Log,
    telemetry::{self, TelemetryError},
};

/// For the daemon: two workers, so that a blocking step in one does not silence the probes.
pub fn daemon() -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
}

/// For commands that end by themselves: this thread.
pub fn short() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Starts logging as the settings and the environment say.
pub fn start_logging(log: Log) -> Result<(), TelemetryError> {
    let colours = anstream::AutoStream::choice(&io::stderr());
    let environment = telemetry::Environment {
        filter: std::env::var("MACHINIST_LOG").ok(),
        journal_stream: std::env::var("JOURNAL_STREAM").ok(),
        colours: colours != anstream::ColorChoice::Never,
    };
    telemetry::start(log, &environment)
}
