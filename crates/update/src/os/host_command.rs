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

/// Runs programs of the host to their end, as transient units of its service manager.
pub trait HostCommand: Send + Sync + 'static {
    /// Runs a program and waits for its success. After the limit it is killed.
    fn run(
        &self,
        program: &str,
        arguments: &[&str],
        limit: Duration,
    ) -> impl Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send;

    /// Like [`Self::run`], with a low share of processors and disks. What the program prints as errors is in
    /// `error_file` afterwards.
    fn run_in_background(
        &self,
        program: &str,
        arguments: &[&str],
        limit: Duration,
        error_file: &str,
    ) -> impl Future<Output = Result<(), BackgroundError>> + Send;

    /// Stops a program that a dropped future has left running.
    fn stop(
        &self,
        program: &str,
    ) -> impl Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send;
}
