//! Updates of a tree by the real reconciler: their results, and the objects that are left when a
//! config is removed.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::print_stdout,
    dead_code,
    reason = "a test may panic, and plays everybody else who writes into the tree"
)]

mod account_races;
mod account_returns;
mod accounts;
mod attributes;
mod bind_mounts;
mod closed_mounts;
mod foreign_changes;
mod hard_links;
mod holders;
mod kills;
mod labels;
mod originals;
mod random;
mod random_accounts;
mod random_entries;
mod sequences;
mod sparse;
mod ssh_keys;
mod tmpfs;
mod unit_links;
mod users;
