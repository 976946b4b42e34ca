//! Compares plans with independent references: `systemctl`, a tree they are applied to, reviewed
//! texts.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "the tests look at trees past the code that is tested, and a failing helper fails its test"
)]

#[path = "plan/first_config.rs"]
mod first_config;
#[path = "plan/golden.rs"]
mod golden;
#[path = "plan/kinds.rs"]
mod kinds;
#[path = "plan/machine.rs"]
mod machine;
#[path = "plan/names.rs"]
mod names;
#[path = "plan/oracle.rs"]
mod oracle;
#[path = "plan/os.rs"]
mod os;
#[path = "plan/paths.rs"]
mod paths;
#[path = "plan/properties.rs"]
mod properties;
#[path = "plan/registries.rs"]
mod registries;
#[path = "plan/rules.rs"]
mod rules;
#[path = "plan/soft_reboot.rs"]
mod soft_reboot;
#[path = "plan/support.rs"]
mod support;
#[path = "plan/unit_entries.rs"]
mod unit_entries;
#[path = "plan/unit_names.rs"]
mod unit_names;
#[path = "plan/unreachable.rs"]
mod unreachable;
