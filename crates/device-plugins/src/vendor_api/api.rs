//! The vendor API's wire contract, generated from `proto/machinist/vendor/v1/` at build time.

#![expect(
    missing_docs,
    clippy::too_many_lines,
    reason = "generated code; its documentation is in proto/"
)]

/// The only version so far.
pub mod v1 {
    tonic::include_proto!("machinist.vendor.v1");

    /// The server side, implemented by the agent.
    pub mod agent {
        include!(concat!(env!("OUT_DIR"), "/heard/machinist.vendor.v1.rs"));
    }

    /// The version string used in Hello and Welcome.
    pub const VERSION: &str = "v1";
}
