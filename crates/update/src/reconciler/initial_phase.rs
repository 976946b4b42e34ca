//! Determines the first phase from the journal and the boot ID.

use super::{Reconciler, ReconcilerHooks};
use crate::{
    journal::{Direction, Transaction, TransactionState},
    phase::{Phase, PhaseEffect},
    service_port::Services,
};

impl<S: Services, H: ReconcilerHooks> Reconciler<S, H> {
    /// Fills in the current boot for commits whose boot was unknown. In the worst case this causes one more reboot;
    /// without it, no boot could ever be proven to be a later one.
    pub(super) fn record_boots(&mut self) {
        let boot = self.boot_id();
        let committed = |tx: &&mut Transaction| tx.mark == TransactionState::Committed;
        for tx in self.journal.transactions.iter_mut().filter(committed) {
            if tx.committed_boot.is_none() {
                tx.committed_boot.clone_from(&boot);
            }
        }
    }

    /// Returns the phase that the journal proves, and its effect.
    fn phase_from_journal(&self) -> (Phase, Option<PhaseEffect>) {
        let Some(tx) = self.journal.top() else {
            return match self.journal.failure {
                Some(_) => (Phase::Failed, None),
                None => (Phase::Idle, None),
            };
        };
        match (tx.direction, self.boot_id()) {
            (Direction::Undo, _) => (Phase::RollingBack, Some(PhaseEffect::Undo)),
            (_, Some(boot)) if tx.rebooted_since(&boot) => (Phase::Booted, Some(PhaseEffect::Act)),
            _ => (Phase::RunningActions, Some(PhaseEffect::Act)),
        }
    }

    /// Enters that phase and returns its effect.
    pub(super) fn resume(&mut self) -> Option<PhaseEffect> {
        if self.state.has_failed() {
            self.progress.begin_in(Phase::Failed);
            return None;
        }
        self.record_boots();
        let (phase, effect) = self.phase_from_journal();
        let Some(to) = self.journal.top().map(|tx| tx.to.name.clone()) else {
            self.progress.begin_in(phase);
            return self.resume_cordon();
        };
        self.enter(phase);
        self.span().in_scope(|| match phase {
            Phase::Booted => tracing::info!("the machine has booted into {to}"),
            phase => tracing::info!("resuming the update to {to}: {}", phase.name()),
        });
        effect
    }
}
