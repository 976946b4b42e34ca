//! machinist: one agent per machine that applies machine configs, advertises devices to the kubelet
//! and reports whether the machine is ready for work.
//!
//! The library exists so that tests can use every module; the binary is `main.rs`.
//! `ARCHITECTURE.md` describes how the modules fit together, and which may import which.

pub mod abs_path;
pub mod admin;
pub mod agent;
pub mod authority_rewrite;
pub mod backoff;
pub mod cli;
pub mod clock;
pub mod cluster;
pub mod config_dir;
pub mod device;
pub mod device_service;
pub mod digest;
pub mod dra;
pub mod drain;
pub mod error_chain;
pub mod host;
pub mod kube_api;
pub mod kubelet;
pub mod logging;
pub mod machine_config;
pub mod maintenance_window;
pub mod metrics;
pub mod os;
pub mod places;
pub mod plan;
pub mod plugin_proxy;
pub mod pool;
pub mod protobuf_scan;
pub mod rate_limit;
pub mod readiness;
pub mod reason;
pub mod rootfs;
pub mod settings;
pub mod shutdown;
pub mod status;
pub mod systemd;
mod text;
pub mod update;
pub mod vendor_api;
