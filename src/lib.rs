//! machinist: one agent per machine that applies machine configs, advertises devices to the kubelet
//! and reports whether the machine is ready for work.
//!
//! The library exists so that tests can use every module; the binary is `main.rs`.
//! `ARCHITECTURE.md` describes how the modules fit together, and which may import which.

pub mod admin;
pub mod agent;
pub mod authority;
pub mod backoff;
pub mod cli;
pub mod clock;
pub mod cluster;
pub mod config;
pub mod crd;
pub mod device;
pub mod digest;
pub mod dra;
pub mod drain;
pub mod error_chain;
pub mod hardware;
pub mod kubelet;
pub mod machine_config;
pub mod metrics;
pub mod os;
pub mod path;
pub mod places;
pub mod plan;
pub mod pool;
pub mod proxy;
pub mod rate;
pub mod readiness;
pub mod reason;
pub mod root;
pub mod service;
pub mod shutdown;
pub mod source;
pub mod status;
pub mod systemd;
pub mod telemetry;
pub mod update;
pub mod vendor;
pub mod window;
pub mod wire;
mod words;
