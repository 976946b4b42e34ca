//! The steps of an update one by one, in the reconciler's order, so that a test can stop between
//! two.

use std::collections::BTreeSet;

use jiff::Timestamp;
use machinist_ignition::Refusal;
use machinist_plan::{Capabilities, Policies};
use machinist_rootfs::Root;
use machinist_update::{
    crash_recovery,
    journal::{Direction, Journal, TransactionState},
    observe_and_plan,
    store::StateStore,
    transaction::{self, AbortFlag, TransactionError, TransactionIntent},
};

use crate::sandbox::{Written, conduct};

/// Why an update was not staged, apart from refusals.
#[derive(Debug)]
pub enum StageFailure {
    Look(observe_and_plan::LookError),
    Transaction(TransactionError),
}

/// One or more open updates.
pub struct StepwiseUpdate {
    pub store: StateStore,
    pub journal: Journal,
    live: bool,
}

impl StepwiseUpdate {
    pub fn open(root: &Root) -> Self {
        let store = StateStore::open(root).unwrap();
        let (journal, _) = crash_recovery::recover(&store).unwrap();
        let live = false;
        Self {
            store,
            journal,
            live,
        }
    }

    /// On a running machine whose service manager is not called.
    pub fn live(root: &Root) -> Self {
        let live = true;
        Self {
            live,
            ..Self::open(root)
        }
    }

    /// Plans, records the intent and stages on top of the open updates.
    pub fn stage(&mut self, to: &Written) -> Result<(), Vec<Refusal>> {
        self.try_stage(to).unwrap()
    }

    /// The same on a machine that changes meanwhile.
    pub fn try_stage(&mut self, to: &Written) -> Result<Result<(), Vec<Refusal>>, StageFailure> {
        let (store, journal) = (&self.store, &mut self.journal);
        let capabilities: Capabilities = conduct(self.live).capabilities;
        let policies = Policies::default();
        let root = store.root();
        let looked = observe_and_plan::observe_and_plan(
            root,
            journal,
            &to.0,
            observe_and_plan::PlanOptions {
                policies: &policies,
                capabilities,
                units: None,
                only: None,
                remembered: store.remembered(),
            },
        );
        let looked = looked.map_err(StageFailure::Look)?;
        let plan = match looked.plan {
            Ok(plan) => plan,
            Err(refusals) => return Ok(Err(refusals)),
        };
        let named: BTreeSet<_> = looked.named;
        let from = observe_and_plan::current(journal).cloned();
        let tx = transaction::begin(
            root,
            journal,
            &TransactionIntent {
                plan: &plan,
                from,
                to: store.keep_config(&to.0).unwrap(),
                drifted: &|_, _| false,
                named: &named,
                moved: &looked.moved,
                offline: !self.live,
                chown: capabilities.chown,
                now: Timestamp::now(),
            },
        )
        .map_err(StageFailure::Transaction)?;
        journal.transactions.push(tx);
        store.save(journal).unwrap();
        let tx = journal.top_mut().unwrap();
        let stop = AbortFlag::new(false);
        let staged = transaction::stage(root, tx, &plan.operations, capabilities.chown, &stop);
        staged.map_err(StageFailure::Transaction)?;
        tx.mark = TransactionState::Staged;
        store.save(journal).unwrap();
        Ok(Ok(()))
    }

    pub fn commit(&mut self) -> Result<(), TransactionError> {
        let tx = self.journal.top_mut().unwrap();
        transaction::commit(self.store.root(), tx)?;
        tx.mark = TransactionState::Committed;
        self.store.save(&self.journal).unwrap();
        Ok(())
    }

    /// Verifies all open updates.
    pub fn close(&mut self) {
        if self.journal.transactions.is_empty() {
            return;
        }
        transaction::finish(&mut self.journal).unwrap();
        self.store.save(&self.journal).unwrap();
        crash_recovery::settle(&self.store, &mut self.journal).unwrap();
    }

    /// Rolls back all open updates.
    pub fn undo(&mut self) -> Result<(), TransactionError> {
        for tx in &mut self.journal.transactions {
            tx.direction = Direction::Undo;
        }
        self.store.save(&self.journal).unwrap();
        for index in (0..self.journal.transactions.len()).rev() {
            let tx = &mut self.journal.transactions[index];
            if tx.reverted {
                continue;
            }
            transaction::undo(self.store.root(), tx)?;
            tx.reverted = true;
            self.store.save(&self.journal).unwrap();
        }
        for tx in std::mem::take(&mut self.journal.transactions) {
            transaction::drop_staging(self.store.root(), &tx)?;
        }
        self.store.save(&self.journal).unwrap();
        Ok(())
    }
}
