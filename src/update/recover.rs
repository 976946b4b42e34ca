//! What a crash left, finished or reversed before anything else reads the tree.
//!
//! The same function runs before `sysinit.target` (as `machinist recover`) and at the agent's own
//! start; whichever comes first finds work, the other finds none. It runs no actions and waits for
//! nobody: which files the machine sees is settled here, what must be restarted is the agent's.

use std::collections::BTreeSet;

use crate::{
    path::AbsPath,
    reason::Reason,
    root::Root,
    update::{
        journal::{Direction, Journal, Mark, Transaction},
        store::{self, Store, StoreError},
        transaction::{self, TransactionError},
    },
};

/// What recovery did, for the journal line and for systemd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Transactions dropped because nothing had been changed.
    pub dropped: Vec<String>,
    /// Transactions taken to their commit.
    pub committed: Vec<String>,
    /// Transactions taken back.
    pub reversed: Vec<String>,
    /// A unit file, drop-in or enablement link is among what was moved: systemd must read it again.
    pub units_changed: bool,
}

impl Recovered {
    /// Whether there was anything to do.
    pub fn is_empty(&self) -> bool {
        self.dropped.is_empty() && self.committed.is_empty() && self.reversed.is_empty()
    }
}

/// Why recovery stopped. The journal stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// The transaction could not be finished.
    #[error("cannot finish transaction {id}")]
    Transaction {
        /// Which one.
        id: String,
        /// Why.
        #[source]
        source: Box<TransactionError>,
    },
    /// The state cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl RecoverError {
    /// The code that status and metrics carry.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Transaction { source, .. } => source.reason(),
            Self::Store(error) => error.reason(),
        }
    }

    /// A transaction's error with its id; for `map_err`.
    pub(super) fn of(id: &str) -> impl Fn(TransactionError) -> Self + '_ {
        move |source| Self::Transaction {
            id: id.to_owned(),
            source: Box::new(source),
        }
    }
}

/// Brings every open transaction to a state that is the old or the new config, and says so in the
/// journal. The running boot is counted, once, for those that wait for their verification.
pub fn recover(store: &Store) -> Result<(Journal, Recovered), RecoverError> {
    let mut journal = store.load()?;
    let mut done = Recovered::default();
    let boot = store::boot_id(store.root()).map_err(StoreError::from)?;
    let verified = |tx: &Transaction| tx.mark == Mark::Verified;
    if journal.transactions.iter().any(verified) {
        settle(store, &mut journal)?;
    }
    // Newest first: an undo unwinds from the top, and only the top can be unfinished.
    for index in (0..journal.transactions.len()).rev() {
        let tx = &mut journal.transactions[index];
        if let Some(error) = bring_to_an_end(store.root(), tx, boot.as_deref(), &mut done)? {
            reverse(store, &mut journal, index, &error)?;
            done.reversed.push(journal.transactions[index].id.clone());
        }
    }
    let mut counted = false;
    for tx in &mut journal.transactions {
        counted |= boot.as_deref().is_some_and(|boot| count(tx, boot));
    }
    let open = |tx: &Transaction| tx.mark != Mark::Intent || tx.direction == Direction::Undo;
    journal.transactions.retain(open);
    if !done.is_empty() || counted {
        store.save(&journal)?;
    }
    Ok((journal, done))
}

/// Counts a boot that was begun with an unverified config. Whoever sees it first does so – recovery,
/// guard or agent – and it is durable before anybody may order the next one: that is what keeps
/// machines from rebooting for ever, also where the recovery's unit is not there.
pub(super) fn count(tx: &mut Transaction, boot: &str) -> bool {
    let waits = tx.direction == Direction::Forward && tx.mark == Mark::Committed;
    let known = tx.counted_boot.as_deref() == Some(boot);
    if !waits || known || !tx.rebooted_since(boot) {
        return false;
    }
    tx.boots += 1;
    tx.counted_boot = Some(boot.to_owned());
    true
}

/// Takes one transaction to where a reader of the tree may see it. Gives the error when it must go
/// back instead, because somebody changed a target meanwhile.
fn bring_to_an_end(
    root: &Root,
    tx: &mut Transaction,
    boot: Option<&str>,
    done: &mut Recovered,
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
        (Direction::Forward, Mark::Intent) => {
            transaction::drop_staging(root, tx).map_err(RecoverError::of(&tx.id))?;
            done.dropped.push(tx.id.clone());
        }
        (Direction::Forward, Mark::Staged) => {
            done.units_changed |= touches_units(tx);
            match transaction::commit(root, tx) {
                Ok(()) => {
                    tx.mark = Mark::Committed;
                    tx.committed_boot = boot.map(str::to_owned);
                    done.committed.push(tx.id.clone());
                }
                Err(error) if error.is_others_doing() => return Ok(Some(error)),
                Err(error) => return Err(RecoverError::of(&tx.id)(error)),
            }
        }
        (Direction::Forward, Mark::Committed | Mark::Verified) => {}
    }
    Ok(None)
}

/// Somebody changed a target between the staging and the commit: their object stays, ours goes.
/// The direction is durable before the first object moves back.
fn reverse(
    store: &Store,
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
        error.again(),
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
    tx.committed_boot = store::boot_id(store.root()).map_err(StoreError::from)?;
    Ok(())
}

/// Says whose work was moved out of the way.
fn kept_aside(drifted: &[AbsPath]) {
    for path in drifted {
        tracing::warn!(%path, "somebody had changed this file; their version is kept below drifted/");
    }
}

/// Repeats the tidying after a verification and forgets the transactions.
pub fn settle(store: &Store, journal: &mut Journal) -> Result<(), RecoverError> {
    let id = journal.top().map(|tx| tx.id.clone()).unwrap_or_default();
    // Without the base's text nobody knows which directories it names: all of them stay.
    let base = match store
        .remembered()
        .config(store.root(), journal.base.as_ref())
    {
        Err(StoreError::Config { .. }) => None,
        config => Some(config?),
    };
    // The journal knows directories by where they lie.
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
        transaction::tidy(store.root(), journal, &wanted).map_err(RecoverError::of(&id))?;
    kept_aside(&drifted);
    journal.transactions.retain(|tx| tx.mark != Mark::Verified);
    store.save(journal)?;
    store.forget_configs(journal)?;
    Ok(())
}

/// Whether systemd would see a difference: its unit directories below `/etc` and `/usr`.
fn touches_units(tx: &Transaction) -> bool {
    tx.operations.iter().any(|record| {
        let path = record.target.as_str();
        ["/etc/systemd", "/usr/lib/systemd", "/usr/local/lib/systemd"]
            .iter()
            .any(|dir| path.starts_with(dir))
            || path == "/etc"
    })
}
