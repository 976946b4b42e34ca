//! The update reconciler on a machine whose service manager follows a script.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test may panic, and plays the machine around the driver"
)]

#[path = "update/bars.rs"]
mod bars;
#[path = "update/between_boots.rs"]
mod between_boots;
#[path = "update/boots.rs"]
mod boots;
#[path = "support/by_hand.rs"]
mod by_hand;
#[path = "update/driver.rs"]
mod driver;
#[path = "update/guarded.rs"]
mod guarded;
#[path = "update/host_part.rs"]
mod host_part;
#[path = "update/lending.rs"]
mod lending;
#[path = "support/node.rs"]
mod node;
#[path = "update/nodes.rs"]
mod nodes;
#[path = "update/phases.rs"]
mod phases;
#[path = "update/reboots.rs"]
mod reboots;
#[path = "update/recovery.rs"]
mod recovery;
#[path = "update/renamed.rs"]
mod renamed;
#[path = "support/sandbox.rs"]
mod sandbox;
#[path = "support/services.rs"]
mod services;
#[path = "update/soft.rs"]
mod soft;
#[path = "update/sources.rs"]
mod sources;
#[path = "update/users.rs"]
mod users;
#[path = "update/warned.rs"]
mod warned;
