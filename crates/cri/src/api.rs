//! The gRPC contracts of the CRI and of containerd, generated from `proto/` at build time.

#![expect(
    missing_docs,
    clippy::too_many_lines,
    reason = "generated code; its documentation is in proto/"
)]

use std::fmt;

/// The CRI.
pub mod v1 {
    tonic::include_proto!("runtime.v1");
}

/// containerd's images.
pub mod containerd {
    tonic::include_proto!("containerd.services.images.v1");
}

impl fmt::Debug for v1::AuthConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthConfig")
    }
}
