//! The watch of the node's pods.

use tokio::time::Instant;
use tokio_stream::StreamExt as _;

use super::survey_schedule::MIN_REQUEST_SPACING;
use crate::eviction::{EvictionCallError, PodChange, PodWatchStream};

/// The watch, if one is open, and the version from which the next one continues.
#[derive(Default)]
pub(super) struct PodWatch {
    stream: Option<PodWatchStream>,
    resource_version: String,
    requested_at: Option<Instant>,
}

impl PodWatch {
    /// The next event; waits forever if there is no watch.
    pub(super) async fn next(&mut self) -> Option<Result<PodChange, EvictionCallError>> {
        match &mut self.stream {
            Some(stream) => stream.next().await,
            None => std::future::pending().await,
        }
    }

    pub(super) fn open(&mut self, stream: PodWatchStream) {
        self.stream = Some(stream);
    }

    pub(super) fn close(&mut self) {
        self.stream = None;
    }

    /// Records the request for a watch; returns the version from which it continues.
    pub(super) fn record_request(&mut self, now: Instant) -> String {
        self.requested_at = Some(now);
        self.resource_version.clone()
    }

    pub(super) fn set_resource_version(&mut self, version: String) {
        self.resource_version = version;
    }

    /// Whether a watch that ends now has ended so early that the next one needs a delay.
    pub(super) fn ends_immediately(&self, now: Instant) -> bool {
        self.requested_at
            .is_some_and(|requested| now < requested + MIN_REQUEST_SPACING)
    }
}
