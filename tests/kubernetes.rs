//! The API server: Nodes, drains, pools, and the machine-config-daemon.

mod cluster;
mod controller;
mod drain;
mod fleet;
mod handover;
mod pinned_images;
