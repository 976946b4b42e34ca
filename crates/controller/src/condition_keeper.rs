//! Keeps the condition `Upgradeable` while this process is the leader.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::time::Instant;

use crate::{
    leadership::Leadership,
    operator_condition::{CONDITION_BACKOFF, OperatorCondition},
    rollout_view::RolloutView,
    upgradeable::Upgradeable,
};
use machinist_base::backoff::jitter;

/// How long until an object that does not exist or must not be read is looked for again.
const ABSENT_OBJECT_RECHECK: Duration = Duration::from_secs(60);

/// How often the condition is compared again; its role does not permit a watch.
const CONDITION_RECHECK: Duration = Duration::from_secs(600);

/// Writes the condition when it changes.
#[derive(Debug)]
pub(crate) struct ConditionKeeper {
    condition: Option<Arc<OperatorCondition>>,
    /// The condition that the object has.
    known: Option<Upgradeable>,
    /// When the next request is due although nothing changes.
    due: Instant,
    failures: u32,
}

impl ConditionKeeper {
    pub(crate) fn new(condition: Option<Arc<OperatorCondition>>) -> Self {
        Self {
            condition,
            known: None,
            due: Instant::now(),
            failures: 0,
        }
    }

    /// Writes the condition if it is due. A failure never stops the rollout. Returns when the next request is due.
    pub(crate) async fn turn(
        &mut self,
        view: &RolloutView,
        leadership: &Leadership,
        now: Timestamp,
    ) -> Option<Instant> {
        let condition = self.condition.as_ref()?;
        let wanted = Upgradeable::of(view);
        let is_waiting = self.failures > 0 || self.known.as_ref() == Some(&wanted);
        if is_waiting && Instant::now() < self.due {
            return Some(self.due);
        }
        let wait = match condition.report(&wanted, leadership, now).await {
            Ok(()) => {
                self.known = Some(wanted);
                self.failures = 0;
                CONDITION_RECHECK
            }
            Err(error) => {
                let wait = match error.is_not_found() || error.is_forbidden() {
                    true => ABSENT_OBJECT_RECHECK,
                    false => CONDITION_BACKOFF.wait(self.failures, jitter()),
                };
                self.failures = self.failures.saturating_add(1);
                wait.max(error.retry_after().unwrap_or_default())
            }
        };
        self.due = Instant::now() + wait;
        Some(self.due)
    }
}
