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
#[path = "cluster/cleanup.rs"]
mod cleanup;
#[path = "cluster/configs.rs"]
mod configs;
#[path = "cluster/events.rs"]
mod events;
#[path = "cluster/handover.rs"]
mod handover;
#[path = "cluster/machine_config_node.rs"]
mod machine_config_node;
#[path = "cluster/node.rs"]
mod node;
#[path = "cluster/node_status.rs"]
mod node_status;
#[path = "cluster/patches.rs"]
mod patches;
#[path = "cluster/server.rs"]
mod server;
#[path = "cluster/slices.rs"]
mod slices;
#[path = "cluster/upgrade.rs"]
mod upgrade;
