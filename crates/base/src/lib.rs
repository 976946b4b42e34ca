//! What every other crate uses: paths, digests, reason codes, backoff, clocks and error chains.

pub mod abs_path;
pub mod backoff;
pub mod clock;
pub mod digest;
pub mod error_chain;
pub mod maintenance_window;
pub mod rate_limit;
pub mod reason;
pub mod shutdown;
pub mod text;
