//! Compares plans with independent references: `systemctl`, a tree they are applied to, reviewed
//! texts.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "the tests look at trees past the code that is tested, and a failing helper fails its test"
)]

mod accounts;
mod companion_properties;
mod companions;
mod enablement_order;
mod first_config;
mod golden;
mod kinds;
mod machine;
mod names;
mod oracle;
mod oracle_cases;
mod os;
mod paths;
mod properties;
mod registries;
mod restored_links;
mod rules;
mod soft_reboot;
pub(crate) mod support;
mod unit_entries;
mod unit_faults;
mod unit_names;
mod unreachable;
mod user_interference;
