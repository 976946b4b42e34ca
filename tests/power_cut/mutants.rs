//! Mutants of the protocol: each must lead to an invalid state somewhere, or the replay proves
//! nothing.
//!
//! Most are changes to the recorded log, as if the program had acted differently: a sync omitted,
//! two steps swapped. Some recover incorrectly instead.

use machinist_rootfs::{
    FsOp, FsOpKind, Root,
    crash_replay::{Model, SearchBudget},
};
use machinist_update::{
    crash_recovery::RecoverError,
    journal::{Direction, Journal, OperationRecordKind, TransactionState},
    store::StateStore,
    transaction,
};

use crate::power_cut::{
    forward, long,
    machine::{Recorded, Recover, as_at_boot},
    seed, undone,
};
use machinist_testkit::{sandbox::at, update_case::Case};

const JOURNAL: &str = "/var/lib/machinist/journal";
const BESIDE: &str = "/var/lib/machinist/.journal.new";

/// A journal write in the log: from its first operation to the sync of the directory.
struct Save {
    from: usize,
    to: usize,
    journal: Journal,
}

fn saves(log: &[FsOp]) -> Vec<Save> {
    let mut found = Vec::new();
    for (index, op) in log.iter().enumerate() {
        let FsOpKind::Write(bytes) = &op.act else {
            continue;
        };
        if op.path == at(BESIDE) {
            let from = index - usize::from(matches!(log[index - 1].act, FsOpKind::Create(_)));
            let rest = log[index..].iter();
            let to = index
                + 1
                + rest
                    .clone()
                    .position(|op| op.act == FsOpKind::SyncDir)
                    .unwrap();
            let journal = Journal::decode(bytes).unwrap();
            found.push(Save { from, to, journal });
        }
    }
    found
}

/// The first write whose newest transaction has reached this mark.
fn save_of(log: &[FsOp], mark: TransactionState, direction: Direction) -> Save {
    let fits = |save: &Save| {
        let top = save.journal.top();
        top.is_some_and(|tx| tx.mark == mark && tx.direction == direction)
    };
    saves(log).into_iter().find(fits).unwrap()
}

fn without(log: &[FsOp], drop: impl Fn(usize, &FsOp) -> bool) -> Vec<FsOp> {
    let kept: Vec<_> = log
        .iter()
        .enumerate()
        .filter(|(index, op)| !drop(*index, op))
        .map(|(_, op)| op.clone())
        .collect();
    assert_ne!(kept.len(), log.len(), "the mutant changes nothing");
    kept
}

/// Moves a part of the log so that it ends before, or begins at, another position.
fn moved(log: &[FsOp], from: usize, to: usize, target: usize) -> Vec<FsOp> {
    let mut log = log.to_vec();
    let stretch: Vec<_> = log.drain(from..to).collect();
    let target = if target > from {
        target - (to - from)
    } else {
        target
    };
    log.splice(target..target, stretch);
    log
}

fn is_sync(op: &FsOp) -> bool {
    matches!(
        op.act,
        FsOpKind::SyncFile | FsOpKind::SyncDir | FsOpKind::SyncFs
    )
}

fn own(op: &FsOp) -> bool {
    let path = op.path.as_str();
    [JOURNAL, BESIDE].contains(&path) || path.starts_with("/var/lib/machinist/configs")
}

fn staged(log: &[FsOp]) -> Save {
    save_of(log, TransactionState::Staged, Direction::Forward)
}

fn committed(log: &[FsOp]) -> Save {
    save_of(log, TransactionState::Committed, Direction::Forward)
}

fn verified(log: &[FsOp]) -> Save {
    save_of(log, TransactionState::Verified, Direction::Forward)
}

fn intent(log: &[FsOp]) -> Save {
    save_of(log, TransactionState::Intent, Direction::Forward)
}

/// Checks that the mutant leads to an invalid state. The long run prints how many of all states are invalid.
fn caught(name: &str, recorded: &Recorded, log: &[FsOp], recover: Recover) {
    let effort = SearchBudget {
        seed: seed(),
        count: 24,
    };
    let (mut bad, mut states) = (Vec::new(), 0);
    for model in [Model::Ordered, Model::Strict] {
        let found = match long() {
            true => recorded.cut(log, recover, 1, model, effort),
            false => recorded.cut_until_bad(log, recover, model, effort),
        };
        states += found.states;
        bad.extend(found.bad);
        if !long() && !bad.is_empty() {
            break;
        }
    }
    println!("{name}: caught by {} of {states} states", bad.len());
    if std::env::var_os("SHOW_MUTANTS").is_some() {
        println!("  {}", bad.first().map_or("", |bad| bad));
    }
    assert!(!bad.is_empty(), "{name}: not caught, seed {}", seed());
}

#[test]
fn every_mutant_of_the_commit_protocol_is_detected() {
    let recorded = forward(Case::small());
    let log = recorded.log.as_slice();
    let (staged, committed, verified, intent) =
        (staged(log), committed(log), verified(log), intent(log));
    let before_staged = |index: usize| (intent.to..staged.from).contains(&index);
    let in_commit = |index: usize| (staged.to..committed.from).contains(&index);
    let renames: Vec<usize> = (staged.to..committed.from)
        .filter(|index| matches!(log[*index].act, FsOpKind::Exchange(_) | FsOpKind::Rename(_)))
        .collect();
    let (first, last) = (renames[0], *renames.last().unwrap());

    let no_sync_before_staged = without(log, |index, op| before_staged(index) && is_sync(op));
    caught(
        "no sync before Staged",
        &recorded,
        &no_sync_before_staged,
        as_at_boot,
    );

    let no_file_sync = without(log, |index, op| {
        before_staged(index) && op.act == FsOpKind::SyncFile
    });
    caught(
        "staged files not synced",
        &recorded,
        &no_file_sync,
        as_at_boot,
    );

    let no_dir_sync = without(log, |index, op| {
        before_staged(index) && op.act == FsOpKind::SyncDir
    });
    caught(
        "staged names not synced",
        &recorded,
        &no_dir_sync,
        as_at_boot,
    );

    let late = moved(log, staged.from, staged.to, first + 1);
    caught(
        "Staged written after the first exchange",
        &recorded,
        &late,
        as_at_boot,
    );

    let last_of_all = moved(log, staged.from, staged.to, last + 1);
    caught(
        "Staged written after all exchanges",
        &recorded,
        &last_of_all,
        as_at_boot,
    );

    let journal_dir = |index: usize| saves(log).iter().any(|save| save.to == index + 1);
    let no_journal_dir = without(log, |index, _| journal_dir(index));
    caught(
        "no directory sync in replace",
        &recorded,
        &no_journal_dir,
        as_at_boot,
    );

    let no_journal_file = without(log, |_, op| {
        op.path == at(BESIDE) && op.act == FsOpKind::SyncFile
    });
    caught(
        "no file sync in replace",
        &recorded,
        &no_journal_file,
        as_at_boot,
    );

    let data = log
        .iter()
        .find(|op| op.path == at("/data/found"))
        .unwrap()
        .fs;
    let one_mount = without(log, |index, op| {
        in_commit(index) && op.act == FsOpKind::SyncFs && op.fs == data
    });
    caught(
        "one mount not synced at the commit",
        &recorded,
        &one_mount,
        as_at_boot,
    );

    let last_sync = (0..committed.from)
        .rev()
        .find(|i| log[*i].act == FsOpKind::SyncFs)
        .unwrap();
    let early = moved(log, committed.from, committed.to, last_sync);
    caught(
        "Committed written before the last sync",
        &recorded,
        &early,
        as_at_boot,
    );

    let end = saves(log)
        .into_iter()
        .find(|save| save.from > verified.to)
        .unwrap();
    let emptied = moved(log, verified.to, end.from, verified.from);
    caught(
        "staging emptied before Verified",
        &recorded,
        &emptied,
        as_at_boot,
    );

    let not_settled = without(log, |index, op| {
        (verified.to..end.from).contains(&index) && is_sync(op)
    });
    caught(
        "originals not synced before they are forgotten",
        &recorded,
        &not_settled,
        as_at_boot,
    );

    let no_intent = without(log, |index, _| (intent.from..intent.to).contains(&index));
    caught("no intent", &recorded, &no_intent, as_at_boot);

    caught("identities not compared", &recorded, log, by_target_alone);
    caught(
        "dropped instead of taken forward",
        &recorded,
        log,
        drops_staged,
    );
}

#[test]
fn every_mutant_of_the_rollback_is_detected() {
    let recorded = undone(Case::small());
    let log = recorded.log.as_slice();
    let direction = save_of(log, TransactionState::Committed, Direction::Undo);
    let reverted = saves(log)
        .into_iter()
        .find(|save| save.journal.top().is_some_and(|tx| tx.reverted))
        .unwrap();
    let renames: Vec<usize> = (direction.to..reverted.from)
        .filter(|index| matches!(log[*index].act, FsOpKind::Exchange(_) | FsOpKind::Rename(_)))
        .collect();

    let late = moved(
        log,
        direction.from,
        direction.to,
        *renames.last().unwrap() + 1,
    );
    caught(
        "direction written after the undo",
        &recorded,
        &late,
        as_at_boot,
    );

    let no_sync = without(log, |index, op| {
        (direction.to..reverted.from).contains(&index) && op.act == FsOpKind::SyncFs
    });
    caught(
        "undo not synced before it is called done",
        &recorded,
        &no_sync,
        as_at_boot,
    );

    let last = saves(log).pop().unwrap();
    let forgotten = moved(log, last.from, last.to, reverted.to);
    caught(
        "undone update forgotten before it is cleared",
        &recorded,
        &forgotten,
        as_at_boot,
    );
}

/// Treats an operation as done when an object of the right kind exists at its target.
fn by_target_alone(store: &StateStore) -> Result<Journal, RecoverError> {
    recover_with(store, |root, tx| {
        for record in &tx.operations {
            let OperationRecordKind::Exchange {
                slot,
                before,
                after,
                ..
            } = &record.kind
            else {
                continue;
            };
            let there = root.stat(&record.target).unwrap().is_some();
            let done = there == after.is_some();
            let _ = match (done, before.is_some(), after.is_some()) {
                (true, ..) => Ok(()),
                (_, true, true) => root.exchange(&record.target, slot),
                (_, false, true) => root.move_new(slot, &record.target),
                _ => root.move_new(&record.target, slot),
            };
        }
        true
    })
}

/// Drops the staging of an update that may have begun to exchange.
fn drops_staged(store: &StateStore) -> Result<Journal, RecoverError> {
    recover_with(store, |root, tx| {
        transaction::drop_staging(root, tx).unwrap();
        false
    })
}

/// Like the recovery under test, but `staged` handles staged updates and returns whether the update
/// stays.
fn recover_with(
    store: &StateStore,
    staged: fn(&Root, &machinist_update::journal::Transaction) -> bool,
) -> Result<Journal, RecoverError> {
    let mut journal = store.load()?;
    let open = journal.top().map(|tx| (tx.mark, tx.direction));
    if open != Some((TransactionState::Staged, Direction::Forward)) {
        return as_at_boot(store);
    }
    let tx = journal.top_mut().unwrap();
    tx.mark = TransactionState::Committed;
    if !staged(store.root(), tx) {
        journal.transactions.pop();
    }
    store.save(&journal)?;
    Ok(journal)
}
