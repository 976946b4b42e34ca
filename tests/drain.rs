//! The drain: its decisions, and its course against a scripted API server.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test may panic, and not every test needs every helper"
)]

#[path = "drain/api.rs"]
mod api;
#[path = "drain/blocked.rs"]
mod blocked;
#[path = "drain/budgets.rs"]
mod budgets;
#[path = "drain/cancel.rs"]
mod cancel;
#[path = "drain/classify.rs"]
mod classify;
#[path = "drain/command.rs"]
mod command;
#[path = "drain/evict.rs"]
mod evict;
#[path = "drain/eviction_responses.rs"]
mod eviction_responses;
#[path = "drain/limits.rs"]
mod limits;
#[path = "drain/progress.rs"]
mod progress;
#[path = "drain/properties.rs"]
mod properties;
#[path = "drain/requests.rs"]
mod requests;
#[path = "drain/server.rs"]
mod server;
#[path = "drain/support.rs"]
mod support;
#[path = "drain/taints.rs"]
mod taints;
#[path = "drain/waiting.rs"]
mod waiting;
