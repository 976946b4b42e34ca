//! The adapter of the API server, against a server on a real socket that records its requests and
//! fails on demand.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test may panic, and plays the server and the files of a pod"
)]

#[path = "cluster/access.rs"]
mod access;
#[path = "cluster/configs.rs"]
mod configs;
#[path = "cluster/events.rs"]
mod events;
#[path = "cluster/handover.rs"]
mod handover;
#[path = "cluster/leave.rs"]
mod leave;
#[path = "cluster/node.rs"]
mod node;
#[path = "cluster/notice.rs"]
mod notice;
#[path = "cluster/patches.rs"]
mod patches;
#[path = "cluster/progress.rs"]
mod progress;
#[path = "cluster/server.rs"]
mod server;
#[path = "cluster/slices.rs"]
mod slices;
#[path = "cluster/upgrade.rs"]
mod upgrade;
