//! Computes pool membership, the state of each node within its pool, and the counts and conditions of a pool.
//!
//! This module is pure: it takes nodes and pools as data and returns results. It makes one pass over the nodes; the
//! order of its input does not change the result.

mod conditions;
mod machine_counts;
mod membership;
mod node_status;
mod summary;
mod unavailable_limit;

pub use conditions::{PoolCondition, conditions};
pub use machine_counts::MachineCounts;
pub use membership::{Membership, NodesByPool, PoolKind, PoolMembers, split};
pub use node_status::NodePoolStatus;
pub use summary::{COLUMNS, PoolRow, age, table};
pub use unavailable_limit::{BadLimit, UnavailableLimit, max_unavailable};

#[cfg(test)]
mod tests;
