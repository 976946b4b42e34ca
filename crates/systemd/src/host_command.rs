//! Runs programs of the host as transient units.

use std::{error::Error, time::Duration};

use machinist_update::os::HostCommand;

use super::{JobVerb, Systemd, SystemdErrorKind};

/// How long systemd may take to stop a program that has exceeded its limit. It kills it after 90 s by default.
const STOP_TIMEOUT: Duration = Duration::from_secs(120);

/// A program that failed.
#[derive(Debug, thiserror::Error)]
#[error("{program} failed; its output: journalctl -u {unit}")]
struct ProgramFailedError {
    program: String,
    unit: String,
}

impl HostCommand for Systemd {
    async fn run(
        &self,
        program: &str,
        arguments: &[&str],
        limit: Duration,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let name = program.rsplit('/').next().unwrap_or(program);
        let unit = format!("machinist-{name}.service");
        let argv: Vec<&str> = [program]
            .into_iter()
            .chain(arguments.iter().copied())
            .collect();
        // An earlier process may have left it running. systemd knows no such unit otherwise.
        let _ = self.run_job(JobVerb::Stop, &unit, STOP_TIMEOUT).await;
        let description = format!("{name} for machinist");
        let ended = self.run_transient(&unit, &argv, &description, limit).await;
        if let Err(error) = &ended
            && matches!(error.trouble(), SystemdErrorKind::JobUnfinished { .. })
        {
            self.run_job(JobVerb::Stop, &unit, STOP_TIMEOUT).await?;
        }
        match ended?.reason() {
            None => Ok(()),
            Some(_) => Err(ProgramFailedError {
                program: program.to_owned(),
                unit,
            }
            .into()),
        }
    }
}
