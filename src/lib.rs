//! machinist: one agent per machine that applies machine configs, advertises devices to the kubelet
//! and reports whether the machine is ready for work.
//!
//! The library exists so that tests can use every module; the binary is `main.rs`.
//! `ARCHITECTURE.md` describes how the modules fit together, and which may import which.

pub mod cli;
pub mod logging;
