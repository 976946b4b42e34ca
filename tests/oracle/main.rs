//! Compares machinist with the programs whose rules it follows, on generated and collected inputs.
//! `tests/oracle/run` builds those programs and starts these tests.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test panics on the first unexpected result; it is not part of the crate"
)]

mod alerts;
mod cdi;
mod ignition;
#[allow(dead_code, reason = "not every oracle needs all of it")]
mod support;
