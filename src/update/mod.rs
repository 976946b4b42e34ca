//! The life of one update: what is recorded, what is done in which order, what survives a crash.

pub mod guard;
pub mod journal;
pub mod look;
pub mod observe;
pub mod phase;
pub mod ports;
pub mod recover;
pub mod run;
pub mod store;
pub mod transaction;

use std::error::Error;

use crate::{digest::Digest, reason::Reason, telemetry};
use journal::Failure;

/// Puts an error into the form that the journal, status and metrics carry.
fn failure(error: &dyn Error, code: Reason, again: bool, digest: Digest) -> Failure {
    Failure {
        code,
        message: telemetry::chain(error),
        again,
        digest: Some(digest),
    }
}
