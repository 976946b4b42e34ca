//! Where the driver begins: what the journal and the boot id prove.

use super::{Audience, Updater};
use crate::update::{
    journal::{Direction, Mark, Transaction},
    phase::{Effect, Phase},
    ports::Services,
};

impl<S: Services, A: Audience> Updater<S, A> {
    /// A commit whose boot could not be told is taken for one of this boot: at worst the machine
    /// reboots once more. Left open, no boot could ever prove itself a later one.
    pub(super) fn know_boots(&mut self) {
        let boot = self.boot_id();
        let committed = |tx: &&mut Transaction| tx.mark == Mark::Committed;
        for tx in self.journal.transactions.iter_mut().filter(committed) {
            if tx.committed_boot.is_none() {
                tx.committed_boot.clone_from(&boot);
            }
        }
    }

    /// The phase that the journal proves, and what to do in it.
    fn proven(&self) -> (Phase, Option<Effect>) {
        let Some(tx) = self.journal.top() else {
            return match self.journal.failure {
                Some(_) => (Phase::Failed, None),
                None => (Phase::Idle, None),
            };
        };
        match (tx.direction, self.boot_id()) {
            (Direction::Undo, _) => (Phase::Undoing, Some(Effect::Undo)),
            (_, Some(boot)) if tx.rebooted_since(&boot) => (Phase::Booted, Some(Effect::Act)),
            _ => (Phase::Acting, Some(Effect::Act)),
        }
    }

    /// Enters that phase and says so. Returns what to do in it.
    pub(super) fn resume(&mut self) -> Option<Effect> {
        if self.trouble.is_some() {
            self.phase = Phase::Failed;
            return None;
        }
        self.know_boots();
        let (phase, effect) = self.proven();
        let Some(to) = self.journal.top().map(|tx| tx.to.name.clone()) else {
            self.phase = phase;
            return self.resume_cordon();
        };
        self.enter(phase);
        self.span().in_scope(|| match phase {
            Phase::Booted => tracing::info!("the machine has booted into {to}"),
            phase => tracing::info!("going on with the update to {to}: {}", phase.name()),
        });
        effect
    }
}
