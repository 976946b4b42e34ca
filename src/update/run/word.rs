//! Handles operator requests (refresh, retry, proceed now) and the time at which an update may begin.

use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;

use super::{Audience, Desired, RebootConduct, Updater};
use crate::{
    digest::Digest,
    update::{
        phase::{Event, Phase},
        ports::Services,
    },
    window,
};

/// Maximum time before the clock is checked again while a maintenance window is closed.
const LOOK_AGAIN: Duration = Duration::from_secs(600);

impl<S: Services, A: Audience> Updater<S, A> {
    /// Subscribes to operator requests. The sender increments the number together with a change of the desired
    /// config, so that both are seen together.
    #[must_use]
    pub fn listening(mut self, words: watch::Receiver<u64>) -> Self {
        self.words = Some(words);
        self
    }

    /// Returns the desired config, and whether an operator has requested it since the last call.
    pub(super) fn hear(&mut self) -> (Desired, bool) {
        let desired = self.desired.borrow_and_update();
        let words = self.words.as_mut();
        let word = words.map_or(0, |words| *words.borrow_and_update());
        let desired = desired.clone();
        let fresh = word > self.heard;
        self.heard = word;
        let digest = digest_of(&desired);
        if fresh {
            self.released = digest;
            self.repair = None;
        } else if self.released != digest {
            self.released = None;
        }
        (desired, fresh)
    }

    /// Returns the event that an operator's request causes if the config itself causes none.
    pub(super) fn event_for_word(&self) -> Option<Event> {
        match self.phase {
            Phase::Idle | Phase::Waiting => Some(Event::Desired),
            Phase::RebootPending => Some(Event::Retry),
            Phase::Failed => Some(self.again()),
            _ => None,
        }
    }

    /// Plans a waiting update again, or withdraws it if the source has no readable config now.
    pub(super) fn reconsider(&self) -> Event {
        match &*self.desired.borrow() {
            Desired::Config(..) => Event::Desired,
            Desired::Unknown | Desired::Nothing | Desired::Refused(_) | Desired::Barred(..) => {
                Event::Withdrawn
            }
        }
    }

    /// Returns whether the planned update must wait for its time. An update that waits for its reboot, or that is
    /// being undone, has already begun.
    pub(super) fn has_a_time(&self) -> bool {
        let planned = self.planned.as_ref().map(|planned| planned.digest);
        planned != self.released
            && self.repair.is_none()
            && self.journal.cordon.is_none()
            && self.journal.transactions.is_empty()
    }

    /// Returns when the planned update may begin: within a maintenance window, and not before the cluster allows
    /// it. Returns `None` if it may begin now.
    pub(super) fn closed_until(&self) -> Option<Timestamp> {
        if !self.has_a_time() {
            return None;
        }
        let now = Timestamp::now();
        let from = self.earliest.map_or(now, |earliest| earliest.max(now));
        match self.conduct.windows.state(from) {
            window::State::Open => (from > now).then_some(from),
            window::State::Closed { opens } => Some(opens),
        }
    }

    /// Returns whether only the cluster delays the planned update.
    pub(super) fn waits_for_the_cluster(&self) -> bool {
        let windows = self.conduct.windows.state(Timestamp::now());
        self.earliest.is_some() && windows == window::State::Open && self.closed_until().is_some()
    }

    /// Returns when to check the maintenance window again: when it opens, but soon enough to notice a changed clock
    /// or a machine that was suspended.
    pub(super) fn window_due(&self) -> Option<tokio::time::Instant> {
        let opens = (self.phase == Phase::Waiting).then(|| self.closed_until())?;
        let wait = opens.map_or(Duration::ZERO, |opens| {
            let wait = opens.duration_since(Timestamp::now());
            Duration::try_from(wait).unwrap_or_default().min(LOOK_AGAIN)
        });
        Some(tokio::time::Instant::now() + wait)
    }

    /// Returns whether a needed reboot may be requested now.
    pub(super) fn may_reboot(&self) -> bool {
        match self.conduct.reboot {
            RebootConduct::Auto => true,
            RebootConduct::Ask => self.released.is_some(),
            RebootConduct::Never => false,
        }
    }
}

fn digest_of(desired: &Desired) -> Option<Digest> {
    match desired {
        Desired::Config(_, digest) => Some(*digest),
        Desired::Unknown | Desired::Nothing | Desired::Refused(_) | Desired::Barred(..) => None,
    }
}
