//! Pools of nodes: who belongs to which, what each node counts as, and what that makes of the pool.
//!
//! Pure: nodes and pools as data go in, verdicts come out. One pass over the nodes, whatever their
//! number; the order of what comes in decides nothing.

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
