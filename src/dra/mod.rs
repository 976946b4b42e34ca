//! The kubelet's claims: one driver for dynamic resource allocation (DRA).

pub mod api;
