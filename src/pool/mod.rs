//! Computes pool membership, the state of each node within its pool, and the counts and conditions of a pool.
//!
//! This module is pure: it takes nodes and pools as data and returns results. It makes one pass over the nodes; the
//! order of its input does not change the result.

mod columns;
mod conditions;
mod limit;
mod membership;
mod standing;

pub use columns::{COLUMNS, Counts, Row, age, table};
pub use conditions::{PoolCondition, conditions};
pub use limit::{BadLimit, Limit, max_unavailable};
pub use membership::{Kind, Members, Membership, Split, split};
pub use standing::Standing;

#[cfg(test)]
mod tests;
