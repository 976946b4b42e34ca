//! What a file system may hold after a power cut, rebuilt from a recorded log. Pure.
//!
//! The rules are what POSIX and the Linux file systems promise, and no more:
//!
//! * `syncfs` makes everything done before it on that file system durable; file systems are
//!   unordered against each other.
//! * `fsync` of a file makes its content, mode and owner durable, not its name.
//! * `fsync` of a directory makes its entries, mode and owner durable, not its own name.
//! * Content that was not synced may be missing, cut short or whole, whatever became of the name.
//! * A rename or exchange happens as a whole or not at all.
//!
//! Which of the other operations survive depends on the [`Model`].

mod disk;
mod pick;
mod steps;

use std::{
    collections::{BTreeMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher as _},
};

use self::{disk::Disk, pick::picks, steps::Steps};
use super::{Op, Tree};
use crate::path::AbsPath;

/// In which order a file system brings names and attributes to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// As a journalling file system does: what survives is a prefix of what was done.
    Ordered,
    /// The least that can be relied on: any of them may survive without the others, except that an
    /// operation needs the earlier ones on the same directory entry or the same attributes, and
    /// directories are moved in order (else a tree could lose its root).
    Strict,
}

/// How many states to look at.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Starts the sampling; the same seed gives the same states. Print it when a test fails.
    pub seed: u64,
    /// All selections of surviving operations are tried when there are at most this many for one
    /// cut; otherwise this many are drawn, the least and the most that can survive among them.
    pub count: usize,
}

/// A log that does not fit the tree it is said to start from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("operation {index} of the log does not fit the tree: {what}")]
pub struct BadLog {
    /// Which operation, from 0.
    pub index: usize,
    /// What is wrong with it.
    pub what: String,
}

/// Which object of the log each path of a tree holds, by a number of the replay's own: the objects of
/// the start tree in the order of their paths, then the others as the log makes them. For tests of
/// programs that remember inode numbers.
pub type Inodes = BTreeMap<AbsPath, usize>;

/// The distinct trees that may be found when the power fails after the first `cut` operations of
/// `log`, begun on the durable tree `start`.
pub fn states(
    log: &[Op],
    start: &Tree,
    cut: usize,
    model: Model,
    effort: Effort,
) -> Result<impl Iterator<Item = Tree> + use<>, BadLog> {
    let mut seen = HashSet::new();
    let trees = states_with_inodes(log, start, cut, model, effort)?.map(|(tree, _)| tree);
    Ok(trees.filter(move |tree| seen.insert(fingerprint(tree))))
}

/// [`states`], with the objects. Equal trees of different objects count as two.
pub fn states_with_inodes(
    log: &[Op],
    start: &Tree,
    cut: usize,
    model: Model,
    effort: Effort,
) -> Result<impl Iterator<Item = (Tree, Inodes)> + use<>, BadLog> {
    let before = Disk::of(start);
    let done = log.get(..cut).unwrap_or(log);
    let steps = Steps::of(done, before, model)?;
    let picks = picks(&steps, effort);
    let mut seen = HashSet::new();
    Ok(picks.into_iter().filter_map(move |pick| {
        let state = steps.tree_after(&pick);
        seen.insert(fingerprint(&state)).then_some(state)
    }))
}

/// [`states`] for a power cut before, between and after all operations, with the number of
/// operations done. A tree is given once, with the earliest cut that may leave it.
pub fn states_at_every_cut(
    log: &[Op],
    start: &Tree,
    model: Model,
    effort: Effort,
) -> Result<Vec<(usize, Tree)>, BadLog> {
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

/// Another draw at every cut, still decided by the one seed.
pub fn drawn_at(cut: usize, effort: Effort) -> Effort {
    Effort {
        seed: effort.seed.wrapping_add(cut as u64),
        ..effort
    }
}

/// Stands for the tree where only its novelty matters: with 64 bits, even a million trees are
/// confused with a probability below one in ten million, and then one state goes untested.
fn fingerprint(tree: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    tree.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests;
