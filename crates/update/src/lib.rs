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
pub mod service_port;
pub mod store;
pub mod transaction;

use std::error::Error;

use journal::UpdateFailure;
use machinist_base::{digest::Digest, error_chain, reason::Reason};
use machinist_ignition::Refusal;

/// Maximum length of a failure's message in bytes. The journal reserves space for it in advance, and a message with
/// thousands of paths is not readable.
const MAX_FAILURE_MESSAGE_BYTES: usize = 4 << 10;

/// Maximum size of a failure's list of refusals in JSON, in bytes: a few dozen, which the journal's reserve includes.
const MAX_REFUSALS_BYTES: usize = 8 << 10;

fn bounded(mut message: String) -> String {
    if message.len() > MAX_FAILURE_MESSAGE_BYTES {
        message.truncate(message.floor_char_boundary(MAX_FAILURE_MESSAGE_BYTES));
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
        refusals: Vec::new(),
    }
}

/// Returns the refusals that the journal keeps: those within [`MAX_REFUSALS_BYTES`], and one with the number of the
/// others.
fn bounded_refusals(refusals: &[Refusal]) -> Vec<Refusal> {
    let mut left = MAX_REFUSALS_BYTES;
    let fits = |refusal: &&Refusal| {
        let size = serde_json::to_vec(refusal).map_or(usize::MAX, |text| text.len());
        let rest = left.checked_sub(size);
        left = rest.unwrap_or_default();
        rest.is_some()
    };
    let mut kept: Vec<_> = refusals.iter().take_while(fits).cloned().collect();
    let omitted = refusals.len() - kept.len();
    if let (Some(last), 1..) = (kept.last(), omitted) {
        let message = format!("{omitted} more are not listed");
        kept.push(Refusal::new(last.reason, message));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_above_the_limit_are_counted() {
        let all = |count: usize| -> Vec<_> {
            (0..count)
                .map(|at| Refusal::new(Reason::PathInvalid, format!("{at}: this is bad")))
                .collect()
        };
        assert_eq!(bounded_refusals(&all(3)), all(3));
        let kept = bounded_refusals(&all(500));
        let (last, kept) = kept.split_last().unwrap();
        assert_eq!(kept, all(kept.len()));
        let more = format!("{} more are not listed", 500 - kept.len());
        assert_eq!(*last.message, more);
        // One that is too long is only in the message, which is cut.
        let long = Refusal::new(Reason::PathInvalid, "x".repeat(MAX_REFUSALS_BYTES));
        assert!(bounded_refusals(&[long]).is_empty());
    }
}
