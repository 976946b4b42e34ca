//! A desired config that nothing may be begun for: somebody has cancelled it, or somebody else looks
//! after this machine.

use super::{Audience, Bar, Updater};
use crate::{
    digest::Digest,
    reason::Reason,
    update::{
        phase::{Event, Phase},
        ports::Services,
    },
};

impl<S: Services, A: Audience> Updater<S, A> {
    /// Whether nothing of the machine has changed for what is desired, nor is about to.
    pub(super) fn bar_stands(&self) -> bool {
        let begun = !self.journal.transactions.is_empty() || self.phase == Phase::Staging;
        !begun && !self.desired_is_base()
    }

    /// What the bar means for what is going on now.
    ///
    /// Only what has changed nothing is given up. An update that has begun is half on the disk, or waits
    /// for a reboot: to leave it there would be worse than either of its ends, whoever wants it stopped.
    pub(super) fn event_for_barred(&mut self, digest: Digest, bar: &Bar) -> Option<Event> {
        let base = self.journal.base.as_ref().map(|base| base.digest);
        if let Some(top) = self.journal.top() {
            let known = top.to.digest == digest || base == Some(digest);
            // A person who cancels too late is told so, and the newest config is worked towards; beside
            // another daemon no further config is begun.
            let goes_on = known || bar.reason == Reason::Cancelled;
            return goes_on.then(|| self.event_for(digest)).flatten();
        }
        let again = self.journal.failure.as_ref().is_some_and(|it| it.again);
        let gives_up = match self.phase {
            phase if phase.is_before_staging() => true,
            Phase::Failed => again,
            Phase::Idle => self.journal.cordon.is_some(),
            _ => false,
        };
        if !gives_up {
            return None;
        }
        if self.journal.failure.take().is_some() || self.planned.take().is_some() {
            tracing::info!(reason = %bar.reason, "nothing is begun: {}", bar.message);
        }
        self.repair = None;
        Some(Event::Withdrawn)
    }
}
