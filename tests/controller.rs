//! The controller as a whole, against the API server of [`crate::cluster::server`], with a clock that the test advances.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic, plays the server and the agents, and starts the program"
)]

mod blockers;
mod budget_recovery;
mod configs;
mod grants;
mod harness;
mod leadership;
mod notifications;
mod objects;
mod operator_condition;
mod policies;
mod process;
mod renderings;
mod skips;
mod upgrade_time;
