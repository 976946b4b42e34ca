//! kill -9 at every place of an update, and at random ones: the next start finds one config or the
//! other and finishes properly.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test may panic, count aloud, and play everybody else who writes into the tree"
)]

#[path = "crash/absent.rs"]
mod absent;
#[path = "support/by_hand.rs"]
mod by_hand;
#[path = "support/case.rs"]
mod case;
#[path = "crash/child.rs"]
mod child;
#[path = "update/driver.rs"]
mod driver;
#[path = "crash/last_version.rs"]
mod last_version;
#[path = "crash/listen.rs"]
mod listen;
#[path = "crash/matrix.rs"]
mod matrix;
#[path = "crash/moments.rs"]
mod moments;
#[path = "support/node.rs"]
mod node;
#[path = "support/sandbox.rs"]
mod sandbox;
#[path = "support/services.rs"]
mod services;
