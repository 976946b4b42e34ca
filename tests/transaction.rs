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

#[path = "transaction/accounts.rs"]
mod accounts;
#[path = "transaction/attributes.rs"]
mod attributes;
#[path = "transaction/bind_mounts.rs"]
mod bind_mounts;
#[path = "transaction/foreign_changes.rs"]
mod foreign_changes;
#[path = "transaction/hard_links.rs"]
mod hard_links;
#[path = "transaction/holders.rs"]
mod holders;
#[path = "transaction/kills.rs"]
mod kills;
#[path = "transaction/labels.rs"]
mod labels;
#[path = "transaction/originals.rs"]
mod originals;
#[path = "transaction/random.rs"]
mod random;
#[path = "support/sandbox.rs"]
mod sandbox;
#[path = "transaction/sparse.rs"]
mod sparse;
#[path = "transaction/ssh_keys.rs"]
mod ssh_keys;
#[path = "support/stepwise_update.rs"]
mod stepwise_update;
#[path = "support/update_case.rs"]
mod update_case;
#[path = "transaction/users.rs"]
mod users;
