//! The program as its users see it, its documents and its sources.

mod agent;
mod cli;
mod docs;
mod fuzz_seeds;
mod last_version;
mod layering;
mod notify;
mod packaging;
mod settings;
mod systemd;
