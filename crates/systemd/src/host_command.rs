//! Runs programs of the host as transient units.

use std::{error::Error, time::Duration};

use machinist_base::reason::Reason;
use machinist_update::os::{BackgroundError, HostCommand, OutputFiles, UNKILLABLE_LIMIT};

use super::{JobVerb, Systemd, SystemdError, SystemdErrorKind, dbus_proxies::Property};

/// How long systemd may take to stop a program that has exceeded its limit. It kills it after 90 s by default.
const STOP_TIMEOUT: Duration = Duration::from_secs(120);

/// The share of processors and disks that a program in the background has, beside services with 100 (the default).
const BACKGROUND_WEIGHT: u64 = 20;

/// The unit of the program in the background.
const BACKGROUND_UNIT: &str = "machinist-os.service";

/// With this adjustment, the kernel does not kill a process when memory is short (proc_pid_oom_score_adj(5)).
const MIN_OOM_SCORE_ADJUST: i32 = -1000;

/// How long the service manager may take to return a counter, which only informs people.
const COUNTER_TIMEOUT: Duration = Duration::from_secs(2);

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
        let unit = unit_of(program);
        self.run_program(&unit, program, arguments, &[], limit)
            .await
    }

    async fn run_unkillable(
        &self,
        program: &str,
        arguments: &[&str],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let properties = [
            ("SendSIGKILL", false.into()),
            ("TimeoutStopUSec", u64::MAX.into()),
            ("OOMScoreAdjust", MIN_OOM_SCORE_ADJUST.into()),
        ];
        let unit = unit_of(program);
        self.run_program(&unit, program, arguments, &properties, UNKILLABLE_LIMIT)
            .await
    }

    async fn run_in_background(
        &self,
        program: &str,
        arguments: &[&str],
        limit: Duration,
        files: OutputFiles<'_>,
    ) -> Result<(), BackgroundError> {
        let properties = [
            ("CPUWeight", BACKGROUND_WEIGHT.into()),
            ("IOWeight", BACKGROUND_WEIGHT.into()),
            ("IPAccounting", true.into()),
            // skopeo and podman leave copies of whole images in /var/tmp if they are stopped. The directory must be
            // writable for skopeo, which runs as the user nobody.
            ("PrivateTmp", true.into()),
            ("StandardOutputFile", files.output.into()),
            ("StandardErrorFile", files.errors.into()),
            // It also ends if this process does.
            (
                "TimeoutStartUSec",
                microseconds(limit + STOP_TIMEOUT).into(),
            ),
        ];
        let run = self.run_program(BACKGROUND_UNIT, program, arguments, &properties, limit);
        run.await.map_err(|error| {
            let error_of_systemd = error.downcast_ref::<SystemdError>();
            match error_of_systemd.map(SystemdError::trouble) {
                Some(SystemdErrorKind::JobUnfinished { .. }) => BackgroundError::TimedOut,
                _ => BackgroundError::Failed(error),
            }
        })
    }

    async fn received_bytes(&self) -> Option<u64> {
        let bytes = self.ip_ingress_bytes(BACKGROUND_UNIT);
        let bytes = tokio::time::timeout(COUNTER_TIMEOUT, bytes);
        // The maximum means that the kernel does not count.
        bytes.await.ok()?.ok().filter(|bytes| *bytes != u64::MAX)
    }

    async fn stop_background(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        let stopped = self.run_job(JobVerb::Stop, BACKGROUND_UNIT, STOP_TIMEOUT);
        match stopped.await {
            // The program has ended, and its unit with it.
            Err(error) if error.reason() == Reason::UnitNotFound => Ok(()),
            stopped => Ok(stopped.map(drop)?),
        }
    }
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn name_of(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

/// The unit of a program that does not run in the background.
fn unit_of(program: &str) -> String {
    format!("machinist-{}.service", name_of(program))
}

impl Systemd {
    async fn run_program(
        &self,
        unit: &str,
        program: &str,
        arguments: &[&str],
        properties: &[Property<'_>],
        limit: Duration,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let argv: Vec<&str> = [program]
            .into_iter()
            .chain(arguments.iter().copied())
            .collect();
        // An earlier process may have left it running. systemd knows no such unit otherwise.
        let _ = self.run_job(JobVerb::Stop, unit, STOP_TIMEOUT).await;
        let description = format!("{} for machinist", name_of(program));
        let ended = self
            .run_with_properties(unit, &argv, &description, properties, limit)
            .await;
        if let Err(error) = &ended
            && matches!(error.trouble(), SystemdErrorKind::JobUnfinished { .. })
        {
            self.run_job(JobVerb::Stop, unit, STOP_TIMEOUT).await?;
        }
        match ended?.reason() {
            None => Ok(()),
            Some(_) => Err(ProgramFailedError {
                program: program.to_owned(),
                unit: unit.to_owned(),
            }
            .into()),
        }
    }
}
