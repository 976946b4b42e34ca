//! The operating system: the detection of the kind of host, and the contract of a provider.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic, and makes the trees that it looks at"
)]

#[path = "os/contract.rs"]
mod contract;
#[path = "os/fake_host.rs"]
mod fake_host;
#[path = "os/kinds.rs"]
mod kinds;
#[path = "os/mutants.rs"]
mod mutants;
