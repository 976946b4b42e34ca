//! The adapter of the API server, against a server on a real socket that records its requests and
//! fails on demand.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test may panic, and plays the server and the files of a pod"
)]

mod access;
mod cleanup;
mod collections;
mod configs;
mod events;
mod grants;
mod handover;
mod machine_config_node;
mod node;
mod node_status;
mod patches;
pub(crate) mod server;
mod slices;
mod upgrade;
