//! The drain: its decisions, and its course against a scripted API server.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test may panic, and not every test needs every helper"
)]

pub(crate) mod api;
mod blocked;
mod budgets;
mod cancel;
mod classify;
mod command;
mod evict;
mod eviction_responses;
mod limits;
mod progress;
mod properties;
mod requests;
mod server;
pub(crate) mod support;
mod taints;
mod waiting;
