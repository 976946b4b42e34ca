//! Implements the life of an update: the journal, the order of its steps, and crash recovery.

pub mod guard;
pub mod handover;
pub mod hold;
pub mod host;
pub mod journal;
pub mod look;
pub mod node;
pub mod observe;
pub mod phase;
pub mod ports;
pub mod recover;
pub mod remembered;
pub mod run;
pub mod store;
pub mod transaction;
pub mod userspace;

use std::error::Error;

use crate::{digest::Digest, error_chain, reason::Reason};
use journal::Failure;

/// Maximum length of a failure's message in bytes. The journal reserves space for it in advance, and a message with
/// thousands of paths is not readable.
const LONGEST_MESSAGE: usize = 4 << 10;

fn bounded(mut message: String) -> String {
    if message.len() > LONGEST_MESSAGE {
        message.truncate(message.floor_char_boundary(LONGEST_MESSAGE));
        message.push('…');
    }
    message
}

/// Converts an error into the form that the journal, status, and metrics carry.
fn failure(error: &dyn Error, code: Reason, again: bool, digest: Digest) -> Failure {
    Failure {
        code,
        message: bounded(error_chain::chain(error)),
        again,
        digest: Some(digest),
    }
}
