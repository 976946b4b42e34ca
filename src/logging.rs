//! Logging: to the journal by its native protocol, or to stderr as text or JSON, never to both.
//!
//! Events and spans carry their facts as fields. In the journal each becomes `MACHINIST_<NAME>`, so
//! `journalctl MACHINIST_TRANSACTION=…` shows the log of one update. The names in use are in
//! `field`.

use std::{io, os::fd::AsFd};

use nix::sys::stat::fstat;
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::{
    EnvFilter, Layer, Registry, filter::filter_fn, layer::SubscriberExt, util::SubscriberInitExt,
};

use machinist_base::text;
use machinist_status::settings::{LogFormat, LogLevel, LogSettings};

/// The names of fields for searching the journal. Written in lower case in code.
pub mod field {
    /// `MACHINIST_TRANSACTION`: the id of the update.
    pub const TRANSACTION: &str = "transaction";
    /// `MACHINIST_PHASE`: the phase of the update.
    pub const PHASE: &str = "phase";
    /// `MACHINIST_REASON`: a reason code.
    pub const REASON: &str = "reason";
    /// `MACHINIST_NODE`: the Node's name.
    pub const NODE: &str = "node";
    /// `MACHINIST_RESOURCE`: the resource of a device.
    pub const RESOURCE: &str = "resource";
    /// All of them.
    pub const ALL: &[&str] = &[TRANSACTION, PHASE, REASON, NODE, RESOURCE];
}

/// The environment variables for logging.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// `MACHINIST_LOG`: filter directives, such as `info,machinist_device=debug`. Overrides
    /// `log.level`.
    pub filter: Option<String>,
    /// `JOURNAL_STREAM`: device and inode of the stream that systemd gave the service.
    pub journal_stream: Option<String>,
    /// stderr is a terminal whose user wants colours.
    pub colours: bool,
}

/// Logging could not be started.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// `MACHINIST_LOG` cannot be parsed.
    #[error(
        "invalid filter MACHINIST_LOG={given:?}; expected for example info,machinist_device=debug"
    )]
    Filter {
        /// Its value.
        given: String,
        /// The error.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// `log.format: journald` is set, and there is no journal.
    #[error("log.format is journald, but the journal is unreachable")]
    NoJournal(#[source] io::Error),
    /// Logging was set up before.
    #[error("logging is already initialised")]
    Twice(#[source] tracing_subscriber::util::TryInitError),
}

/// Starts logging for the whole process, once.
pub fn start(log: LogSettings, environment: &Environment) -> Result<(), TelemetryError> {
    let filter = filter(log, environment.filter.as_deref())?;
    let subscriber = tracing_subscriber::registry()
        .with(output(log.format, environment)?)
        .with(filter);
    subscriber.try_init().map_err(TelemetryError::Twice)
}

/// The API server's client library logs each failed request as an error, a hundred in an hour
/// without a server; our callers log a failure once. HTTP/2 warns about each unexpected frame of
/// vendors and plugins: any of them could fill the disk with log lines.
const LIBRARY_LOG_FILTER: &str = "kube_client=off,h2=error";

fn filter(log: LogSettings, given: Option<&str>) -> Result<EnvFilter, TelemetryError> {
    let is_loud = |given: &str| {
        let mut parts = given.split(',').map(|part| part.trim().to_lowercase());
        parts.any(|part| matches!(part.as_str(), "debug" | "trace"))
    };
    let directives = match (given, log.level) {
        (Some(given), _) if is_loud(given) => given.to_owned(),
        // A given directive for the same module replaces this.
        (Some(given), _) => format!("{LIBRARY_LOG_FILTER},{given}"),
        (None, LogLevel::Debug | LogLevel::Trace) => log.level.as_str().to_owned(),
        (None, level) => format!("{},{LIBRARY_LOG_FILTER}", level.as_str()),
    };
    EnvFilter::try_new(&directives).map_err(|source| TelemetryError::Filter {
        given: directives,
        source,
    })
}

type Output = Box<dyn Layer<Registry> + Send + Sync>;

fn output(format: LogFormat, environment: &Environment) -> Result<Output, TelemetryError> {
    let stream = environment.journal_stream.as_deref();
    match format {
        LogFormat::Journald => journal().map_err(TelemetryError::NoJournal),
        LogFormat::Auto if leads_to_journal(stream, io::stderr()) => {
            Ok(journal().unwrap_or_else(|_| text(environment.colours)))
        }
        LogFormat::Auto | LogFormat::Text => Ok(text(environment.colours)),
        LogFormat::Json => Ok(tracing_subscriber::fmt::layer()
            .json()
            .flatten_event(true)
            .with_writer(io::stderr)
            .boxed()),
    }
}

/// The message of a line is complete for people; the spans' fields are for searches.
///
/// One event is one line, even if text from devices, vendors or servers has line breaks.
fn text(colours: bool) -> Output {
    tracing_subscriber::fmt::layer()
        .with_ansi(colours)
        .with_target(false)
        .with_writer(move || LogLine { colours })
        .with_filter(filter_fn(|about| about.is_event()))
        .boxed()
}

/// stderr, with one write for each event.
struct LogLine {
    colours: bool,
}

impl io::Write for LogLine {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let line = text::log_line(&String::from_utf8_lossy(event), self.colours);
        io::stderr().write_all(line.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Uses the levels by which administrators filter with `journalctl -p`: `info` is `info`, not
/// `notice`.
fn journal() -> io::Result<Output> {
    let layer = tracing_journald::layer()?
        .with_field_prefix(Some("MACHINIST".to_owned()))
        .with_syslog_identifier("machinist".to_owned())
        .with_priority_mappings(PriorityMappings {
            info: Priority::Informational,
            debug: Priority::Debug,
            ..PriorityMappings::new()
        });
    Ok(layer.boxed())
}

/// Whether `stream` is the one that systemd connected to the journal. The variable alone is no
/// proof, since child processes with another stderr inherit it (systemd.exec(5),
/// `$JOURNAL_STREAM`).
fn leads_to_journal(announced: Option<&str>, stream: impl AsFd) -> bool {
    let announced = announced.and_then(|text| text.split_once(':'));
    let Some((Ok(device), Ok(inode))) =
        announced.map(|(device, inode)| (device.parse::<u64>(), inode.parse::<u64>()))
    else {
        return false;
    };
    fstat(stream).is_ok_and(|found| (found.st_dev, found.st_ino) == (device, inode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documented_log_fields_match_the_code() {
        let rows = include_str!("../docs/logging.md").lines();
        let documented: Vec<_> = rows
            .filter_map(|row| row.strip_prefix("| `MACHINIST_")?.split('`').next())
            .map(str::to_ascii_lowercase)
            .collect();
        assert_eq!(documented, field::ALL);
    }

    #[test]
    fn journal_logging_is_used_only_for_the_stream_connected_by_systemd() {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let found = fstat(&ours).unwrap();
        let right = format!("{}:{}", found.st_dev, found.st_ino);
        let other = format!("{}:{}", found.st_dev, found.st_ino + 1);
        assert!(leads_to_journal(Some(&right), &ours));
        for wrong in [
            None,
            Some(other.as_str()),
            Some(""),
            Some("8:"),
            Some("a:b"),
        ] {
            assert!(!leads_to_journal(wrong, &ours), "{wrong:?}");
        }
    }

    #[test]
    fn log_filter_variable_overrides_the_setting_and_is_validated() {
        let log = LogSettings {
            format: LogFormat::Text,
            level: LogLevel::Warn,
        };
        let quiet = filter(log, None).unwrap().to_string();
        assert!(
            ["warn", "kube_client=off", "h2=error"]
                .iter()
                .all(|one| quiet.contains(one)),
            "{quiet}"
        );
        let level = LogLevel::Debug;
        let loud = filter(LogSettings { level, ..log }, None)
            .unwrap()
            .to_string();
        assert_eq!(loud, "debug");
        let given = "info,machinist_device=debug";
        let shown = filter(log, Some(given)).unwrap().to_string();
        assert!(shown.contains("machinist_device=debug"), "{shown}");
        assert!(shown.contains("h2=error"), "{shown}");
        let shown = filter(log, Some("info,h2=warn")).unwrap().to_string();
        assert!(
            shown.contains("h2=warn") && !shown.contains("h2=error"),
            "{shown}"
        );
        assert_eq!(filter(log, Some("debug")).unwrap().to_string(), "debug");
        assert!(filter(log, Some("machinist=loud")).is_err());
    }
}
