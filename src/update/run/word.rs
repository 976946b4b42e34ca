//! What a person says: look again, try again, go on now.

use tokio::sync::watch;

use super::{Audience, Desired, RebootConduct, Updater};
use crate::{
    digest::Digest,
    update::{
        phase::{Event, Phase},
        ports::Services,
    },
};

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
        } else if self.released != digest {
            self.released = None;
        }
        (desired, fresh)
    }

    /// What a person's word means where the config alone would mean nothing new.
    pub(super) fn event_for_word(&self) -> Option<Event> {
        match self.phase {
            Phase::Idle => Some(Event::Desired),
            Phase::RebootPending => Some(Event::Retry),
            Phase::Failed => Some(self.again()),
            _ => None,
        }
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
        Desired::Unknown | Desired::Refused(_) => None,
    }
}
