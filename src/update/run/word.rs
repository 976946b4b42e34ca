//! What a person says: look again, try again, go on now.

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

/// How long a closed window is believed in without another look at the clock.
const LOOK_AGAIN: Duration = Duration::from_secs(600);

impl<S: Services, A: Audience> Updater<S, A> {
    /// Lets a person speak: whoever raises the number does so while changing what is desired, so that
    /// word and config are seen together.
    #[must_use]
    pub fn listening(mut self, words: watch::Receiver<u64>) -> Self {
        self.words = Some(words);
        self
    }

    /// What is desired now, and whether a person has asked for it since the last time.
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

    /// What a person's word means where the config alone would mean nothing new.
    pub(super) fn event_for_word(&self) -> Option<Event> {
        match self.phase {
            Phase::Idle | Phase::Waiting => Some(Event::Desired),
            Phase::RebootPending => Some(Event::Retry),
            Phase::Failed => Some(self.again()),
            _ => None,
        }
    }

    /// Plans anew what waited; drops it where the source says nothing readable by now.
    pub(super) fn reconsider(&self) -> Event {
        match &*self.desired.borrow() {
            Desired::Config(..) => Event::Desired,
            Desired::Unknown | Desired::Nothing | Desired::Refused(_) | Desired::Barred(..) => {
                Event::Withdrawn
            }
        }
    }

    /// Whether the planned update is one that waits for its time. What waits for its reboot, or goes
    /// back, has begun already.
    pub(super) fn has_a_time(&self) -> bool {
        let planned = self.planned.as_ref().map(|planned| planned.digest);
        planned != self.released
            && self.repair.is_none()
            && self.journal.cordon.is_none()
            && self.journal.transactions.is_empty()
    }

    /// When the planned update may begin: in a window, and not before the cluster lets it; none while it
    /// may.
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

    /// Whether it is the cluster alone that does not let the planned update begin.
    pub(super) fn waits_for_the_cluster(&self) -> bool {
        let windows = self.conduct.windows.state(Timestamp::now());
        self.earliest.is_some() && windows == window::State::Open && self.closed_until().is_some()
    }

    /// When the window is to be looked at again: when it opens, but soon enough that a clock which is
    /// set, or a machine that slept, is noticed.
    pub(super) fn window_due(&self) -> Option<tokio::time::Instant> {
        let opens = (self.phase == Phase::Waiting).then(|| self.closed_until())?;
        let wait = opens.map_or(Duration::ZERO, |opens| {
            let wait = opens.duration_since(Timestamp::now());
            Duration::try_from(wait).unwrap_or_default().min(LOOK_AGAIN)
        });
        Some(tokio::time::Instant::now() + wait)
    }

    /// Whether the reboot that is needed may be ordered now.
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
