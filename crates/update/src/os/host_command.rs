//! Runs the host's own programs.

use std::{error::Error, future::Future, time::Duration};

/// Why a program in the background did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum BackgroundError {
    /// It was stopped after its time limit.
    #[error("the time limit has passed")]
    TimedOut,
    /// It failed, or could not be started.
    #[error(transparent)]
    Failed(Box<dyn Error + Send + Sync>),
}

/// How long to wait for a program that is not killed.
pub const UNKILLABLE_LIMIT: Duration = Duration::from_secs(60 * 60);

/// Where the output of a program in the background is.
#[derive(Clone, Copy, Debug)]
pub struct OutputFiles<'f> {
    /// Its standard output.
    pub output: &'f str,
    /// Its errors.
    pub errors: &'f str,
}

/// Runs programs of the host to their end, as transient units of its service manager.
pub trait HostCommand: Send + Sync + 'static {
    /// Runs a program and waits for its success. After the limit it is killed.
    fn run(
        &self,
        program: &str,
        arguments: &[&str],
        limit: Duration,
    ) -> impl Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send;

    /// Runs a program that would leave the host unusable if it were killed, to its end.
    fn run_unkillable(
        &self,
        program: &str,
        arguments: &[&str],
    ) -> impl Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send {
        self.run(program, arguments, UNKILLABLE_LIMIT)
    }

    /// Like [`Self::run`], with a low share of processors and disks. What the program prints is in these files. At most
    /// one program runs so at a time.
    fn run_in_background(
        &self,
        program: &str,
        arguments: &[&str],
        limit: Duration,
        files: OutputFiles<'_>,
    ) -> impl Future<Output = Result<(), BackgroundError>> + Send;

    /// Returns how many bytes the program in the background has received from the network; `None` if that is unknown.
    fn received_bytes(&self) -> impl Future<Output = Option<u64>> + Send {
        async { None }
    }

    /// Stops the program in the background that a dropped future has left running.
    fn stop_background(
        &self,
    ) -> impl Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send;
}
