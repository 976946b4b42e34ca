//! Computes the states of a file system after a power cut from a recorded log. Pure.
//!
//! The rules are the guarantees of POSIX and the Linux file systems, and no more:
//!
//! * `syncfs` makes everything done before it on that file system durable; file systems are
//!   unordered against each other.
//! * `fsync` of a file makes its content, mode and owner durable, not its name.
//! * `fsync` of a directory makes its entries, mode and owner durable, not its own name.
//! * Content that was not synced may be missing, cut short or whole, whatever became of the name.
//! * A rename or exchange happens as a whole or not at all.
//!
//! Which of the other operations survive depends on the [`Model`].

mod inode_model;
mod steps;
mod survivor_choice;

use std::{
    collections::{BTreeMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher as _},
};

use self::{inode_model::Disk, steps::ReplaySteps, survivor_choice::picks};
use super::{FsOp, TreeSnapshot};
use machinist_base::abs_path::AbsPath;

/// The order in which a file system writes names and attributes to disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// Like a journalling file system: a prefix of the operations survives.
    Ordered,
    /// The weakest guarantee: any operation may survive without the others, except that an
    /// operation needs the earlier ones on the same directory entry or the same attributes, and
    /// directories are moved in order (else a tree could lose its root).
    Strict,
}

/// How many states to examine.
#[derive(Clone, Copy, Debug)]
pub struct SearchBudget {
    /// The seed of the sampling; the same seed gives the same states. Print it when a test fails.
    pub seed: u64,
    /// If one cut has at most this many selections of surviving operations, all are tried;
    /// otherwise this many are drawn, including the smallest and the largest.
    pub count: usize,
}

/// A log that does not fit its start tree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("operation {index} of the log does not fit the tree: {what}")]
pub struct BadLog {
    /// The operation's index, from 0.
    pub index: usize,
    /// The mismatch.
    pub what: String,
}

/// The object at each path of a tree, as a number assigned by the replay: first the objects of the
/// start tree in the order of their paths, then those that the log creates. For tests of programs
/// that store inode numbers.
pub type Inodes = BTreeMap<AbsPath, usize>;

/// The distinct trees that may exist when the power fails after the first `cut` operations of
/// `log`, which started from the durable tree `start`.
pub fn states(
    log: &[FsOp],
    start: &TreeSnapshot,
    cut: usize,
    model: Model,
    effort: SearchBudget,
) -> Result<impl Iterator<Item = TreeSnapshot> + use<>, BadLog> {
    let mut seen = HashSet::new();
    let trees = states_with_inodes(log, start, cut, model, effort)?.map(|(tree, _)| tree);
    Ok(trees.filter(move |tree| seen.insert(fingerprint(tree))))
}

/// [`states`], with the objects. Equal trees of different objects count as two.
pub fn states_with_inodes(
    log: &[FsOp],
    start: &TreeSnapshot,
    cut: usize,
    model: Model,
    effort: SearchBudget,
) -> Result<impl Iterator<Item = (TreeSnapshot, Inodes)> + use<>, BadLog> {
    let before = Disk::of(start);
    let done = log.get(..cut).unwrap_or(log);
    let steps = ReplaySteps::of(done, before, model)?;
    let picks = picks(&steps, effort);
    let mut seen = HashSet::new();
    Ok(picks.into_iter().filter_map(move |pick| {
        let state = steps.tree_after(&pick);
        seen.insert(fingerprint(&state)).then_some(state)
    }))
}

/// [`states`] for a power cut before, between and after all operations, with the number of
/// completed operations. Each tree is returned once, with the earliest cut that may leave it.
pub fn states_at_every_cut(
    log: &[FsOp],
    start: &TreeSnapshot,
    model: Model,
    effort: SearchBudget,
) -> Result<Vec<(usize, TreeSnapshot)>, BadLog> {
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    for cut in 0..=log.len() {
        let fresh = states(log, start, cut, model, drawn_at(cut, effort))?;
        found.extend(
            fresh
                .filter(|tree| seen.insert(fingerprint(tree)))
                .map(|tree| (cut, tree)),
        );
    }
    Ok(found)
}

/// Another draw for every cut, still determined by the one seed.
pub fn drawn_at(cut: usize, effort: SearchBudget) -> SearchBudget {
    SearchBudget {
        seed: effort.seed.wrapping_add(cut as u64),
        ..effort
    }
}

/// A hash to detect trees that were seen before: with 64 bits, even among a million trees a
/// collision has a probability below one in ten million, and would leave one state untested.
fn fingerprint(tree: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    tree.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests;
