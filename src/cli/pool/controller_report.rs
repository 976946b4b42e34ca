//! Reports whether a controller acts, by its Lease.

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use machinist_cluster::ControllerLease;

/// How old the last renewal of the Lease may be until the controller counts as silent: a Lease lasts 15 s, another
/// replica takes over within 20 s, and the clock of a workstation may differ by some seconds.
const CONTROLLER_SILENCE_LIMIT: SignedDuration = SignedDuration::from_secs(60);

/// Whether a controller acts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct ControllerReport {
    pub(super) state: ControllerState,
    /// The process that holds the Lease.
    pub(super) holder: Option<String>,
    /// When it renewed the Lease last.
    pub(super) renewed: Option<Timestamp>,
}

/// The state of the controller's Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum ControllerState {
    /// It is held and renewed.
    Active,
    /// It is held, and has not been renewed for too long.
    Silent,
    /// There is none, or it has no holder.
    Absent,
    /// It could not be read.
    Unknown,
}

impl ControllerReport {
    pub(super) fn of(lease: Option<&Option<ControllerLease>>, now: Timestamp) -> Self {
        let held = lease
            .and_then(Option::as_ref)
            .filter(|lease| lease.holder.is_some());
        let renewed = held.and_then(|lease| lease.renewed);
        let age = renewed.map(|renewed| now.duration_since(renewed));
        let limit = held.map_or(CONTROLLER_SILENCE_LIMIT, |lease| {
            lease.duration.max(CONTROLLER_SILENCE_LIMIT)
        });
        Self {
            state: match (lease, held, age) {
                (None, ..) => ControllerState::Unknown,
                (_, None, _) => ControllerState::Absent,
                (.., Some(age)) if age <= limit => ControllerState::Active,
                _ => ControllerState::Silent,
            },
            holder: held.and_then(|lease| lease.holder.clone()),
            renewed,
        }
    }
}
