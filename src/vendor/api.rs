//! The vendor API's wire contract, generated from `proto/machinist/vendor/v1/` at build time.

#![expect(
    missing_docs,
    clippy::too_many_lines,
    reason = "generated code; its documentation is in proto/"
)]

/// The only version there is.
pub mod v1 {
    tonic::include_proto!("machinist.vendor.v1");

    /// The agent's side.
    pub mod agent {
        include!(concat!(env!("OUT_DIR"), "/heard/machinist.vendor.v1.rs"));
    }

    /// What Hello and Welcome call it.
    pub const VERSION: &str = "v1";
}
