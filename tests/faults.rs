//! Disks that fill up, return errors or become read-only during an update: the agent keeps running,
//! the tree is the old config or the new one, and once the fault is fixed the update completes.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test may panic, count aloud, and play everybody else who writes into the tree"
)]

#[path = "support/by_hand.rs"]
mod by_hand;
#[path = "support/case.rs"]
mod case;
#[path = "update/driver.rs"]
mod driver;
#[path = "faults/full.rs"]
mod full;
#[path = "faults/injected.rs"]
mod injected;
#[path = "faults/lost.rs"]
mod lost;
#[path = "support/node.rs"]
mod node;
#[path = "support/sandbox.rs"]
mod sandbox;
#[path = "support/services.rs"]
mod services;
