//! Requests to the task that handles claims.

use std::time::Duration;

use tokio::{sync::oneshot, time::Instant};

use crate::kubelet::InFlightGuard;
use machinist_device::dra::{claim::ClaimName, claim_checkpoint::PreparedDevice};

/// The kubelet waits 45 s for an answer and ignores a later one.
pub(super) const KUBELET_CALL_TIMEOUT: Duration = Duration::from_secs(40);

/// The result for one claim; the error is a sentence.
pub(super) type ClaimResult<T> = Result<T, String>;

/// A request to the task.
#[derive(Debug)]
pub(super) enum ClaimCommand {
    /// Prepare a claim; it counts as in progress until the last value is dropped.
    Prepare(
        ClaimName,
        oneshot::Sender<ClaimResult<Vec<PreparedDevice>>>,
        InFlightGuard,
    ),
    /// Unprepare it.
    Unprepare(ClaimName, oneshot::Sender<ClaimResult<()>>),
    /// Unprepare a claim that the cluster no longer has and whose devices no container has.
    Forget(ClaimName),
}

/// A request and the time after which its caller no longer waits.
#[derive(Debug)]
pub(super) struct KubeletCall {
    pub(super) task: ClaimCommand,
    pub(super) until: Instant,
}

impl KubeletCall {
    pub(super) fn new(task: ClaimCommand) -> Self {
        Self {
            task,
            until: Instant::now() + KUBELET_CALL_TIMEOUT,
        }
    }
}
