//! Recovers from a crash: finishes or reverses open transactions before other programs read the tree.
//!
//! The same function runs before `sysinit.target` (as `machinist recover`) and at the start of the agent; the first
//! one does the work, the second finds none. It carries out no actions and waits for no other process: it only
//! decides which files the machine sees. The agent restarts the units that need it.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::{
    boot_id,
    journal::{Direction, Journal, OsTrial, Transaction, TransactionState},
    os,
    store::{self, StateStore, StoreError},
    transaction::{self, TransactionError},
};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_rootfs::Root;

/// The result of recovery, for the log line and for systemd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoverySummary {
    /// Transactions that were dropped because they had changed nothing.
    pub dropped: Vec<String>,
    /// Transactions that were committed.
    pub committed: Vec<String>,
    /// Transactions that were rolled back.
    pub reversed: Vec<String>,
    /// A unit file, drop-in, or enablement link was changed: systemd needs a daemon-reload.
    pub units_changed: bool,
}

impl RecoverySummary {
    /// Returns whether there was nothing to recover.
    pub fn is_empty(&self) -> bool {
        self.dropped.is_empty() && self.committed.is_empty() && self.reversed.is_empty()
    }
}

/// Reasons why recovery stopped. The journal is unchanged then.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// The transaction could not be finished.
    #[error("cannot finish transaction {id}")]
    Transaction {
        /// The transaction.
        id: String,
        /// The cause.
        #[source]
        source: Box<TransactionError>,
    },
    /// The state cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl RecoverError {
    /// Returns the reason code for status and metrics.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Transaction { source, .. } => source.reason(),
            Self::Store(error) => error.reason(),
        }
    }

    /// Returns a function for `map_err` that adds the transaction's ID to an error.
    pub(super) fn of(id: &str) -> impl Fn(TransactionError) -> Self + '_ {
        move |source| Self::Transaction {
            id: id.to_owned(),
            source: Box::new(source),
        }
    }
}

/// Finishes or reverses every open transaction, so that the tree is on the old or the new config, and records the
/// result in the journal. Counts the running boot once for transactions that wait for verification.
pub fn recover(store: &StateStore) -> Result<(Journal, RecoverySummary), RecoverError> {
    let mut journal = store.load()?;
    let mut done = RecoverySummary::default();
    let boot = boot_id::current(store.root()).map_err(StoreError::from)?;
    let trial = journal.os_trial.as_ref();
    // Also in a further boot of the deployment, which a person may have chosen in the menu of the boot loader.
    let is_leaving = trial.is_some_and(|trial| {
        let is_left = trial.is_left_by_next_boot(boot.as_deref());
        is_left || trial.leaving_boot.is_some() && os::is_trial_running(store.root())
    });
    let verified = |tx: &Transaction| tx.mark == TransactionState::Verified;
    if journal.transactions.iter().any(verified) {
        settle(store, &mut journal)?;
    }
    // Newest first: an undo unwinds from the newest transaction, and only that one can be unfinished.
    for index in (0..journal.transactions.len()).rev() {
        let tx = &mut journal.transactions[index];
        if is_leaving && tx.direction == Direction::Undo {
            continue;
        }
        if let Some(error) = finish_transaction(store.root(), tx, boot.as_deref(), &mut done)? {
            if let Some(target) = error.changed_target() {
                journal.note_changed_target(target.clone(), Timestamp::now());
            }
            reverse(store, &mut journal, index, &error)?;
            done.reversed.push(journal.transactions[index].id.clone());
        }
    }
    let counted = boot.is_some_and(|boot| count_boot(&mut journal, &boot));
    let open =
        |tx: &Transaction| tx.mark != TransactionState::Intent || tx.direction == Direction::Undo;
    journal.transactions.retain(open);
    if !done.is_empty() || counted {
        store.save(&journal)?;
    }
    Ok((journal, done))
}

/// Counts a boot with an unverified config. The first process that observes the boot does this: recovery, guard, or
/// agent. The count is durable before any process may request the next reboot. This prevents endless reboots, even
/// if the recovery unit is not installed. A boot of a locked deployment is no attempt. Returns whether it was counted.
pub(super) fn count_boot(journal: &mut Journal, boot: &str) -> bool {
    let trial = journal.os_trial.as_ref();
    let counts = trial.is_none_or(OsTrial::counts_boots);
    let mut counted = false;
    for tx in journal.transactions.iter_mut().filter(|_| counts) {
        counted |= count(tx, boot);
    }
    counted
}

fn count(tx: &mut Transaction, boot: &str) -> bool {
    let waits = tx.direction == Direction::Forward && tx.mark == TransactionState::Committed;
    let known = tx.counted_boot.as_deref() == Some(boot);
    if !waits || known || !tx.rebooted_since(boot) {
        return false;
    }
    tx.boots += 1;
    tx.counted_boot = Some(boot.to_owned());
    true
}

/// Brings one transaction to a state in which the tree may be read. Returns an error if the transaction must be
/// reversed because another writer changed a target in the meantime.
fn finish_transaction(
    root: &Root,
    tx: &mut Transaction,
    boot: Option<&str>,
    done: &mut RecoverySummary,
) -> Result<Option<TransactionError>, RecoverError> {
    match (tx.direction, tx.mark) {
        (Direction::Undo, _) if tx.reverted => {}
        (Direction::Undo, _) => {
            let undone = transaction::undo(root, tx).map_err(RecoverError::of(&tx.id))?;
            undone.log();
            tx.left_behind.extend(undone.lines());
            done.units_changed |= touches_units(tx);
            done.reversed.push(tx.id.clone());
            tx.reverted = true;
            tx.committed_boot = boot.map(str::to_owned);
        }
        (Direction::Forward, TransactionState::Intent) => {
            transaction::drop_staging(root, tx).map_err(RecoverError::of(&tx.id))?;
            done.dropped.push(tx.id.clone());
        }
        (Direction::Forward, TransactionState::Staged) => {
            done.units_changed |= touches_units(tx);
            match transaction::commit(root, tx) {
                Ok(()) => {
                    tx.mark = TransactionState::Committed;
                    tx.committed_boot = boot.map(str::to_owned);
                    done.committed.push(tx.id.clone());
                }
                Err(error) if error.is_foreign_change() => return Ok(Some(error)),
                Err(error) => return Err(RecoverError::of(&tx.id)(error)),
            }
        }
        (Direction::Forward, TransactionState::Committed | TransactionState::Verified) => {}
    }
    Ok(None)
}

/// Reverses a transaction because another writer changed a target between staging and commit: that writer's object
/// stays, and machinist's is removed. The direction is durable before the first object is moved back.
fn reverse(
    store: &StateStore,
    journal: &mut Journal,
    index: usize,
    error: &TransactionError,
) -> Result<(), RecoverError> {
    let Some(tx) = journal.transactions.get_mut(index) else {
        return Ok(());
    };
    tx.direction = Direction::Undo;
    tx.undo_reason = Some(super::failure(
        error,
        error.reason(),
        error.is_retryable(),
        tx.to.digest,
    ));
    store.save(journal)?;
    let Some(tx) = journal.transactions.get_mut(index) else {
        return Ok(());
    };
    let undone = transaction::undo(store.root(), tx).map_err(RecoverError::of(&tx.id))?;
    undone.log();
    tx.left_behind.extend(undone.lines());
    tx.reverted = true;
    tx.committed_boot = boot_id::current(store.root()).map_err(StoreError::from)?;
    Ok(())
}

/// Logs which files of other writers were moved away.
fn log_preserved(drifted: &[AbsPath]) {
    for path in drifted {
        tracing::warn!(%path, "modified by another process; its version is kept below drifted/");
    }
}

/// Repeats the cleanup after a verification and removes the verified transactions from the journal.
pub fn settle(store: &StateStore, journal: &mut Journal) -> Result<(), RecoverError> {
    let id = journal.top().map(|tx| tx.id.clone()).unwrap_or_default();
    // Without the stored base, it is unknown which directories it names, so all of them stay.
    let base = match store::cached_config(store.root(), journal.base.as_ref(), store.remembered()) {
        Err(StoreError::Config { .. }) => None,
        config => Some(config?),
    };
    // The journal stores canonical paths of directories.
    let lie = |asked: &AbsPath| {
        store
            .root()
            .canonical(asked)
            .unwrap_or_else(|_| asked.clone())
    };
    let named = base.filter(|_| !journal.made.is_empty());
    let named: Option<BTreeSet<AbsPath>> =
        named.map(|base| base.directories.keys().map(lie).collect());
    let wanted = |dir: &AbsPath| named.as_ref().is_none_or(|named| named.contains(dir));
    let drifted =
        transaction::clean_up(store.root(), journal, &wanted).map_err(RecoverError::of(&id))?;
    log_preserved(&drifted);
    journal
        .transactions
        .retain(|tx| tx.mark != TransactionState::Verified);
    store.save(journal)?;
    store.forget_configs(journal)?;
    Ok(())
}

/// Returns whether the transaction changes a systemd unit directory below `/etc` or `/usr`.
fn touches_units(tx: &Transaction) -> bool {
    tx.operations.iter().any(|record| {
        let path = record.target.as_str();
        ["/etc/systemd", "/usr/lib/systemd", "/usr/local/lib/systemd"]
            .iter()
            .any(|dir| path.starts_with(dir))
            || path == "/etc"
    })
}
