//! Implements the life of an update: the journal, the order of its steps, and crash recovery.

pub mod boot_health;
pub mod boot_id;
pub mod cache;
pub mod crash_recovery;
pub mod handover;
pub mod journal;
pub mod node_port;
pub mod observe;
pub mod observe_and_plan;
pub mod os;
pub mod phase;
pub mod pinned_config;
pub mod reconciler;
pub mod recovery_installer;
pub mod service_port;
pub mod store;
pub mod transaction;

use std::error::Error;

use journal::UpdateFailure;
use machinist_base::{digest::Digest, error_chain, reason::Reason};

/// Maximum length of a failure's message in bytes. The journal reserves space for it in advance, and a message with
/// thousands of paths is not readable.
const MAX_MESSAGE_BYTES: usize = 4 << 10;

fn bounded(mut message: String) -> String {
    if message.len() > MAX_MESSAGE_BYTES {
        message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
        message.push('…');
    }
    message
}

/// Converts an error into the form that the journal, status, and metrics carry.
fn failure(error: &dyn Error, code: Reason, retryable: bool, digest: Digest) -> UpdateFailure {
    UpdateFailure {
        code,
        message: bounded(error_chain::chain(error)),
        retryable,
        digest: Some(digest),
    }
}
